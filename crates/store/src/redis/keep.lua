-- Keeps the text of a script that Redis has run by EVAL_RO, so that EVALSHA finds it.
-- KEYS: records hash, scripts hash. ARGV: expected owner, text, largest number of scripts.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
local field = 'script/' .. redis.sha1hex(ARGV[2])
if redis.call('HEXISTS', KEYS[2], field) == 1 then return 0 end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[3]) then return 0 end
if not loadstring((string.gsub(ARGV[2], '^#![^\n]*', ''))) then return 0 end
return redis.call('HSET', KEYS[2], field, ARGV[2])
