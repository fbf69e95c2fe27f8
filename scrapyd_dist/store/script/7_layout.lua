-- The layout of the keys, and how a store of an older one gets there, in one step.

-- Since the second layout a crawl has an index beside its batches and attempts.
local function add_index()
  if redis.call('HGET', base .. 'meta', 'indexed') then return end
  redis.call('HSET', base .. 'meta', 'indexed', 1)
  for number = 1, limit_in(base .. 'meta', 'batches', 1e7) do batch_enters(number) end
  for _, name in ipairs(redis.call('SMEMBERS', base .. 'attempts')) do attempt_goes(name, 'SADD') end
end

-- Since the third one all keys have a hash tag.
local function rename(was)
  local glob = string.gsub(was, '[%*%?%[%]\\]', '\\%0')
  for _, key in ipairs(redis.call('KEYS', glob .. '*')) do
    local name = string.sub(key, #was + 1)
    -- Others are of a store whose prefix begins like this one.
    if name == 'crawls' or string.match(name, '^nodes?:') or name == 'nodes' or string.match(name, '^[ct]:') then
      redis.call('RENAME', key, base .. name)
    end
  end
end

-- The answer is the layout that is there now. To ask again changes nothing, so this needs no token.
-- `was`: the prefix without a tag, where it had none; a server that is no cluster keeps the layout there, too, so that an
-- older version sees it.
function looks.layout()
  local prefix, own, was = base, argument.own, argument.was
  local there = tonumber(redis.call('GET', prefix .. 'layout') or was and redis.call('GET', was .. 'layout') or 0)
  if there == own and redis.call('EXISTS', prefix .. 'layout') == 1 or there > own then return {layout = there} end
  if was then
    if there > 0 then rename(was) end
    redis.call('SET', was .. 'layout', own)
  end
  for _, id in ipairs(redis.call('HKEYS', prefix .. 'crawls')) do
    base = prefix .. 'c:' .. id .. ':'
    if id ~= '' then add_index() end
  end
  redis.call('SET', prefix .. 'layout', own)
  return {layout = own}
end
