-- Steps of batches and their attempts, and leases.

-- A batch is kept under the next free number, which is the answer: its fields but the number, the text of its payload,
-- and the fingerprints that stay with it.
local function keep(fields, payload, prints)
  local number = redis.call('HINCRBY', base .. 'meta', 'batches', 1)
  redis.call('HSET', base .. 'b:' .. number, 'number', number, unpack(fields))
  redis.call('SET', base .. 'p:' .. number, payload)
  if prints ~= '' then redis.call('SET', base .. 'q:' .. number, prints) end
  batch_enters(number)
  if turns.kept() then turns.place(batch_of(number).slot) end
  return number
end

local verbs = {}

function verbs.steps()
  write()
  return {}
end

-- Take these misses away, each once; false, and none is, when one is not there.
local function forget_misses(misses)
  for at, row in ipairs(misses) do
    if redis.call('LREM', base .. 'misses', 1, row) == 0 then
      for back = 1, at - 1 do redis.call('RPUSH', base .. 'misses', misses[back]) end
      return false
    end
  end
  return true
end

-- Remove a batch with all of its attempts.
local function drop(number)
  local attempts = {}
  local batch, prints = base .. 'b:' .. number, base .. 'q:' .. number
  -- One more than there are: the last one may have been refused.
  for attempt = 1, limit_in(batch, 'attempts', 10000) + 1 do
    attempts[attempt] = number .. '.' .. attempt
  end
  if argument.forget then forget(prints_in(redis.call('GET', prints) or '')) end
  changing({number}, attempts, function()
    redis.call('UNLINK', batch, base .. 'p:' .. number, prints)
    for _, attempt in ipairs(attempts) do
      redis.call('UNLINK', base .. 'a:' .. attempt)
      redis.call('SREM', base .. 'attempts', attempt)
    end
  end)
end

-- As `steps`, where the batches and attempts that are named change, and new batches are kept: each has two blobs, its
-- payload and its fingerprints, none of which may be there, where that is asked for. The next blob has more fingerprints, and
-- behind it are events for the crawl's strategy; the argument has the partition of each.
function verbs.batches()
  local numbers, found = {}, {}
  if argument.unseen then
    for at = 1, #argument.new do found[at] = blob(2 * at) end
    local there = known(prints_in(table.concat(found)))
    if #there > 0 then return {seen = there} end
  end
  if not forget_misses(argument.misses) then return {refused = 0} end
  changing(argument.batches, argument.attempts, write)
  found[#found + 1] = blob(2 * #argument.new + 1)
  local prints = prints_in(table.concat(found))
  if #prints > 0 then remember(prints) end
  for at, partition in ipairs(argument.events or {}) do events.keep(partition, blob(2 * #argument.new + 1 + at)) end
  if argument.dropped then drop(argument.batches[1]) end
  for at, fields in ipairs(argument.new) do numbers[at] = keep(fields, blob(2 * at - 1), blob(2 * at)) end
  return {numbers = numbers}
end

function verbs.crawl()
  redis.call('HSET', argument.index, argument.id, redis.call('HINCRBY', argument.index, '', 1))
  write()
  return {}
end

-- Workers are listed; the highest number that one was given never gets smaller.
function verbs.workers()
  write()
  if argument.last > tonumber(redis.call('HGET', base .. 'meta', 'workers') or 0) then
    redis.call('HSET', base .. 'meta', 'workers', argument.last)
  end
  return {}
end

function verbs.requeue()
  local numbers = {}
  for _, number in ipairs(argument.batches) do
    local batch = base .. 'b:' .. number
    if redis.call('HGET', batch, 'state') == argument.dead then
      changing({number}, {}, function()
        local tried = redis.call('HGET', batch, 'attempts')
        redis.call('HSET', batch, 'state', argument.sealed, 'earlier', tried, 'forgiven', 0)
      end)
      numbers[#numbers + 1] = number
    end
  end
  return {numbers = numbers}
end

function verbs.prioritise()
  local numbers = {}
  for _, number in ipairs(argument.batches) do
    local batch = batch_of(number)
    if batch and WAITING[batch.state] then
      changing({number}, {}, function() redis.call('HSET', base .. 'b:' .. number, 'priority', argument.priority) end)
      numbers[#numbers + 1] = number
    end
  end
  return {numbers = numbers}
end

-- Leases run by this server's clock.
local function give_lease(attempt, holder, seconds)
  redis.call('ZADD', base .. 'leases', string.format('%.6f', now() + seconds), attempt)
  redis.call('HSET', base .. 'holders', attempt, holder)
end

function verbs.lease()
  local attempt, holder = argument.attempt, argument.holder
  local mine = redis.call('HGET', base .. 'holders', attempt) == holder
  local ends = redis.call('ZSCORE', base .. 'leases', attempt)
  if not mine and (argument.again or (ends and tonumber(ends) >= now())) then return {refused = 0} end
  give_lease(attempt, holder, argument.seconds)
  return {}
end

-- The goals of a whole crawl: what a process tells is added, and as many requests are granted as the goals leave; as
-- `spend` of goals.py, to which a test compares it.
function verbs.spend()
  local key, counts, granted = base .. 'kept', {}, argument.requests
  local function count_of(name) return tonumber(redis.call('HGET', key, 'goal.' .. name) or 0) or 0 end
  local function add(name, number) redis.call('HINCRBY', key, 'goal.' .. name, number) end
  for name, number in pairs(argument.done) do add(name, number) end
  if (argument.done.items or 0) ~= 0 then
    redis.call('HSET', key, 'goal.dry_pages', 0)
  elseif argument.done.pages then
    add('dry_pages', argument.done.pages)
  end
  local most = argument.limits.requests
  local left = most and math.floor(most) - count_of('requests') - count_of('reserved')
  if left then granted = math.max(0, math.min(granted, left)) end
  for name, limit in pairs(argument.limits) do
    if count_of(name) >= limit then granted = 0 end
  end
  if granted > 0 then add(argument.reserve and 'reserved' or 'requests', granted) end
  local all = redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    if string.sub(all[at], 1, 5) == 'goal.' then counts[#counts + 1] = {string.sub(all[at], 6), all[at + 1]} end
  end
  return {granted = granted, counts = counts}
end
