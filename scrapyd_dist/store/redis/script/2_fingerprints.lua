-- Fingerprints lie in many small hashes, which Redis keeps as plain lists of bytes as long as they are small. Their number
-- grows with the crawl, one at a time (linear hashing), so that each holds some PER_BUCKET of them and at most twice that.
local PER_BUCKET = 100

-- From a blob.
local function prints_in(text)
  local prints, at = {}, 1
  while at <= #text do
    local size = string.byte(text, at)
    prints[#prints + 1] = string.sub(text, at + 1, at + size)
    at = at + 1 + size
  end
  return prints
end

local function hash_of(print)
  return tonumber(string.sub(redis.sha1hex(print), 1, 8), 16)
end

-- How many buckets there are, and the power of two that they have outgrown.
local function size_of()
  local buckets, level = math.max(1, limit_in(base .. 'meta', 'buckets', 1e8)), 1
  while level * 2 <= buckets do level = level * 2 end
  return buckets, level
end

local function bucket_of(print, buckets, level)
  local hash = hash_of(print)
  local bucket = hash % (level * 2)
  return bucket < buckets and bucket or hash % level
end

local function remember(prints)
  local meta = base .. 'meta'
  local size = tonumber(redis.call('HGET', meta, 'prints') or 0)
  local buckets, level = size_of()
  for _, print in ipairs(prints) do
    size = size + redis.call('HSETNX', base .. 'f:' .. bucket_of(print, buckets, level), print, '')
    if size > buckets * PER_BUCKET then
      local old, new = base .. 'f:' .. (buckets - level), base .. 'f:' .. buckets
      for _, other in ipairs(redis.call('HKEYS', old)) do
        if hash_of(other) % (level * 2) == buckets then
          redis.call('HDEL', old, other)
          redis.call('HSET', new, other, '')
        end
      end
      buckets = buckets + 1
      if buckets == level * 2 then level = buckets end
    end
  end
  redis.call('HSET', meta, 'prints', size, 'buckets', buckets)
end

-- The places, in the list, of those that are there.
local function known(prints)
  local buckets, level = size_of()
  local places = {}
  for place, print in ipairs(prints) do
    if redis.call('HEXISTS', base .. 'f:' .. bucket_of(print, buckets, level), print) == 1 then
      places[#places + 1] = place
    end
  end
  return places
end

local function forget(prints)
  local buckets, level = size_of()
  local gone = 0
  for _, print in ipairs(prints) do
    gone = gone + redis.call('HDEL', base .. 'f:' .. bucket_of(print, buckets, level), print)
  end
  if gone > 0 then redis.call('HINCRBY', base .. 'meta', 'prints', -gone) end
end
