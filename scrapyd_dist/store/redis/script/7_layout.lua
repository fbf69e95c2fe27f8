-- The layout of the keys that is there; a new store gets that of the caller. To ask again changes nothing, so this needs
-- no token.
function looks.layout()
  local key = base .. 'layout'
  -- Only a new store is written to: a server whose memory is full can still be read.
  if redis.call('EXISTS', key) == 0 then redis.call('SET', key, argument.own) end
  return {layout = redis.call('GET', key)}
end
