-- When the next permits of a key may be used: throttle/permits.py in this language, by the same names.

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

-- This moment, if no window around it has all its hits; otherwise a later one that may do.
local function with_room(own, moment, terms)
  local hits, window, place = terms.hits, terms.window, #own
  if hits == 0 then return moment end
  while place > 0 and own[place] > moment do place = place - 1 end
  if place >= hits and moment - own[place - hits + 1] < window then return own[place - hits + 1] + window end
  for first = math.max(1, place - hits + 2), math.min(place, #own - hits) + 1 do
    if own[first + hits - 1] - math.min(own[first], moment) < window then return own[place + 1] end
  end
  return moment
end

-- The terms without the window, where so many more fit into any: its grants need not be read then.
local function binding(grants, count, start, terms)
  if count > terms.hits then return terms end
  local first = redis.call('ZREVRANGE', grants, terms.hits - count, terms.hits - count)[1]
  if first and tonumber(first) > start - terms.window then return terms end
  return {hits = 0, window = terms.window, gap = terms.gap, apart = terms.apart}
end

local function moments(grants, count, start, terms, others)
  terms = binding(grants, count, start, terms)
  local reach = terms.hits > 0 and math.max(terms.window, terms.gap) or terms.gap
  local own = numbers(redis.call('ZRANGEBYSCORE', grants, '(' .. whole(start - reach), '+inf'))
  local given, at, beside = {}, 1, 1
  for number = 1, count do
    local found
    repeat
      found = start
      start, at = clear_of(own, start, terms.gap, at)
      start, beside = clear_of(others, start, terms.apart, beside)
      start = with_room(own, start, terms)
    until start == found or start ~= start  -- what is no number is not equal to itself
    insort(own, start)
    given[number] = start
  end
  return given
end
