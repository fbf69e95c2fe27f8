-- Looks, which change nothing: each is of one moment, by this server's clock.

local looks = {}

function looks.expired()
  return redis.call('ZRANGEBYSCORE', take() .. 'leases', '-inf', string.format('(%.6f', now()))
end

-- The places of those fingerprints that are there.
function looks.seen()
  local no = unmet()
  if no then return no end
  local places = known(take(), taken(#ARGV - last))
  table.insert(places, 1, 'ok')
  return places
end

-- Whether it is standing, leases that ran out, acked attempts, how many producers, these and whether they are lost, and
-- then the counts of its slots.
function looks.backlog()
  local no = unmet()
  if no then return no end
  local base, time = take(), string.format('(%.6f', now())
  local lost = redis.call('ZRANGEBYSCORE', base .. 'producers', '-inf', time)
  local alive = redis.call('ZRANGEBYSCORE', base .. 'producers', string.sub(time, 2), '+inf')
  local words = {'ok', redis.call('HGET', base .. 'crawl', 'standing') or 'false'}
  words[3] = tostring(redis.call('ZCOUNT', base .. 'leases', '-inf', time))
  words[4] = tostring(redis.call('SCARD', base .. 'open:acked'))
  for _, some in ipairs({alive, lost, redis.call('HGETALL', base .. 'slots')}) do
    words[#words + 1] = tostring(#some)
    for _, word in ipairs(some) do words[#words + 1] = word end
  end
  return words
end
