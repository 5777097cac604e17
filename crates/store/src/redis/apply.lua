-- Applies one batch: its records first, then its effects, all in one atomic step.
-- ARGV: hash, expected owner, expected watermark, number of records to remove and their names, number of records to
-- write and their names and values; then runs of commands alike: what they have in common, number of commands, and
-- the arguments of all of them. In common they have "KIND DATABASE WIDTH NAME", where WIDTH is the number of arguments
-- besides the name, and KIND 'plain' (SET key value), 'promised' (another one acknowledged early), 'flush' or 'other'.
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
local runs, values = 6 + removed + 2 * written, #ARGV
local known = {}
local function in_common(text)
  local run = known[text]
  if not run then
    local kind, database, width, name = string.match(text, '^(%l+) (%d+) (%d+) (.*)$')
    run = {kind = kind, database = database, width = tonumber(width), name = name}
    known[text] = run
  end
  return run
end
-- Calls f for each run: what its commands have in common, how many they are, the number of the first one from 0, and
-- where its arguments are.
local function each_run(f)
  local at, ordinal = runs, 0
  while at <= values do
    local run, count = in_common(ARGV[at]), tonumber(ARGV[at + 1])
    local answer = f(run, count, ordinal, at + 2)
    if answer then return answer end
    at, ordinal = at + 2 + run.width * count, ordinal + count
  end
end
-- Whether the commands acknowledged early are allowed on names that nobody can have thought of: then on all.
local function is_unrestricted()
  local may = redis.acl_check_cmd
  for _, key in ipairs({OWNER, '\0' .. string.reverse(OWNER)}) do
    if not (may('SET', key, 'v') and may('MSET', key, 'v') and may('SETEX', key, '1', 'v')
      and may('PSETEX', key, '1', 'v')) then
      return false
    end
  end
  return may('SELECT', '0')
end

if redis.acl_check_cmd then
  if removed > 0 and not redis.acl_check_cmd('HDEL', HASH, '') then return {err = 'NOPERM HDEL is not allowed'} end
  local unrestricted
  local refused = each_run(function(run, count, ordinal, at)
    if run.kind == 'plain' or run.kind == 'promised' then
      if unrestricted == nil then
        local asked, answer = pcall(is_unrestricted)
        unrestricted = asked and answer
      end
      if unrestricted then return end
    end
    for i = 0, count - 1 do
      local from = at + i * run.width
      local asked, may = pcall(redis.acl_check_cmd, run.name, unpack(ARGV, from, from + run.width - 1))
      if not asked then return {err = 'REFUSED ' .. ordinal + i .. ' Redis does not know the command'} end
      if not may then return {err = 'NOPERM ' .. run.name .. ' is not allowed on its key'} end
    end
    if run.database ~= '0' and not redis.acl_check_cmd('SELECT', run.database) then
      return {err = 'NOPERM SELECT is not allowed'}
    end
  end)
  if refused then return refused end
end
-- Whether Redis takes writes shows at the first one, which changes nothing. Then it is not asked again.
local reply = redis.pcall('HSET', HASH, 'owner', OWNER)
if type(reply) == 'table' then return {err = (string.gsub(reply.err, '^-', ''))} end
for from = 6 + removed, runs - 1, 2000 do
  redis.call('HSET', HASH, unpack(ARGV, from, math.min(from + 1999, runs - 1)))
end
for from = 5, 4 + removed, 2000 do
  redis.call('HDEL', HASH, unpack(ARGV, from, math.min(from + 1999, 4 + removed)))
end

local failed, current = {}, '0'
local function error_of(reply) return type(reply) == 'table' and reply.err end
local function one_by_one(run, count, ordinal, at)
  for i = 0, count - 1 do
    local from = at + i * run.width
    local reply
    if run.kind == 'flush' then
      reply = pmnet_flush(run.database, {run.name, unpack(ARGV, from, from + run.width - 1)})
    else
      reply = redis.pcall(run.name, unpack(ARGV, from, from + run.width - 1))
    end
    if error_of(reply) then failed[#failed + 1] = ordinal + i .. ' ' .. string.gsub(reply.err, '^-', '') end
  end
end
-- Most SETs in one MSET: Lua's stack holds about 8,000 values.
local TOGETHER = 2000
each_run(function(run, count, ordinal, at)
  if run.database ~= current then
    redis.call('SELECT', run.database)
    current = run.database
  end
  if run.kind ~= 'plain' then return one_by_one(run, count, ordinal, at) end
  for i = 0, count - 1, TOGETHER do
    local n, from = math.min(TOGETHER, count - i), at + 2 * i
    -- An MSET that is refused has changed nothing, and SET may be allowed where MSET is not.
    local refused = error_of(redis.pcall('MSET', unpack(ARGV, from, from + 2 * n - 1)))
    if refused then one_by_one(run, n, ordinal + i, from) end
  end
end)
return failed
