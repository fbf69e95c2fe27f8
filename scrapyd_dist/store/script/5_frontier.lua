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

-- All slots in which something waits, but those of other spiders, whose names begin with `other`.
local function own_slots(base, other)
  local own = {}
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do
    if string.sub(slot, 1, #other) ~= other then own[#own + 1] = slot end
  end
  return own
end

-- The first that wait in these slots: {number, how far from the front}.
local function first_in(base, slots, limit)
  local first = {}
  for _, slot in ipairs(slots) do
    local found = redis.call('ZRANGE', base .. 'w:' .. slot, 0, limit - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      first[#first + 1] = {tonumber(found[at]), tonumber(found[at + 1])}
    end
  end
  table.sort(first, function(one, two)
    if one[2] ~= two[2] then return one[2] < two[2] end
    return one[1] < two[1]
  end)
  return first
end

function verbs.lease_next()
  local no = unmet()
  if no then return no end
  local base, limit, seconds, holder, state, fields = take(), count(), count(), take(), take(), taken(count())
  local other, slots = take(), taken(count())
  local wanted = redis.call('HGET', base .. 'crawl', 'wanted')
  if wanted and wanted ~= '""' then return {'none'} end  -- somebody wants it to rest, or to end
  if #slots == 0 then slots = own_slots(base, other) end
  local first = first_in(base, slots, limit)
  if #first == 0 then return {'none'} end
  local leased = {'ok'}
  for at = 1, math.min(limit, #first) do
    local batch = base .. 'b:' .. first[at][1]
    local number = tonumber(redis.call('HGET', batch, 'attempts')) + 1
    local attempt = first[at][1] .. '.' .. number
    changing(base, {first[at][1]}, {attempt}, function()
      redis.call('HSET', batch, 'state', state, 'attempts', number)
      redis.call('HSET', base .. 'a:' .. attempt, 'batch', first[at][1], 'number', number, unpack(fields))
      redis.call('SADD', base .. 'attempts', attempt)
      give_lease(base, attempt, holder, seconds)
    end)
    leased[#leased + 1] = attempt
  end
  return leased
end

function verbs.drop()
  local no = unmet()
  if no then return no end
  local base, number, forgets = take(), take(), take()
  local batch, prints, attempts = base .. 'b:' .. number, base .. 'q:' .. number, {}
  -- One more than there are: the last one may have been refused.
  for attempt = 1, tonumber(redis.call('HGET', batch, 'attempts')) + 1 do
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
