-- What is kept beside batches and attempts, so that no step has to look through them all:
--   slots         a hash of how many are in a slot: `b:<state>:<slot>` batches, `r:<state>:<slot>` requests
--   waiting       the names of the slots in which something waits
--   w:<slot>      the batches that wait there, in the order in which they are leased
--   open:<state>  the attempts in that state, for each state that is not the last one

-- As in batches.py.
local WAITING = {sealed = true, failed = true}
local OPEN = {sending = true, sent = true, running = true, acked = true}

-- Nothing for one that is not there, or that no version of ours wrote: it is as if it were not there.
local function batch_of(number)
  local row = redis.call('HMGET', base .. 'b:' .. number, 'state', 'slot', 'size', 'priority')
  if not row[1] then return nil end
  local size, priority = tonumber(row[3]), tonumber(row[4] or 0)
  local readable, state = pcall(cjson.decode, row[1])
  local named, slot = pcall(cjson.decode, row[2] or '""')
  if not (readable and named and type(state) == 'string' and type(slot) == 'string' and size and priority) then
    return nil
  end
  return {state = state, slot = slot, size = size, priority = priority}
end

local function count_in(batch, sign)
  local counts, place = base .. 'slots', batch.state .. ':' .. batch.slot
  redis.call('HINCRBY', counts, 'r:' .. place, sign * batch.size)
  if redis.call('HINCRBY', counts, 'b:' .. place, sign) == 0 then
    redis.call('HDEL', counts, 'b:' .. place, 'r:' .. place)
  end
end

-- Numbers of the same length: those of the same priority are in their order.
local function member(number)
  return string.format('%010d', number)
end

local function batch_enters(number)
  local batch = batch_of(number)
  if not batch then return end
  count_in(batch, 1)
  if WAITING[batch.state] then
    redis.call('ZADD', base .. 'w:' .. batch.slot, -batch.priority, member(number))
    redis.call('SADD', base .. 'waiting', batch.slot)
  end
end

local function batch_leaves(number)
  local batch = batch_of(number)
  if not batch then return end
  count_in(batch, -1)
  if WAITING[batch.state] then
    local slot = base .. 'w:' .. batch.slot
    redis.call('ZREM', slot, member(number))
    lines.look_again(batch.slot)
    if redis.call('EXISTS', slot) == 0 then redis.call('SREM', base .. 'waiting', batch.slot) end
  end
end

local function attempt_goes(name, command)
  local state = redis.call('HGET', base .. 'a:' .. name, 'state')
  local readable, value = pcall(cjson.decode, state or '""')
  state = readable and value
  if not OPEN[state] then return end
  local went = redis.call(command, base .. 'open:' .. state, name)
  if went == 1 and UNDER_WAY[state] and turns.kept() then
    local batch = batch_of(string.match(name, '%d+'))
    if batch then turns.count(batch.slot, command == 'SADD' and batch.size or -batch.size) end
  end
end

-- Make a change to these batches and attempts: whatever it is, they are found where they belong after it.
local function changing(batches, attempts, change)
  local slots = {}
  local function note(numbers)
    for _, number in ipairs(turns.kept() and numbers or {}) do
      local batch = batch_of(number)
      if batch then slots[batch.slot] = true end
    end
  end
  note(batches)
  for _, name in ipairs(attempts) do attempt_goes(name, 'SREM') end
  for _, number in ipairs(batches) do batch_leaves(number) end
  change()
  for _, number in ipairs(batches) do batch_enters(number) end
  for _, name in ipairs(attempts) do attempt_goes(name, 'SADD') end
  for slot in pairs(slots) do turns.place(slot) end
end
