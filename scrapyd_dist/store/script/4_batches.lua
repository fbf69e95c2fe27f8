-- Steps of batches and their attempts, and leases.

-- A batch that is to be kept: its fields but the number, its payload, and the fingerprints that stay with it.
local function taken_batch()
  return {fields = taken(count()), payload = take(), prints = taken(count())}
end

local function taken_batches()
  local batches = {}
  for at = 1, count() do batches[at] = taken_batch() end
  return batches
end

-- It is kept under the next free number, which is the answer.
local function keep(base, batch)
  local number = redis.call('HINCRBY', base .. 'meta', 'batches', 1)
  redis.call('HSET', base .. 'b:' .. number, 'number', number, unpack(batch.fields))
  redis.call('SET', base .. 'p:' .. number, batch.payload)
  if #batch.prints > 0 then
    local words = {}
    for at, print in ipairs(batch.prints) do words[at] = string.char(#print) .. print end
    redis.call('SET', base .. 'q:' .. number, table.concat(words))
  end
  if is_indexed(base) then
    batch_enters(base, number)
    if turns.kept(base) then turns.place(base, batch_of(base, number).slot) end
  end
  return tostring(number)
end

local function keep_all(base, batches)
  local numbers = {'ok'}
  for _, batch in ipairs(batches) do numbers[#numbers + 1] = keep(base, batch) end
  return numbers
end

local verbs = {}

function verbs.steps()
  local no = unmet()
  if no then return no end
  write(taken_writes())
  return {'ok'}
end

-- The same, where batches and attempts change; they are named.
function verbs.moves()
  local no = unmet()
  if no then return no end
  local base, batches, attempts, writes = take(), taken(count()), taken(count()), taken_writes()
  changing(base, batches, attempts, function() write(writes) end)
  return {'ok'}
end

function verbs.crawl()
  local no = unmet()
  if no then return no end
  local index, id = take(), take()
  redis.call('HSET', index, id, redis.call('HINCRBY', index, '', 1))
  write(taken_writes())
  return {'ok'}
end

function verbs.seal()
  local no = unmet()
  if no then return no end
  local base = take()
  local number = keep(base, taken_batch())
  write(taken_writes())
  remember(base, taken(#ARGV - last))
  return {'ok', number}
end

function verbs.split()
  local no = unmet()
  if no then return no end
  local base, whole, writes, batches = take(), take(), taken_writes(), taken_batches()
  changing(base, {whole}, {}, function() write(writes) end)
  return keep_all(base, batches)
end

function verbs.retry()
  local no = unmet()
  if no then return no end
  local base = take()
  local rows = taken(count())
  for at, row in ipairs(rows) do
    if redis.call('LREM', base .. 'misses', 1, row) == 0 then
      for back = 1, at - 1 do redis.call('RPUSH', base .. 'misses', rows[back]) end
      return {'no', '0'}
    end
  end
  return keep_all(base, taken_batches())
end

function verbs.requeue()
  local no = unmet()
  if no then return no end
  local base, from, to = take(), take(), take()
  local numbers = {'ok'}
  for _, number in ipairs(taken(#ARGV - last)) do
    local batch = base .. 'b:' .. number
    if redis.call('HGET', batch, 'state') == from then
      changing(base, {number}, {}, function()
        redis.call('HSET', batch, 'state', to, 'forgiven', redis.call('HGET', batch, 'attempts'))
      end)
      numbers[#numbers + 1] = number
    end
  end
  return numbers
end

-- Leases run by this server's clock.
local function give_lease(base, attempt, holder, seconds)
  redis.call('ZADD', base .. 'leases', string.format('%.6f', now() + seconds), attempt)
  redis.call('HSET', base .. 'holders', attempt, holder)
end

function verbs.lease()
  local no = unmet()
  if no then return no end
  local base, attempt, holder, seconds, again = take(), take(), take(), tonumber(take()), take()
  local mine = redis.call('HGET', base .. 'holders', attempt) == holder
  local ends = redis.call('ZSCORE', base .. 'leases', attempt)
  if not mine and (again == '1' or (ends and tonumber(ends) >= now())) then return {'ok', '0'} end
  give_lease(base, attempt, holder, seconds)
  return {'ok', '1'}
end
