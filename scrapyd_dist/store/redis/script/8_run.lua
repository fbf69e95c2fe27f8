-- Make the step that was asked for, or repeat the answer that it got before; of the refused ones nothing is kept.

local before = verbs[verb] and redis.call('GET', token)
if before then return before end
local answer = unmet() or (verbs[verb] or looks[verb])()
local text = cjson.encode(answer)
if verbs[verb] and not (answer.refused or answer.seen) then redis.call('SET', token, text, 'EX', kept) end
return text
