-- Steps of the throttle. Its keys, behind `t:`, are `version`; `rules`, JSON by domain; `domains`, by when they were
-- last asked for; of a domain `d:<domain>`, its standing, `p:<domain>`, its pages by budget, and `k:<domain>`, its
-- keys, each with the moment before which it has no room left, when that was seen, and its terms (hits, window, gap,
-- apart); and of a key `g:<key>`, its grants.

-- Seconds after which what is known of a domain goes, where nobody has asked for it.
local DOMAIN_STAYS = 90 * 86400

-- Grants of the domain's other keys that may be too near.
local function others_of(base, ask, start, terms)
  local others = {}
  if terms.apart == 0 then return others end
  for _, key in ipairs(redis.call('HKEYS', base .. 'k:' .. ask.domain)) do
    if key ~= ask.key then
      local later = redis.call('ZRANGEBYSCORE', base .. 'g:' .. key, '(' .. whole(start - terms.apart), '+inf')
      for _, at in ipairs(later) do others[#others + 1] = tonumber(at) end
    end
  end
  table.sort(others)
  return others
end

-- Members are the moments themselves: no two of a key are the same.
local function add_grants(grants, given)
  for from = 1, #given, 1000 do  -- only so many words fit into one command
    local added = {}
    for at = from, math.min(#given, from + 999) do
      added[#added + 1] = given[at]
      added[#added + 1] = given[at]
    end
    redis.call('ZADD', grants, unpack(added))
  end
end

local function take_moments(base, ask, count, start, terms, now)
  local keys, grants = base .. 'k:' .. ask.domain, base .. 'g:' .. ask.key
  local named = {terms.hits, terms.window, terms.gap, terms.apart}
  for at, number in ipairs(named) do named[at] = whole(number) end
  named = table.concat(named, ' ')
  local full, seen, known = string.match(redis.call('HGET', keys, ask.key) or '', '^(%d+) (%d+) (.*)$')
  -- A clock that was set back knows nothing of the moments that it shows again.
  if known == named and now >= tonumber(seen) then start = math.max(start, tonumber(full)) end
  local memory = math.max(2 * terms.window, 2 * terms.gap, REMEMBERED)
  redis.call('ZREMRANGEBYSCORE', grants, '-inf', '(' .. whole(now - memory))
  local given = moments(grants, count, start, terms, others_of(base, ask, start, terms))
  for at, moment in ipairs(given) do given[at] = whole(moment) end
  add_grants(grants, given)
  redis.call('HSET', keys, ask.key, table.concat({given[count], whole(now), named}, ' '))
  redis.call('PEXPIREAT', grants, whole((tonumber(given[count]) + memory) / 1000 + 1000))
  return given
end

local function taken_ask()
  local ask = {key = take(), domain = take(), count = count()}
  local hits, window = optional(take()), optional(take())
  ask.moderated = take() == '1'
  if hits then ask.limit = {hits = hits, window = window, moderated = ask.moderated} end
  ask.pages, ask.budget = optional(take()), take()
  return ask
end

-- How many of the pages asked for are left, and how many are used then; they are counted.
local function take_pages(base, ask)
  if not ask.pages then return ask.count, '0' end
  local pages = base .. 'p:' .. ask.domain
  local used = tonumber(redis.call('HGET', pages, ask.budget) or 0)
  local number = math.max(0, math.min(ask.count, ask.pages - used))
  if number > 0 then redis.call('HINCRBY', pages, ask.budget, number) end
  return number, whole(used + number)
end

local function asked(base, domain, now)
  redis.call('ZADD', base .. 'domains', whole(now), domain)
  redis.call('ZREMRANGEBYSCORE', base .. 'domains', '-inf', whole(now - DOMAIN_STAYS * SECOND))
  for _, kind in ipairs({'d:', 'k:', 'p:'}) do redis.call('EXPIRE', base .. kind .. domain, DOMAIN_STAYS) end
end

-- Of each ask: its word (-, free or held), the pages of its budget that are used (0, if nobody counts), how many
-- permits, and their moments.
function verbs.permits()
  local base, now, answer = take(), micros(), {'ok'}
  answer[2], answer[3] = whole(now), redis.call('GET', base .. 'version') or '0'
  for _ = 1, count() do
    local ask = taken_ask()
    local standing = standing_of(base, ask.domain)
    local terms, word = terms_of(ask, there_of(base, ask.domain), standing, now)
    local number, used, given = 0, '0', {}
    if terms then
      number, used = take_pages(base, ask)
      if number > 0 then
        given = take_moments(base, ask, number, math.max(now, standing.rest_until), terms, now)
      end
      asked(base, ask.domain, now)
    end
    for _, one in ipairs({word or '-', used, tostring(#given)}) do answer[#answer + 1] = one end
    for _, one in ipairs(given) do answer[#answer + 1] = one end
  end
  return answer
end

-- Nobody knows any more how far the key is full; nor any other key of the domain that has to keep away from it.
local function make_room(keys, key)
  local found = redis.call('HGETALL', keys)
  for at = 1, #found, 2 do
    local terms, apart = string.match(found[at + 1], '^%d+ (.* (%d+))$')
    if found[at] == key or apart ~= '0' then redis.call('HSET', keys, found[at], '0 ' .. terms) end
  end
end

-- Of each permit: its key, domain, moment and, unless it is empty, the budget of pages that it was counted in.
function verbs.returned()
  local base = take()
  for _ = 1, count() do
    local key, domain, at, budget = take(), take(), take(), take()
    local keys, pages = base .. 'k:' .. domain, base .. 'p:' .. domain
    if redis.call('ZREM', base .. 'g:' .. key, at) == 1 then
      make_room(keys, key)
      if budget ~= '' then redis.call('HINCRBY', pages, budget, -1) end
    end
  end
  return {'ok'}
end

-- Of each domain: when the refused request had its permit, the rest, the delay, the wanted gap, the longest one, and
-- whether the answers were good; what is empty is not told.
function verbs.news()
  local base, now, slowed = take(), micros(), false
  for _ = 1, count() do
    local domain, news = take(), {refused = optional(take()), rest = optional(take()), delay = optional(take())}
    news.target, news.longest, news.answered = optional(take()), optional(take()), take() == '1'
    local new, slower = heeded(standing_of(base, domain), news, now)
    local words = {}
    for _, name in ipairs(STANDING) do
      words[#words + 1] = name
      words[#words + 1] = name == 'pace' and string.format('%.17g', new.pace) or whole(new[name])
    end
    redis.call('HSET', base .. 'd:' .. domain, unpack(words))
    asked(base, domain, now)
    slowed = slowed or slower
  end
  if slowed then redis.call('INCR', base .. 'version') end
  return {'ok', redis.call('GET', base .. 'version') or '0'}
end

-- Rules, as JSON, an empty one to be removed; with `1` in front all others go.
function verbs.rules()
  local base, replaces, wanted, changed = take(), take() == '1', {}, false
  local key = base .. 'rules'
  for _ = 1, count() do
    local domain = take()
    wanted[domain] = take()
  end
  if replaces then
    for _, domain in ipairs(redis.call('HKEYS', key)) do wanted[domain] = wanted[domain] or '' end
  end
  for domain, text in pairs(wanted) do
    if (redis.call('HGET', key, domain) or '') ~= text then
      changed = true
      if text == '' then redis.call('HDEL', key, domain) else redis.call('HSET', key, domain, text) end
    end
  end
  if changed then redis.call('INCR', base .. 'version') end
  return {'ok', redis.call('GET', base .. 'version') or '0'}
end

-- Whether something of a domain counts still, however long ago it was.
local function still_counts(base, domain, now)
  if standing_of(base, domain).rest_until > now then return true end
  local keys = redis.call('HGETALL', base .. 'k:' .. domain)
  for at = 1, #keys, 2 do
    local window, gap = unpack(numbers({string.match(keys[at + 1], '(%d+) (%d+) %d+$')}))
    local since = '(' .. whole(now - math.max(window, gap))
    if redis.call('ZCOUNT', base .. 'g:' .. keys[at], since, '+inf') > 0 then return true end
  end
  return false
end

function verbs.forget_permits()
  local base, before, now = take(), take(), micros()
  for _, domain in ipairs(redis.call('ZRANGEBYSCORE', base .. 'domains', '-inf', '(' .. before, 'LIMIT', 0, take())) do
    if still_counts(base, domain, now) then
      redis.call('ZADD', base .. 'domains', before, domain)
    else
      for _, key in ipairs(redis.call('HKEYS', base .. 'k:' .. domain)) do redis.call('UNLINK', base .. 'g:' .. key) end
      redis.call('UNLINK', base .. 'd:' .. domain, base .. 'k:' .. domain, base .. 'p:' .. domain)
      redis.call('ZREM', base .. 'domains', domain)
    end
  end
  return {'ok', tostring(redis.call('ZCOUNT', base .. 'domains', '-inf', '(' .. before))}
end
