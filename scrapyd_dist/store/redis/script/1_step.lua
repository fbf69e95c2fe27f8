-- The steps of the Redis store: each run of this script is one step, all of it or nothing. The caller decides what is
-- allowed and passes the allowed states in; a refusal is found before the first write. A step is known by its token, so
-- that a caller who never got the answer can ask again, and the step is not made twice.
--
-- KEYS: the token, then the keys that the caller names. A step finds others on its way, such as the batch that is next;
-- every key of a store has the same hash tag, so that all of them lie on one node of a cluster.
-- ARGV: the verb, the seconds for which the token is kept, the verb's argument as JSON, then blobs: what JSON cannot
-- carry (fingerprints, one after the other, each behind its length in one byte) or need not (payloads).

-- What a text of JSON says; what is null there is not there. New batches, which may be many, have no nulls.
local function said(text)
  local function without_null(value)
    if type(value) ~= 'table' then return value end
    for name, one in pairs(value) do
      if one == cjson.null then value[name] = nil elseif name ~= 'new' then without_null(one) end
    end
    return value
  end
  return without_null(cjson.decode(text))
end

local token, verb, kept, argument = KEYS[1], ARGV[1], ARGV[2], said(ARGV[3])
-- What the names of the keys begin with: those of a crawl, of the throttle or of the whole store.
local base = argument.base

local function blob(number)
  return ARGV[3 + number]
end

local function one_of(value, values)
  for _, other in ipairs(values) do
    if value == other then return true end
  end
  return false
end

-- The first condition that does not hold. A condition is a key, a field and the values it may have: none of them means
-- that it must not be there, "*" that it must.
local function unmet()
  for number, condition in ipairs(argument.needed or {}) do
    local key, field, values = unpack(condition)
    local found = redis.call('HGET', key, field)
    local holds = found and (values[1] == '*' or one_of(found, values)) or (not found and #values == 0)
    if not holds then return {refused = number} end
  end
end

-- A count that is the limit of a loop: another program may have written anything there, and a loop must end.
local function limit_in(key, field, most)
  local count = tonumber(redis.call('HGET', key, field) or 0)
  if not (count and count >= 0 and count <= most) then error(field .. ' of ' .. key .. ' is no count') end
  return count
end

local function write()
  for _, command in ipairs(argument.writes or {}) do redis.call(unpack(command)) end
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
