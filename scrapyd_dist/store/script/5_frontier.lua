-- Steps of a frontier: batches that workers lease by themselves.

-- Batches are kept with their fingerprints, unless one of these is there; what else belongs to the step is written first.
function verbs.add()
  local no = unmet()
  if no then return no end
  local base, moved, attempts = take(), taken(count()), taken(count())
  local writes, batches, prints = taken_writes(), taken_batches(), {}
  for _, batch in ipairs(batches) do
    for _, print in ipairs(batch.prints) do prints[#prints + 1] = print end
  end
  local there = known(base, prints)
  if #there > 0 then
    table.insert(there, 1, 'seen')
    return there
  end
  changing(base, moved, attempts, function() write(writes) end)
  remember(base, prints)
  return keep_all(base, batches)
end

-- Whether it can be leased: another program may have written here.
local function is_batch(base, number)
  return batch_of(base, number) and tonumber(redis.call('HGET', base .. 'b:' .. number, 'attempts'))
end

-- All slots in which something waits, but those of other spiders, whose names begin with `other`.
local function own_slots(base, other)
  local own = {}
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do
    if string.sub(slot, 1, #other) ~= other then own[#own + 1] = slot end
  end
  return own
end

-- The first that wait in these slots: {number, how far from the front, slot}.
local function first_in(base, slots, limit)
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
local function next_unfair(base, slots, limit)
  local first = first_in(base, slots, limit)
  local at = 0
  return function()
    at = at + 1
    while first[at] and not is_batch(base, first[at][1]) do
      redis.call('ZREM', base .. 'w:' .. first[at][3], member(first[at][1]))
      at = at + 1
    end
    return first[at] and first[at][1]
  end
end

local function begin_turns(base)
  if turns.kept(base) then return end
  redis.call('HSET', base .. 'meta', 'turns', 1)
  for state in pairs(UNDER_WAY) do
    for _, name in ipairs(redis.call('SMEMBERS', base .. 'open:' .. state)) do
      local batch = batch_of(base, string.match(name, '%d+'))
      turns.count(base, batch.slot, batch.size)
    end
  end
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do turns.place(base, slot) end
end

-- The same, from the slots in turn, no two from one; with `alone` the worker has them to itself then.
local function next_in_turn(base, slots, worker, alone, hungry, full)
  begin_turns(base)
  local share = alone and turns.share(base, worker, hungry) or {held = 0, most = math.huge}
  local enough = {}
  for _, slot in ipairs(full) do enough[slot] = true end
  return function()
    local slot = turns.next(base, worker, slots, enough, share)
    if slot then
      enough[slot] = true
      if turns.take(base, slot, alone and worker or '') then share.held = share.held + 1 end
      return tonumber(redis.call('ZRANGE', base .. 'w:' .. slot, 0, 0)[1])
    end
    if alone and share.held == 0 and redis.call('EXISTS', base .. 'waiting') == 1 then
      redis.call('ZADD', base .. 'turns:hungry', string.format('%.6f', now()), worker)
    end
  end
end

local function lease_batch(base, number, state, fields, holder, seconds)
  local batch = base .. 'b:' .. number
  local attempt_number = tonumber(redis.call('HGET', batch, 'attempts')) + 1
  local attempt = string.format('%d.%d', number, attempt_number)
  changing(base, {number}, {attempt}, function()
    redis.call('HSET', batch, 'state', state, 'attempts', attempt_number)
    redis.call('HSET', base .. 'a:' .. attempt, 'batch', number, 'number', attempt_number, unpack(fields))
    redis.call('SADD', base .. 'attempts', attempt)
    give_lease(base, attempt, holder, seconds)
  end)
  return attempt
end

function verbs.lease_next()
  local no = unmet()
  if no then return no end
  local base, limit, seconds, holder, state, fields = take(), count(), count(), take(), take(), taken(count())
  local other, fair, alone, hungry = take(), take() == '1', take() == '1', count()
  local slots, full = taken(count()), taken(count())
  local wanted = redis.call('HGET', base .. 'crawl', 'wanted')
  if wanted and wanted ~= '""' then return {'none'} end  -- somebody wants it to rest, or to end
  local next_batch
  if fair then
    next_batch = next_in_turn(base, slots, holder, alone, hungry, full)
  else
    next_batch = next_unfair(base, #slots == 0 and own_slots(base, other) or slots, limit)
  end
  local leased = {'ok'}
  for _ = 1, limit do
    local number = next_batch()
    if not number or not is_batch(base, number) then break end
    leased[#leased + 1] = lease_batch(base, number, state, fields, holder, seconds)
  end
  return #leased > 1 and leased or {'none'}
end

function verbs.drop()
  local no = unmet()
  if no then return no end
  local base, number, forgets = take(), take(), take()
  local batch, prints, attempts = base .. 'b:' .. number, base .. 'q:' .. number, {}
  -- One more than there are: the last one may have been refused.
  for attempt = 1, tonumber(redis.call('HGET', batch, 'attempts') or 0) + 1 do
    attempts[attempt] = number .. '.' .. attempt
  end
  if forgets == '1' then
    local text, list, at = redis.call('GET', prints) or '', {}, 1
    while at <= #text do
      local size = string.byte(text, at)
      list[#list + 1] = string.sub(text, at + 1, at + size)
      at = at + 1 + size
    end
    forget(base, list)
  end
  changing(base, {number}, attempts, function()
    redis.call('UNLINK', batch, base .. 'p:' .. number, prints)
    for _, attempt in ipairs(attempts) do
      redis.call('UNLINK', base .. 'a:' .. attempt)
      redis.call('SREM', base .. 'attempts', attempt)
    end
  end)
  return {'ok'}
end

function verbs.producer()
  local no = unmet()
  if no then return no end
  local base, name, seconds = take(), take(), tonumber(take())
  redis.call('ZADD', base .. 'producers', string.format('%.6f', now() + seconds), name)
  return {'ok'}
end

function verbs.index()
  local no = unmet()
  if no then return no end
  local base = take()
  if is_indexed(base) then return {'ok'} end
  redis.call('HSET', base .. 'meta', 'indexed', 1)
  for number = 1, tonumber(redis.call('HGET', base .. 'meta', 'batches') or 0) do batch_enters(base, number) end
  for _, name in ipairs(redis.call('SMEMBERS', base .. 'attempts')) do attempt_goes(base, name, 'SADD') end
  return {'ok'}
end
