-- The steps of the Redis store: each run of this script is one, all of it or nothing. What is allowed is decided by
-- the caller, who passes the allowed states in; a refusal is found before the first write. A step is known by its token,
-- so that one whose answer was lost can be asked for again without being made twice.
--
-- ARGV: verb, token, seconds that the token is kept, then what the verb takes.

local verb, token, kept = ARGV[1], ARGV[2], ARGV[3]
local last = 3

local function take()
  last = last + 1
  return ARGV[last]
end

local function count()
  return tonumber(take())
end

local function taken(number)
  local values = {}
  for at = 1, number do
    values[at] = take()
  end
  return values
end

local function one_of(value, values)
  for _, other in ipairs(values) do
    if value == other then return true end
  end
  return false
end

-- The first condition that does not hold: {its number, what was found}. A condition is a key, a field and the values it
-- may have: none of them means that it must not be there, "*" that it must.
local function unmet()
  local first
  for number = 1, count() do
    local key, field, values = take(), take(), taken(count())
    local found = redis.call('HGET', key, field)
    local holds = found and (values[1] == '*' or one_of(found, values)) or (not found and #values == 0)
    if not holds and not first then first = {'no', tostring(number), found or nil} end
  end
  return first
end

-- Commands, as they came.
local function taken_writes()
  local commands = {}
  for at = 1, count() do commands[at] = taken(count()) end
  return commands
end

local function write(commands)
  for _, command in ipairs(commands) do redis.call(unpack(command)) end
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
