-- When the next permits of a key may be used: throttle/permits.py in this language, by the same names.

-- For how long a grant is kept at least.
local REMEMBERED = 60 * SECOND
-- Before all moments.
local NEVER = -2^62

local function insort(list, value)
  local at = #list
  while at > 0 and list[at] > value do
    list[at + 1] = list[at]
    at = at - 1
  end
  list[at + 1] = value
end

-- The earliest moment from this one on that is a gap away from all grants; and where to look on for a later one.
local function clear_of(grants, moment, gap, at)
  while at <= #grants and grants[at] - moment < gap do
    if grants[at] > moment - gap then moment = grants[at] + gap end
    at = at + 1
  end
  return moment, at
end

local function numbers(words)
  for at, word in ipairs(words) do words[at] = tonumber(word) end
  return words
end

-- Which earlier grants bound the next `count`.
local function counted(grants, count, terms)
  local some, back = math.min(count, terms.hits), {}
  if some == 0 then return back end
  local first = redis.call('ZCARD', grants) - terms.hits
  local final = first + some - 1
  for _ = first, math.min(final, -1) do back[#back + 1] = NEVER end
  if final < 0 then return back end
  for _, one in ipairs(redis.call('ZRANGE', grants, math.max(first, 0), final)) do back[#back + 1] = tonumber(one) end
  return back
end

local function moments(grants, count, start, terms, others)
  local near = numbers(redis.call('ZRANGEBYSCORE', grants, '(' .. whole(start - terms.gap), '+inf'))
  local back, given, at, beside = counted(grants, count, terms), {}, 1, 1
  for number = 1, count do
    if terms.hits > 0 then start = math.max(start, back[number] + terms.window) end
    local own
    repeat
      own, at = clear_of(near, start, terms.gap, at)
      start, beside = clear_of(others, own, terms.apart, beside)
    until start == own
    insort(near, start)
    insort(back, start)
    given[number] = start
  end
  return given
end
