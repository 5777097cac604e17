-- Applies one batch: its records first, then its effects, all in one atomic step.
-- ARGV: hash, expected owner, expected watermark, number of records to remove and their names, number of records to
-- write and their names and values; 1 if there are no commands but those acknowledged early; then runs of commands
-- alike: their database, argument count and number, and the arguments of all of them.
--
-- Rights are looked at for all of it before anything happens (redis.acl_check_cmd, Redis 7), and nobody can change
-- them meanwhile: in a MULTI they can change between a command's turn to be queued and EXEC.
local HASH, OWNER, WATERMARK = ARGV[1], ARGV[2], ARGV[3]
local owner = redis.call('HGET', HASH, 'owner')
if owner and owner ~= OWNER then return {err = 'FENCED'} end
if not owner or (redis.call('HGET', HASH, 'watermark') or '') ~= WATERMARK then
  return {err = 'TRYAGAIN the records were changed by somebody else'}
end

local removed = tonumber(ARGV[4])
local written = tonumber(ARGV[5 + removed])
local usual = 6 + removed + 2 * written
-- Calls f with the number of each command from 0, its database, and where its arguments are.
local function each_command(f)
  local at, ordinal = usual + 1, 0
  while at <= #ARGV do
    local database, arguments, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    at = at + 3
    for _ = 1, count do
      local error = f(ordinal, database, at, at + arguments - 1)
      if error then return error end
      at, ordinal = at + arguments, ordinal + 1
    end
  end
end
-- Whether the usual commands are allowed on names that nobody can have thought of: then on all.
local function is_unrestricted(may)
  for _, key in ipairs({OWNER, '\0' .. string.reverse(OWNER)}) do
    if not (may('SET', key, 'v') and may('MSET', key, 'v') and may('SETEX', key, '1', 'v')
      and may('PSETEX', key, '1', 'v')) then
      return false
    end
  end
  return may('SELECT', '0')
end
local function is_flush(name)
  name = string.upper(name)
  return name == 'FLUSHALL' or name == 'FLUSHDB'
end

if redis.acl_check_cmd then
  if removed > 0 and not redis.acl_check_cmd('HDEL', HASH, '') then return {err = 'NOPERM HDEL is not allowed'} end
  local skip = ARGV[usual] == '1' and is_unrestricted(redis.acl_check_cmd)
  local refused = not skip and each_command(function(effect, database, first, last)
    local known, may = pcall(redis.acl_check_cmd, unpack(ARGV, first, last))
    if not known then return {err = 'REFUSED ' .. effect .. ' Redis does not know the command'} end
    if not may then return {err = 'NOPERM ' .. ARGV[first] .. ' is not allowed on its key'} end
    if database ~= '0' and not redis.acl_check_cmd('SELECT', database) then
      return {err = 'NOPERM SELECT is not allowed'}
    end
  end)
  if refused then return refused end
end
-- Whether Redis takes writes shows at the first one, which changes nothing. Then it is not asked again.
local reply = redis.pcall('HSET', HASH, 'owner', OWNER)
if type(reply) == 'table' then return {err = (string.gsub(reply.err, '^-', ''))} end
for from = 6 + removed, usual - 1, 2000 do
  redis.call('HSET', HASH, unpack(ARGV, from, math.min(from + 1999, usual - 1)))
end
for from = 5, 4 + removed, 2000 do
  redis.call('HDEL', HASH, unpack(ARGV, from, math.min(from + 1999, 4 + removed)))
end

local failed, current = {}, '0'
each_command(function(effect, database, first, last)
  if database ~= current then
    redis.call('SELECT', database)
    current = database
  end
  local reply
  if ARGV[usual] ~= '1' and is_flush(ARGV[first]) then
    reply = pmnet_flush(database, {unpack(ARGV, first, last)})
  else
    reply = redis.pcall(unpack(ARGV, first, last))
  end
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = effect .. ' ' .. string.gsub(reply.err, '^-', '')
  end
end)
return failed
