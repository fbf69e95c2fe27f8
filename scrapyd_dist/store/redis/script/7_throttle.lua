-- Steps of the throttle. Its keys, behind `t:`, are `version`; `changes`, the latest ones, a version and a domain each,
-- by version; `rules`, JSON by domain; `domains`, by when they were last asked for, and `looked`, how far they were
-- looked at; of a domain `d:<domain>`, its standing, `p:<domain>`, its pages by budget, and `k:<domain>`, its keys, each
-- with the moment before which it has no room left, when that was seen, and its terms (hits, window, gap, apart); and of
-- a key `g:<key>`, its grants.

-- Seconds after which what is known of a domain goes, where no worker has asked for it.
local DOMAIN_STAYS = 90 * 86400
-- For how many seconds changes are remembered at most.
local CHANGES_STAY = 86400
local CHANGES, FAR_OFF = shared.CHANGES, shared.FAR_OFF

-- These domains have changed, if any.
local function note(domains)
  if #domains == 0 then return end
  local key, version = base .. 'changes', redis.call('INCR', base .. 'version')
  if #domains > CHANGES then domains = {'*'} end
  for _, domain in ipairs(domains) do
    -- A name that would be two words of an answer, or none.
    if domain == '' or string.find(domain, '%s') then domain = '*' end
    redis.call('ZADD', key, version, version .. ' ' .. domain)
  end
  -- A version goes with all of its domains: what is left of it would look like all.
  local over = redis.call('ZREVRANGE', key, CHANGES, CHANGES, 'WITHSCORES')
  if over[2] then redis.call('ZREMRANGEBYSCORE', key, '-inf', over[2]) end
  redis.call('EXPIRE', key, CHANGES_STAY)
end

-- What has changed since the known version: a version and a domain each.
local function changes_since(known, version)
  local changes = {}
  if known and known ~= tonumber(version) then
    for _, one in ipairs(redis.call('ZRANGEBYSCORE', base .. 'changes', '(' .. whole(known), '+inf')) do
      local at, domain = string.match(one, '^(%d+) (.*)$')
      changes[#changes + 1] = {tonumber(at), domain}
    end
  end
  return changes
end

local function version_of_rules()
  return redis.call('GET', base .. 'version') or '0'
end

-- Grants of the domain's other keys that may be too near.
local function others_of(ask, start, terms)
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

local function take_moments(ask, count, start, terms, now)
  local keys, grants = base .. 'k:' .. ask.domain, base .. 'g:' .. ask.key
  local named = {terms.hits, terms.window, terms.gap, terms.apart}
  for at, number in ipairs(named) do named[at] = whole(number) end
  named = table.concat(named, ' ')
  local full, seen, known = string.match(redis.call('HGET', keys, ask.key) or '', '^(%d+) (%d+) (.*)$')
  -- A clock that was set back knows nothing of the moments that it shows again.
  if known == named and now >= tonumber(seen) then start = math.max(start, tonumber(full)) end
  local memory = math.max(2 * terms.window, 2 * terms.gap, shared.REMEMBERED)
  redis.call('ZREMRANGEBYSCORE', grants, '-inf', '(' .. whole(now - memory))
  local given = moments(grants, count, start, terms, others_of(ask, start, terms))
  for at, moment in ipairs(given) do given[at] = whole(moment) end
  add_grants(grants, given)
  redis.call('HSET', keys, ask.key, table.concat({given[count], whole(now), named}, ' '))
  redis.call('PEXPIREAT', grants, whole((tonumber(given[count]) + memory) / 1000 + 1000))
  return given
end

-- How many of the pages asked for are left, and how many are used then; they are counted.
local function take_pages(ask)
  if not ask.pages then return ask.count, 0 end
  local pages = base .. 'p:' .. ask.domain
  local used = tonumber(redis.call('HGET', pages, ask.budget) or 0)
  local number = math.max(0, math.min(ask.count, ask.pages - used))
  if number > 0 then redis.call('HINCRBY', pages, ask.budget, number) end
  return number, used + number
end

-- Whether something of a domain counts still, however long ago it was; also where a limit gets harder.
local function still_counts(domain, standing, now)
  if standing.rest_until > now then return true end
  local keys = redis.call('HGETALL', base .. 'k:' .. domain)
  for at = 1, #keys, 2 do
    local window, gap = unpack(numbers({string.match(keys[at + 1], '(%d+) (%d+) %d+$')}))
    local since = '(' .. whole(now - 2 * math.max(window, gap))
    if redis.call('ZCOUNT', base .. 'g:' .. keys[at], since, '+inf') > 0 then return true end
  end
  return false
end

local function forget_domain(domain)
  for _, key in ipairs(redis.call('HKEYS', base .. 'k:' .. domain)) do redis.call('UNLINK', base .. 'g:' .. key) end
  redis.call('UNLINK', base .. 'd:' .. domain, base .. 'k:' .. domain, base .. 'p:' .. domain)
  redis.call('ZREM', base .. 'domains', domain)
end

-- Looks at the next few domains: what a broad crawl has left behind goes while another one comes. Pages count for as
-- long as there is their crawl, and a robots.txt is not read again by who knows it.
local function forget_few(now)
  local cursor, before = redis.call('GET', base .. 'looked') or '0', now - shared.IDLE_STAYS
  local found = redis.call('ZSCAN', base .. 'domains', cursor, 'COUNT', shared.CHECKED)
  redis.call('SET', base .. 'looked', found[1], 'EX', DOMAIN_STAYS)
  for at = 1, #found[2], 2 do
    local domain = found[2][at]
    if tonumber(found[2][at + 1]) < before and redis.call('EXISTS', base .. 'p:' .. domain) == 0 then
      local standing = standing_of(domain)
      if standing.delay == 0 and not still_counts(domain, standing, now) then forget_domain(domain) end
    end
  end
end

local function asked(domain, now)
  local is_new = redis.call('ZADD', base .. 'domains', whole(now), domain) == 1
  if is_new then forget_few(now) end
  redis.call('ZREMRANGEBYSCORE', base .. 'domains', '-inf', whole(now - DOMAIN_STAYS * SECOND))
  for _, kind in ipairs({'d:', 'k:', 'p:'}) do redis.call('EXPIRE', base .. kind .. domain, DOMAIN_STAYS) end
end

-- Moments are told as text: JSON in this language keeps 14 digits of a number.
function verbs.permits()
  local moment = micros()
  local version = version_of_rules()
  local answer = {now = whole(moment), version = version, changes = changes_since(argument.known, version), asks = {}}
  for number, ask in ipairs(argument.asks) do
    local standing = standing_of(ask.domain)
    local terms, word = terms_of(ask, there_of(ask.domain), standing, moment)
    local told = {word = word, used = 0, moments = {}}
    if terms then
      local count
      count, told.used = take_pages(ask)
      if count > 0 then
        told.moments = take_moments(ask, count, math.max(moment, standing.rest_until), terms, moment)
      end
      asked(ask.domain, moment)
    end
    answer.asks[number] = told
  end
  return answer
end

function looks.time()
  return {now = whole(micros())}
end

-- It is not known any more how far the key is full; nor any other key of the domain that has to keep away from it.
local function make_room(keys, key)
  local found = redis.call('HGETALL', keys)
  for at = 1, #found, 2 do
    local terms, apart = string.match(found[at + 1], '^%d+ (.* (%d+))$')
    if found[at] == key or apart ~= '0' then redis.call('HSET', keys, found[at], '0 ' .. terms) end
  end
end

-- Whether the return of a grant lets a far one of its key be had earlier, if it is requested anew.
local function frees(permit, moment)
  local known = redis.call('HGET', base .. 'k:' .. permit.domain, permit.key) or ''
  local hits, window, gap = string.match(known, '^%d+ %d+ (%d+) (%d+) (%d+)')
  local wait = tonumber((hits == '0' and gap or window) or 0)
  if wait < FAR_OFF or tonumber(permit.at) > moment then return false end
  return redis.call('ZCOUNT', base .. 'g:' .. permit.key, '(' .. whole(moment + FAR_OFF), '+inf') > 0
end

function verbs.returned()
  local moment, freed = micros(), {}
  for _, permit in ipairs(argument.permits) do
    local keys, pages = base .. 'k:' .. permit.domain, base .. 'p:' .. permit.domain
    if redis.call('ZREM', base .. 'g:' .. permit.key, permit.at) == 1 then
      make_room(keys, permit.key)
      -- A budget that was forgotten meanwhile stays so: with -1 it would be one page larger.
      if redis.call('HEXISTS', pages, permit.budget) == 1 then redis.call('HINCRBY', pages, permit.budget, -1) end
      if frees(permit, moment) then freed[#freed + 1] = permit.domain end
    end
  end
  note(freed)
  return {}
end

function verbs.news()
  local moment, slowed = micros(), {}
  for _, news in ipairs(argument.news) do
    local new, slower = heeded(standing_of(news.domain), news, moment)
    local words = {}
    for _, name in ipairs(STANDING) do
      words[#words + 1] = name
      words[#words + 1] = name == 'pace' and string.format('%.17g', new.pace) or whole(new[name])
    end
    redis.call('HSET', base .. 'd:' .. news.domain, unpack(words))
    asked(news.domain, moment)
    if slower then slowed[#slowed + 1] = news.domain end
  end
  note(slowed)
  local version = version_of_rules()
  return {version = version, changes = changes_since(argument.known, version)}
end

-- Rules by domain, as JSON; an empty text removes one.
function verbs.rules()
  local key, changed = base .. 'rules', {}
  for domain, text in pairs(argument.rules) do
    if (redis.call('HGET', key, domain) or '') ~= text then
      changed[#changed + 1] = domain
      if text == '' then redis.call('HDEL', key, domain) else redis.call('HSET', key, domain, text) end
    end
  end
  note(changed)
  return {version = version_of_rules()}
end

function verbs.forget_permits()
  local before, moment = argument.before, micros()
  for _, domain in ipairs(redis.call('ZRANGEBYSCORE', base .. 'domains', '-inf', '(' .. before, 'LIMIT', 0, argument.most)) do
    if still_counts(domain, standing_of(domain), moment) then
      redis.call('ZADD', base .. 'domains', before, domain)
    else
      forget_domain(domain)
    end
  end
  return {left = redis.call('ZCOUNT', base .. 'domains', '-inf', '(' .. before)}
end
