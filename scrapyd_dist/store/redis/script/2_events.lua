-- Events of workers for a crawl's strategy, and what is counted of a strategy; its keys begin with `s:`.
--   s:meta        a hash of counts: links by state (`1` to `3`), `waiting` and `later` links of the queue, `pending` events,
--                 `dead` letters; the last numbers that were given (`events`, `changes`, `places`, `turns`, `slots`);
--                 whether it has `ended`, and `ahead`, up to which its slots were filled last
--   s:events      a hash: number -> event, also of the dead ones
--   s:e:<partition>  the numbers of those that wait; a number, divided by PARTITIONS, leaves the partition
--   s:dead        the numbers of dead letters
--   s:faults      a hash: number -> what its handler raised

local PARTITIONS = shared.PARTITIONS
local events = {}

local function of_strategy(name)
  return base .. 's:' .. name
end

local function count_links(name, number)
  if number ~= 0 then redis.call('HINCRBY', of_strategy('meta'), name, number) end
end

local function line_of(number)
  return of_strategy('e:' .. string.format('%.0f', number % PARTITIONS))
end

function events.keep(partition, text)
  local place = redis.call('HINCRBY', of_strategy('meta'), 'events', 1)
  local number = string.format('%.0f', place * PARTITIONS + partition)
  redis.call('HSET', of_strategy('events'), number, text)
  redis.call('ZADD', line_of(tonumber(number)), number, number)
  count_links('pending', 1)
end

-- Whether all of these wait.
function events.wait(numbers)
  local told = {}
  for _, number in ipairs(numbers) do
    local name = string.format('%.0f', number)
    if told[name] or not redis.call('ZSCORE', line_of(number), name) then return false end
    told[name] = true
  end
  return true
end

function events.remove(numbers)
  for _, number in ipairs(numbers) do
    local name = string.format('%.0f', number)
    redis.call('ZREM', line_of(number), name)
    redis.call('HDEL', of_strategy('events'), name)
  end
  count_links('pending', -#numbers)
end

-- Make dead letters of them; those that do not wait any more are left alone.
function events.bury(numbers, faults)
  local buried = 0
  for at, number in ipairs(numbers) do
    local name = string.format('%.0f', number)
    if redis.call('ZREM', line_of(number), name) == 1 then
      redis.call('ZADD', of_strategy('dead'), name, name)
      redis.call('HSET', of_strategy('faults'), name, faults[at])
      buried = buried + 1
    end
  end
  count_links('pending', -buried)
  count_links('dead', buried)
end

function events.revive(names)
  local revived = 0
  for _, name in ipairs(names) do
    if redis.call('ZREM', of_strategy('dead'), name) == 1 then
      redis.call('HDEL', of_strategy('faults'), name)
      redis.call('ZADD', line_of(tonumber(name)), name, name)
      revived = revived + 1
    end
  end
  count_links('pending', revived)
  count_links('dead', -revived)
  return revived
end
