-- Steps of a frontier: batches that workers lease by themselves.

-- Whether it can be leased: another program may have written here.
local function is_batch(number)
  return batch_of(number) and tonumber(redis.call('HGET', base .. 'b:' .. number, 'attempts'))
end

-- All slots in which something waits, but those of other spiders.
local function own_slots()
  local own = {}
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do
    if string.sub(slot, 1, 1) ~= OTHER then own[#own + 1] = slot end
  end
  return own
end

-- The first that wait in these slots: {number, how far from the front, slot}.
local function first_in(slots, limit)
  local first = {}
  for _, slot in ipairs(slots) do
    local found = redis.call('ZRANGE', base .. 'w:' .. slot, 0, limit - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      local number = tonumber(found[at])
      if number then first[#first + 1] = {number, tonumber(found[at + 1]), slot} end
    end
  end
  table.sort(first, function(one, two)
    if one[2] ~= two[2] then return one[2] < two[2] end
    return one[1] < two[1]
  end)
  return first
end

-- The next batch of a worker: its number. Unfairly, all of them are looked for at once. What is no batch waits no more.
local function next_unfair(slots, limit)
  local first = first_in(slots, limit)
  local at = 0
  return function()
    at = at + 1
    while first[at] and not is_batch(first[at][1]) do
      redis.call('ZREM', base .. 'w:' .. first[at][3], member(first[at][1]))
      at = at + 1
    end
    return first[at] and first[at][1]
  end
end

local function begin_turns()
  if turns.kept() then return end
  redis.call('HSET', base .. 'meta', 'turns', 1)
  for state in pairs(UNDER_WAY) do
    for _, name in ipairs(redis.call('SMEMBERS', base .. 'open:' .. state)) do
      local batch = batch_of(string.match(name, '%d+'))
      turns.count(batch.slot, batch.size)
    end
  end
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do turns.place(slot) end
end

-- The same, from the slots in turn, no two from one; with `alone` the worker has them to itself then.
local function next_in_turn(slots, worker, alone, hungry, full)
  begin_turns()
  local share = alone and turns.share(worker, hungry) or {held = 0, most = math.huge}
  local enough = {}
  for _, slot in ipairs(full) do enough[slot] = true end
  return function()
    local slot = turns.next(worker, slots, enough, share)
    if slot then
      enough[slot] = true
      if turns.take(slot, alone and worker or '') then share.held = share.held + 1 end
      return tonumber(redis.call('ZRANGE', base .. 'w:' .. slot, 0, 0)[1])
    end
    if alone and share.held == 0 and redis.call('EXISTS', base .. 'waiting') == 1 then
      redis.call('ZADD', base .. 'turns:hungry', string.format('%.6f', now()), worker)
    end
  end
end

local function lease_batch(number, state, fields, holder, seconds)
  local batch = base .. 'b:' .. number
  local attempt_number = tonumber(redis.call('HGET', batch, 'attempts')) + 1
  local attempt = string.format('%d.%d', number, attempt_number)
  changing({number}, {attempt}, function()
    redis.call('HSET', batch, 'state', state, 'attempts', attempt_number)
    redis.call('HSET', base .. 'a:' .. attempt, 'batch', number, 'number', attempt_number, unpack(fields))
    redis.call('SADD', base .. 'attempts', attempt)
    give_lease(attempt, holder, seconds)
  end)
  return attempt
end

function verbs.lease_next()
  local wanted = redis.call('HGET', base .. 'crawl', 'wanted')
  if wanted and wanted ~= '""' then return {refused = 0} end  -- a user wants it to rest, or to end
  local slots, limit, holder, next_batch = argument.slots, argument.limit, argument.holder, nil
  if argument.fair then
    next_batch = next_in_turn(slots, holder, argument.alone, argument.hungry, argument.enough)
  else
    next_batch = next_unfair(#slots == 0 and own_slots() or slots, limit)
  end
  local leased = {}
  for at = 1, limit do
    local number = next_batch()
    if not number or not is_batch(number) then break end
    leased[at] = lease_batch(number, argument.state, argument.fields, holder, argument.seconds)
  end
  return #leased > 0 and {attempts = leased} or {refused = 0}
end

function verbs.producer()
  redis.call('ZADD', base .. 'producers', string.format('%.6f', now() + argument.seconds), argument.name)
  return {}
end
