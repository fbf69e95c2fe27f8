-- Links of a strategy and their queue. No key is named after a link, so that many links are few keys.
--   s:links       a hash: fingerprint -> the link: its state, whether it waits in the queue, its score, when it is due, its
--                 partition and its slot, behind a slash, each followed by a space; then JSON that is not looked into here
--   s:requests    a hash, of links in the queue: fingerprint -> its place (PLACE digits) and its request
--   s:q:<partition>:<slot>  those that are due: place and fingerprint, by score and then by place
--   s:later:<partition>     those that are not: fingerprints, by when they are
--   s:lines       a hash: slot -> the partitions in which something of it is due
--   s:turns       a hash: slot -> its turn: when a link was taken from it last. One that is new comes before all others
--   s:t:<partition>  the slots in which something is due, by turn, but those of
--   s:full        as many of their requests wait in batches as may
--   s:log:<n>     the log of changes, LOG of them in each list

local links, lines = {}, {}
local PLACE, LOG = 12, 10000
local FIRST_TURN = -4503599627370496
local QUEUED, NOT_CRAWLED = '1', '0'

local function hex(text)
  return (string.gsub(text, '[%z\1-\255]', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- Nothing for what is no link.
function links.parse(text)
  local state, waits, score, due, partition, slot, rest =
    string.match(text or '', '^(%d) (%d) (%S+) (%S+) (%d+) /(%S*) (.*)$')
  if not (state and tonumber(score) and tonumber(due)) then return nil end
  return {
    state = state, waits = waits == '1', score = score, due = due, partition = partition, slot = slot, rest = rest,
  }
end

function links.find(print)
  return links.parse(redis.call('HGET', of_strategy('links'), print))
end

function links.write(print, link)
  local words = {link.state, link.waits and '1' or '0', link.score, link.due, link.partition, '/' .. link.slot, link.rest}
  redis.call('HSET', of_strategy('links'), print, table.concat(words, ' '))
end

local function line_key(partition, slot)
  return of_strategy('q:' .. partition .. ':' .. slot)
end

local function turns_key(partition)
  return of_strategy('t:' .. partition)
end

-- The partitions in which something of a slot is due.
function lines.of(slot)
  local found = {}
  for partition in string.gmatch(redis.call('HGET', of_strategy('lines'), slot) or '', '%d+') do
    found[#found + 1] = partition
  end
  return found
end

local function turn_of(slot)
  local turn = redis.call('HGET', of_strategy('turns'), slot)
  if not turn then
    turn = string.format('%.0f', FIRST_TURN + redis.call('HINCRBY', of_strategy('meta'), 'slots', 1))
    redis.call('HSET', of_strategy('turns'), slot, turn)
  end
  return turn
end

-- Something of the slot is due in this partition, and nothing was; or the other way round.
function lines.open(slot, partition)
  local before = redis.call('HGET', of_strategy('lines'), slot) or ''
  redis.call('HSET', of_strategy('lines'), slot, before .. partition .. ',')
  local turn = turn_of(slot)
  if redis.call('SISMEMBER', of_strategy('full'), slot) == 0 then redis.call('ZADD', turns_key(partition), turn, slot) end
end

function lines.close(slot, partition)
  local left = {}
  for _, other in ipairs(lines.of(slot)) do
    if other ~= partition then left[#left + 1] = other .. ',' end
  end
  if #left > 0 then
    redis.call('HSET', of_strategy('lines'), slot, table.concat(left))
  else
    redis.call('HDEL', of_strategy('lines'), slot)
  end
  redis.call('ZREM', turns_key(partition), slot)
end

-- A link was taken from it.
function lines.turn(slot)
  local turn = redis.call('HINCRBY', of_strategy('meta'), 'turns', 1)
  redis.call('HSET', of_strategy('turns'), slot, turn)
  for _, partition in ipairs(lines.of(slot)) do redis.call('ZADD', turns_key(partition), 'XX', turn, slot) end
end

-- A slot that is full is passed over until fewer of its requests wait in batches.
function lines.pass_over(slot)
  redis.call('SADD', of_strategy('full'), slot)
  for _, partition in ipairs(lines.of(slot)) do redis.call('ZREM', turns_key(partition), slot) end
end

function lines.look_again(slot)
  if redis.call('SREM', of_strategy('full'), slot) == 0 then return end
  for _, partition in ipairs(lines.of(slot)) do redis.call('ZADD', turns_key(partition), turn_of(slot), slot) end
end

local function join_line(print, link, place)
  local key = line_key(link.partition, link.slot)
  local before = string.sub(link.score, 1, 1) == '-' and string.sub(link.score, 2) or '-' .. link.score
  redis.call('ZADD', key, before, place .. print)
  if redis.call('ZCARD', key) == 1 then lines.open(link.slot, link.partition) end
end

-- Put a link into the queue; without a place it is the last one of its score.
function links.enter(print, link, place, request, time)
  place = place or string.format('%0' .. PLACE .. '.0f', redis.call('HINCRBY', of_strategy('meta'), 'places', 1))
  redis.call('HSET', of_strategy('requests'), print, place .. request)
  count_links('waiting', 1)
  if tonumber(link.due) > time then
    redis.call('ZADD', of_strategy('later:' .. link.partition), link.due, print)
    count_links('later', 1)
  else
    join_line(print, link, place)
  end
end

-- Take it out: its place and its request.
function links.leave(print, link)
  local kept = redis.call('HGET', of_strategy('requests'), print) or ''
  local place, request = string.sub(kept, 1, PLACE), string.sub(kept, PLACE + 1)
  redis.call('HDEL', of_strategy('requests'), print)
  count_links('waiting', -1)
  if redis.call('ZREM', of_strategy('later:' .. link.partition), print) == 1 then
    count_links('later', -1)
  else
    local key = line_key(link.partition, link.slot)
    if redis.call('ZREM', key, place .. print) == 1 and redis.call('EXISTS', key) == 0 then
      lines.close(link.slot, link.partition)
    end
  end
  return place, request
end

-- Links of a partition that are due now join the line of their slot, some thousands in one look.
function links.promote(partition, time, most)
  local key = of_strategy('later:' .. partition)
  for _, print in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', time, 'LIMIT', 0, most)) do
    redis.call('ZREM', key, print)
    count_links('later', -1)
    local link, kept = links.find(print), redis.call('HGET', of_strategy('requests'), print)
    if link and kept then join_line(print, link, string.sub(kept, 1, PLACE)) end
  end
end

function links.log(print, before, link, at, words)
  local number = redis.call('HINCRBY', of_strategy('meta'), 'changes', 1)
  local line = table.concat({before, at, link.state, link.score, words}, ' ')
  local key = of_strategy('log:' .. string.format('%.0f', math.floor((number - 1) / LOG)))
  redis.call('RPUSH', key, string.char(#print) .. print .. line)
end

-- Keep a link in the place of the one of its fingerprint. `words`: its reason, as a list in JSON.
function links.keep(print, link, request, at, words)
  local old, time = links.find(print), tonumber(at)
  local before, place = old and old.state or NOT_CRAWLED, nil
  local was_queued = old and old.waits
  if was_queued then place = links.leave(print, old) end
  if link.waits then
    links.enter(print, link, place, request, time)
  elseif was_queued then
    lines.turn(old.slot)
  end
  if before ~= NOT_CRAWLED then count_links(before, -1) end
  count_links(link.state, 1)
  links.write(print, link)
  if before ~= link.state or words ~= '[""]' or (old and old.score ~= link.score) then
    links.log(print, before, link, at, words)
  end
end

-- Give a link that is QUEUED another score, and another place in the queue. `due`: empty when it stays as it is.
function links.move(print, score, due, at)
  local link = links.find(print)
  if not link or link.state ~= QUEUED then return end
  local place, request
  if link.waits then place, request = links.leave(print, link) end
  local before = link.score
  link.score = score
  if due ~= '' then link.due = due end
  if link.waits then links.enter(print, link, place, request, tonumber(at)) end
  links.write(print, link)
  if before ~= score then links.log(print, QUEUED, link, at, '[""]') end
end

-- Take a link out of the queue, for a batch; the slots it was taken from are noted.
function links.take(print, slots)
  local link = links.find(print)
  links.leave(print, link)
  link.waits = false
  links.write(print, link)
  if not slots[link.slot] then
    slots[link.slot] = true
    lines.turn(link.slot)
  end
end

-- The members of several sorted sets, the lowest score first, one at a time. None of them may change meanwhile.
local function merged(keys)
  local SOME, sources = 8, {}
  local function read(source)
    local found = redis.call('ZRANGE', source.key, source.from, source.from + SOME - 1, 'WITHSCORES')
    source.from, source.found, source.at = source.from + SOME, found, 1
  end
  for at, key in ipairs(keys) do
    sources[at] = {key = key, from = 0}
    read(sources[at])
  end
  return function()
    local best, first, name
    for _, source in ipairs(sources) do
      if source.at > #source.found and #source.found == 2 * SOME then read(source) end
      local member = source.found[source.at]
      if member then
        local score = tonumber(source.found[source.at + 1])
        if not best or score < first or (score == first and member < name) then
          best, first, name = source, score, member
        end
      end
    end
    if best then best.at = best.at + 2 end
    return name
  end
end
