-- What was asked for.

if verb == 'layout' then
  -- Never back: a newer one may have come meanwhile.
  local key, own = take(), tonumber(take())
  local there = tonumber(redis.call('GET', key) or 0)
  if there < own then redis.call('SET', key, own) end
  return {'ok', tostring(math.max(there, own))}
end
if looks[verb] then return looks[verb]() end
local before = redis.call('GET', token)
if before then
  local answer = {}
  for word in string.gmatch(before, '%S+') do answer[#answer + 1] = word end
  return answer
end
local answer = verbs[verb]()
if answer[1] == 'ok' then redis.call('SET', token, table.concat(answer, ' '), 'EX', kept) end
return answer
