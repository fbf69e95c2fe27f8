-- Slots take turns, where batches are leased fairly. A crawl in which none is pays nothing for it: its turns are kept
-- from the first time on that a worker asks for one (`turns` in `meta` is the last that was given).
--   turns:out     a hash: slot -> requests of its batches that workers have
--   turns:last    a hash: slot -> the turn in which it was last leased from
--   turns:holder  a hash: slot -> the worker that has it to itself, while it has something of it
--   turns:held    a hash: worker -> how many slots that are
--   turns:free    the slots without a holder in which something waits, in the order in which they are leased from
--   turns:of:<worker>  the same, of those that a worker has to itself
--   turns:hungry  workers that found all slots taken, and when that was

local turns = {}
local UNDER_WAY = {sending = true, sent = true, running = true}
-- Behind the requests that are under way, which count first, in one score: turns, at most so many.
local TURNS, MOST_OUT = 4294967296, 1048575
local OTHER = '@'  -- what the names of slots of other spiders begin with: these are leased by name only

function turns.kept()
  return redis.call('HGET', base .. 'meta', 'turns')
end

local function out_of(slot)
  return math.min(MOST_OUT, tonumber(redis.call('HGET', base .. 'turns:out', slot) or 0))
end

function turns.rank(slot)
  return out_of(slot) * TURNS + tonumber(redis.call('HGET', base .. 'turns:last', slot) or 0)
end

-- It is no worker's alone any more.
local function let_go(slot, holder)
  redis.call('HDEL', base .. 'turns:holder', slot)
  redis.call('ZREM', base .. 'turns:of:' .. holder, slot)
  if redis.call('HINCRBY', base .. 'turns:held', holder, -1) <= 0 then redis.call('HDEL', base .. 'turns:held', holder) end
end

-- Something has changed in it: put it where it belongs.
function turns.place(slot)
  local holder = redis.call('HGET', base .. 'turns:holder', slot)
  if holder and out_of(slot) <= 0 then
    let_go(slot, holder)
    holder = nil
  end
  local line = base .. (holder and 'turns:of:' .. holder or 'turns:free')
  if redis.call('EXISTS', base .. 'w:' .. slot) == 0 then
    redis.call('ZREM', line, slot)
  elseif string.sub(slot, 1, 1) ~= OTHER then
    redis.call('ZADD', line, string.format('%.0f', turns.rank(slot)), slot)
  end
end

-- So many more requests of it are under way.
function turns.count(slot, requests)
  local out = redis.call('HINCRBY', base .. 'turns:out', slot, requests)
  if out == 0 then redis.call('HDEL', base .. 'turns:out', slot) end
end

-- It is leased from now; from now on it is this holder's alone, if one is named: whether it was not before.
function turns.take(slot, holder)
  redis.call('HSET', base .. 'turns:last', slot, redis.call('HINCRBY', base .. 'meta', 'turns', 1))
  if holder == '' or redis.call('HGET', base .. 'turns:holder', slot) == holder then return false end
  redis.call('ZREM', base .. 'turns:free', slot)
  redis.call('HSET', base .. 'turns:holder', slot, holder)
  redis.call('HINCRBY', base .. 'turns:held', holder, 1)
  return true
end

-- How many slots a worker may have to itself: {held, most}. `hungry`: seconds for which one that found nothing counts.
function turns.share(worker, hungry)
  local held, slots, workers = {}, redis.call('ZCARD', base .. 'turns:free'), 0
  local pairs_of_held = redis.call('HGETALL', base .. 'turns:held')
  for at = 1, #pairs_of_held, 2 do
    held[pairs_of_held[at]] = tonumber(pairs_of_held[at + 1])
    slots, workers = slots + held[pairs_of_held[at]], workers + 1
  end
  redis.call('ZREMRANGEBYSCORE', base .. 'turns:hungry', '-inf', string.format('%.6f', now() - hungry))
  for _, other in ipairs(redis.call('ZRANGE', base .. 'turns:hungry', 0, -1)) do
    if not held[other] and other ~= worker then workers = workers + 1 end
  end
  if not held[worker] then workers = workers + 1 end
  return {held = held[worker] or 0, most = math.ceil(slots / workers)}
end

-- The first of a line that the worker wants something of, and its rank.
local function first_wanted(line, enough)
  local skip = 0
  for _ in pairs(enough) do skip = skip + 1 end
  local found = redis.call('ZRANGE', line, 0, skip, 'WITHSCORES')
  for at = 1, #found, 2 do
    if not enough[found[at]] then return found[at], tonumber(found[at + 1]) end
  end
end

-- The same, of the named slots that are this holder's, or have none.
local function first_named(named, holder, enough)
  local best, first
  for _, slot in ipairs(named) do
    local ours = (redis.call('HGET', base .. 'turns:holder', slot) or '') == holder and not enough[slot]
    if ours and redis.call('EXISTS', base .. 'w:' .. slot) == 1 then
      local rank = turns.rank(slot)
      if not best or rank < first or (rank == first and slot < best) then best, first = slot, rank end
    end
  end
  return best, first
end

-- The slot whose turn it is for this worker: of the named ones, else of all but those of other spiders. `enough`: slots of
-- which it wants nothing, as a set.
function turns.next(worker, named, enough, share)
  local holders, best, first = {}, nil, nil
  if share.held < share.most then holders[1] = '' end
  if share.held <= share.most then holders[#holders + 1] = worker end
  for _, holder in ipairs(holders) do
    local slot, rank
    if #named > 0 then
      slot, rank = first_named(named, holder, enough)
    else
      slot, rank = first_wanted(base .. (holder == '' and 'turns:free' or 'turns:of:' .. holder), enough)
    end
    if slot and (not best or rank < first or (rank == first and slot < best)) then best, first = slot, rank end
  end
  return best
end
