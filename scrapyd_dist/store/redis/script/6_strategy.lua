-- Looks at a strategy. The one at the front of its queue brings what is due to its place, and notes which slots are full:
-- to ask again changes nothing, so this needs no token.

local function waiting_in(slot)
  local found = redis.call('HMGET', base .. 'slots', 'r:sealed:' .. slot, 'r:failed:' .. slot)
  return (tonumber(found[1] or 0) or 0) + (tonumber(found[2] or 0) or 0)
end

local function keys_of(kind, partitions)
  local keys = {}
  for at, partition in ipairs(partitions) do keys[at] = of_strategy(kind .. string.format('%.0f', partition)) end
  return keys
end

-- The fingerprints at the front of a slot, from the lines of these partitions.
local function front_of(slot, held, limit)
  local keys, found = {}, {}
  for _, partition in ipairs(lines.of(slot)) do
    if held[partition] then keys[#keys + 1] = of_strategy('q:' .. partition .. ':' .. slot) end
  end
  local members
  if #keys == 1 then
    members = redis.call('ZRANGE', keys[1], 0, limit - 1)
  else
    members = {}
    local next_member = merged(keys)
    for at = 1, limit do members[at] = next_member() end
  end
  for at, member in ipairs(members) do found[at] = hex(string.sub(member, PLACE + 1)) end
  return found
end

function looks.queue_heads()
  local meta = redis.call('HMGET', of_strategy('meta'), 'ended', 'ahead')
  local wanted = redis.call('HGET', base .. 'crawl', 'wanted')
  if meta[1] == '1' or (wanted and wanted ~= '""') then return {links = {}} end
  local held, found, full, told = {}, {}, {}, {}
  for _, partition in ipairs(argument.partitions) do
    partition = string.format('%.0f', partition)
    held[partition] = true
    links.promote(partition, argument.now, argument.promoted)
  end
  if tonumber(meta[2] or -1) ~= argument.ahead then
    redis.call('HSET', of_strategy('meta'), 'ahead', argument.ahead)
    for _, slot in ipairs(redis.call('SMEMBERS', of_strategy('full'))) do lines.look_again(slot) end
  end
  local next_slot = merged(keys_of('t:', argument.partitions))
  while #found < argument.limit do
    local slot = next_slot()
    if not slot then break end
    local room = argument.ahead - waiting_in(slot)
    if room <= 0 then
      full[#full + 1] = slot
    elseif not told[slot] then
      told[slot] = true
      for _, print in ipairs(front_of(slot, held, math.min(room, argument.limit - #found))) do
        found[#found + 1] = {slot, print}
      end
    end
  end
  for _, slot in ipairs(full) do lines.pass_over(slot) end
  return {links = found}
end

function looks.events()
  local next_number, numbers = merged(keys_of('e:', argument.partitions)), {}
  for at = 1, argument.limit do
    local number = next_number()
    if not number then break end
    numbers[at] = number
  end
  return {numbers = numbers}
end

function looks.strategy_backlog()
  return {
    meta = redis.call('HGETALL', of_strategy('meta')),
    processes = redis.call('ZRANGEBYSCORE', of_strategy('processes'), string.format('%.6f', now()), '+inf'),
    finished = redis.call('SMEMBERS', of_strategy('finished')),
    partitions = redis.call('HGETALL', of_strategy('partitions')),
  }
end
