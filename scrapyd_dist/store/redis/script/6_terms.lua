-- How a domain stands, and what its keys have to keep to: throttle/domain_status.py in this language, by the same names.
-- Moments and spans are whole microseconds; these numbers hold them exactly. A test holds both to each other.

local SECOND, RECOVERY, SLOWEST = shared.SECOND, shared.RECOVERY, shared.SLOWEST
local REFUSED_GAP, DELAY_HOLDS = shared.REFUSED_GAP, shared.DELAY_HOLDS
local STANDING = {'rest_until', 'pace', 'slowed_at', 'delay', 'delayed_at', 'gap'}

local function whole(number)
  return string.format('%.0f', number)
end

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * SECOND + tonumber(time[2])
end

local function standing_of(domain)
  local found, standing = redis.call('HMGET', base .. 'd:' .. domain, unpack(STANDING)), {}
  for at, name in ipairs(STANDING) do standing[name] = tonumber(found[at] or (name == 'pace' and 1 or 0)) end
  return standing
end

local function pace_at(standing, now)
  local doublings = math.min(shared.MOST_DOUBLINGS, math.floor(math.max(0, now - standing.slowed_at) / RECOVERY))
  return math.min(1, standing.pace * 2 ^ doublings)
end

-- The rules of the domain and of all, those that there are.
local function there_of(domain)
  local there = {}
  for _, text in ipairs(redis.call('HMGET', base .. 'rules', domain, '*')) do
    if text then there[#there + 1] = said(text) end
  end
  return there
end

-- The limit of the first rule that has one, else the worker's; the worker chooses how it is spread.
local function limit_of(there, ask)
  local limit, moderated = ask.limit, ask.moderated
  if limit then moderated = limit.moderated end
  for at = #there, 1, -1 do
    if there[at].hits then limit = there[at] end
  end
  if not limit then return nil end
  local window = math.floor(limit.window * SECOND + 0.5)
  return {hits = limit.hits, window = math.max(1, window), moderated = moderated}
end

local function spread(limit, hits, apart)
  local window, gap = limit.window, math.max(1, apart)
  if limit.moderated then
    return {hits = 0, window = window, gap = math.max(gap, math.ceil(window / hits)), apart = apart}
  elseif hits < 1 then
    return {hits = 1, window = math.ceil(window / hits), gap = gap, apart = apart}
  end
  return {hits = math.floor(hits), window = window, gap = gap, apart = apart}
end

-- The terms, or the word of an answer without a permit.
local function terms_of(ask, there, standing, now)
  local limit, scale = limit_of(there, ask), there[1] and there[1].scale or 1
  if scale <= 0 then return nil, 'held' end
  for _, rule in ipairs(there) do
    if rule.blocked or rule.paused then return nil, 'held' end
  end
  local pace, gap = pace_at(standing, now), math.max(standing.delay, standing.gap)
  if not limit then
    if gap == 0 and pace < 1 then gap = REFUSED_GAP end
    if gap == 0 and standing.rest_until <= now and not ask.pages then return nil, 'free' end
    local apart = math.ceil(gap / pace)
    return {hits = 0, window = 0, gap = math.max(1, apart), apart = apart}
  end
  local hits = math.floor(limit.hits * scale + shared.ROUNDING)
  if hits < 1 then return nil, 'held' end
  return spread(limit, hits * pace, math.ceil(gap / pace))
end

local function gap_of(old, news)
  local new = math.min(math.max(news.target, math.floor((old + news.target) / 2)), news.longest)
  return news.answered and new or math.max(old, new)
end

local function heeded(old, news, now)
  local new = {}
  for name, value in pairs(old) do new[name] = value end
  if news.refused and news.refused > old.slowed_at then
    new.pace, new.slowed_at = math.max(SLOWEST, pace_at(old, now) / 2), now
  end
  if news.rest then new.rest_until = math.max(old.rest_until, now + news.rest) end
  if news.delay and (news.delay >= old.delay or now - old.delayed_at > DELAY_HOLDS) then
    new.delay, new.delayed_at = news.delay, now
  end
  if news.target then new.gap = gap_of(old.gap, news) end
  local slower = new.slowed_at ~= old.slowed_at or new.rest_until > math.max(old.rest_until, now)
  return new, slower or new.delay > old.delay or (new.gap > 0 and old.gap == 0)
end
