-- Steps of the processes of a strategy.
--   s:processes   until when each of them lives
--   s:finished    those that have finished, by their own account
--   s:partitions  a hash: partition -> the process that holds it

local function leave_partitions(process)
  local held = redis.call('HGETALL', of_strategy('partitions'))
  for at = 1, #held, 2 do
    if held[at + 1] == process then redis.call('HDEL', of_strategy('partitions'), held[at]) end
  end
  redis.call('ZREM', of_strategy('processes'), process)
  redis.call('SREM', of_strategy('finished'), process)
end

function verbs.leave_partitions()
  leave_partitions(argument.process)
  return {}
end

function verbs.hold_partitions()
  local process, time = argument.process, now()
  for _, late in ipairs(redis.call('ZRANGEBYSCORE', of_strategy('processes'), '-inf', string.format('(%.6f', time))) do
    if late ~= process then leave_partitions(late) end
  end
  redis.call('ZADD', of_strategy('processes'), string.format('%.6f', time + argument.seconds), process)
  redis.call(argument.finished and 'SADD' or 'SREM', of_strategy('finished'), process)
  local share = math.ceil(PARTITIONS / redis.call('ZCARD', of_strategy('processes')))
  local mine, held = {}, of_strategy('partitions')
  for partition = 0, PARTITIONS - 1 do
    if redis.call('HGET', held, partition) == process then
      if #mine < share then mine[#mine + 1] = partition else redis.call('HDEL', held, partition) end
    end
  end
  for partition = 0, PARTITIONS - 1 do
    if #mine < share and redis.call('HSETNX', held, partition, process) == 1 then mine[#mine + 1] = partition end
  end
  table.sort(mine)
  return {partitions = mine}
end

-- What speaks against a step of a strategy process: said in words, or nothing.
local function refused()
  for _, partition in ipairs(argument.partitions) do
    if redis.call('HGET', of_strategy('partitions'), partition) ~= argument.process then
      return string.format('partition %.0f', partition)
    end
  end
  local told = {}
  for _, number in ipairs(argument.handled) do told[#told + 1] = number end
  for _, number in ipairs(argument.dead) do told[#told + 1] = number end
  if not events.wait(told) then return 'events' end
  for _, number in ipairs(argument.dropped) do
    local batch = batch_of(number)
    if not batch or batch.state ~= 'dead' then return string.format('batch %.0f', number) end
  end
end

-- Blobs: of each link its fingerprint, the link, its request and the words of the log; of each that is moved its
-- fingerprint, score and when it is due; the events; of each new batch its payload and its fingerprints.
function verbs.strategy()
  local why = refused()
  if why then return {refused = 0, why = why} end
  local at, queued, prints, gone = 0, {}, {}, {}
  for _ = 1, argument.links do
    queued[blob(at + 1)] = links.parse(blob(at + 2)).waits
    at = at + 4
  end
  at = at + 3 * argument.moved + #argument.events
  for number = 1, #argument.new do
    for _, print in ipairs(prints_in(blob(at + 2 * number))) do
      local link = links.find(print)
      local waits = link and link.waits
      if queued[print] ~= nil then waits = queued[print] end
      if not waits or gone[print] then return {refused = 0, why = 'links'} end
      prints[#prints + 1], gone[print] = print, true
    end
  end
  events.remove(argument.handled)
  events.bury(argument.dead, argument.faults)
  write()
  at = 0
  for _ = 1, argument.links do
    links.keep(blob(at + 1), links.parse(blob(at + 2)), blob(at + 3), argument.at, blob(at + 4))
    at = at + 4
  end
  for _ = 1, argument.moved do
    links.move(blob(at + 1), blob(at + 2), blob(at + 3), argument.at)
    at = at + 3
  end
  local slots = {}
  for _, print in ipairs(prints) do links.take(print, slots) end
  for number, partition in ipairs(argument.events) do events.keep(partition, blob(at + number)) end
  at = at + #argument.events
  for _, number in ipairs(argument.dropped) do drop(number) end
  local numbers = {}
  for number, fields in ipairs(argument.new) do
    numbers[number] = keep(fields, blob(at + 2 * number - 1), blob(at + 2 * number))
  end
  return {numbers = numbers}
end

-- Whether nothing is left to be requested or handled, and no producer but those of this kind may add something.
local function is_empty(own)
  local left = redis.call('HMGET', of_strategy('meta'), 'waiting', 'pending')
  if (tonumber(left[1] or 0) or 0) > 0 or (tonumber(left[2] or 0) or 0) > 0 then return false end
  if redis.call('EXISTS', base .. 'waiting') == 1 then return false end
  for state in pairs(OPEN) do
    if redis.call('SCARD', base .. 'open:' .. state) > 0 then return false end
  end
  for _, name in ipairs(redis.call('ZRANGE', base .. 'producers', 0, -1)) do
    if string.sub(name, 1, #own) ~= own then return false end
  end
  return true
end

function verbs.end_strategy()
  if argument.if_empty and not is_empty(argument.own) then return {refused = 0} end
  redis.call('HSET', of_strategy('meta'), 'ended', argument.ended)
  return {}
end

-- Links that cannot be requested leave the queue, and events that cannot be read become dead letters: they would be in
-- the way of the others for ever.
function verbs.set_aside()
  for number = 1, argument.links do
    local print = blob(2 * number - 1)
    local link = links.find(print)
    if link and link.waits then
      links.keep(print, links.parse(blob(2 * number)), '', argument.at, argument.words)
    elseif not link then
      redis.call('HDEL', of_strategy('requests'), print)
      redis.call('HDEL', of_strategy('links'), print)
    end
  end
  for _, place in ipairs(argument.places) do
    for _, partition in ipairs(lines.of(place[1])) do
      local key = of_strategy('q:' .. partition .. ':' .. place[1])
      for _, other in ipairs(redis.call('ZRANGE', key, 0, argument.front)) do
        if hex(string.sub(other, PLACE + 1)) == place[2] then redis.call('ZREM', key, other) end
      end
      if redis.call('EXISTS', key) == 0 then lines.close(place[1], partition) end
    end
  end
  events.bury(argument.dead, argument.faults)
  return {}
end

function verbs.replay()
  local names = argument.numbers
  if not names then return {revived = events.revive(redis.call('ZRANGE', of_strategy('dead'), 0, -1))} end
  for at, number in ipairs(names) do names[at] = string.format('%.0f', number) end
  return {revived = events.revive(names)}
end

-- The keys of a strategy, but for those of its log; `singles`: of which there is one.
local function remove_strategy(singles)
  for _, slot in ipairs(redis.call('HKEYS', of_strategy('lines'))) do
    for _, partition in ipairs(lines.of(slot)) do redis.call('UNLINK', of_strategy('q:' .. partition .. ':' .. slot)) end
  end
  local last = limit_in(of_strategy('meta'), 'changes', 1e12)
  for number = 0, math.floor(last / LOG) do redis.call('UNLINK', of_strategy('log:' .. string.format('%.0f', number))) end
  for _, name in ipairs(singles) do redis.call('UNLINK', of_strategy(name)) end
end

-- Nothing is left of the strategy, nor of batches that a worker could lease; the caller removes the others.
function verbs.reset_strategy()
  local out = 0
  for state in pairs(OPEN) do out = out + redis.call('SCARD', base .. 'open:' .. state) end
  if out > 0 then return {refused = 0, out = out} end
  local live = {}
  local until_now = string.format('%.6f', now())
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', of_strategy('processes'), until_now, '+inf')) do live[process] = true end
  for _, process in ipairs(redis.call('HVALS', of_strategy('partitions'))) do
    if live[process] then return {refused = 0, process = process} end
  end
  remove_strategy(argument.singles)
  for _, slot in ipairs(redis.call('SMEMBERS', base .. 'waiting')) do
    for _, number in ipairs(redis.call('ZRANGE', base .. 'w:' .. slot, 0, -1)) do drop(tonumber(number)) end
  end
  write()
  return {}
end

function verbs.drop_batches()
  for number = argument.first, argument.last do
    if redis.call('EXISTS', base .. 'b:' .. number) == 1 then drop(number) end
  end
  return {}
end
