-- Looks, which change nothing: each is of one moment, by this server's clock.

local looks = {}

function looks.expired()
  return {attempts = redis.call('ZRANGEBYSCORE', base .. 'leases', '-inf', string.format('(%.6f', now()))}
end

function looks.backlog()
  local time = string.format('%.6f', now())
  return {
    standing = redis.call('HGET', base .. 'crawl', 'standing') or 'false',
    expired = redis.call('ZCOUNT', base .. 'leases', '-inf', '(' .. time),
    acked = redis.call('SCARD', base .. 'open:acked'),
    producers = redis.call('ZRANGEBYSCORE', base .. 'producers', time, '+inf'),
    lost = redis.call('ZRANGEBYSCORE', base .. 'producers', '-inf', '(' .. time),
    slots = redis.call('HGETALL', base .. 'slots'),
  }
end
