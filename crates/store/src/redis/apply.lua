-- Applies one batch: its records first, then its effects, all in one atomic step. ARGV has, in this order: the hash;
-- the expected owner; the expected watermark; the number of keys for slots.lua, and these keys (in a Redis Cluster
-- only); the number of records to remove, and their names; the number of records to write, and their names and values;
-- then runs of similar commands. A run is the commands' common properties, the number of commands, and the arguments of
-- all its commands. The common properties are "KIND DATABASE WIDTH NAME". WIDTH is the number of arguments besides the
-- name. KIND is 'plain' (SET key value), 'promised' (another command acknowledged early), 'assumed' (clients may have
-- been told OK), 'flush' or 'other'.
--
-- Redis does not undo the effects of a script that fails. So every step that could fail is tried before anything
-- changes: the rights to the commands (redis.acl_check_cmd, Redis 7), and the commands that this script itself needs.
-- Rights cannot change while a script runs; in a MULTI they can change between the queueing of a command and EXEC. If a
-- command of this script still fails after the records have begun to change, the error's first word is BROKEN. Then
-- comes the number of the first command that has not run, or 'records'.
local HASH, OWNER, WATERMARK = ARGV[1], ARGV[2], ARGV[3]
local owner = redis.call('HGET', HASH, 'owner')
if owner and owner ~= OWNER then return {err = 'FENCED'} end
if not owner or (redis.call('HGET', HASH, 'watermark') or '') ~= WATERMARK then
  return {err = 'TRYAGAIN the records were changed by another process'}
end

local records = 5 + tonumber(ARGV[4])
local elsewhere = pmnet_elsewhere(5, records - 1)
if elsewhere then return elsewhere end
local removed = tonumber(ARGV[records])
local written = tonumber(ARGV[records + 1 + removed])
local runs, values = records + 2 + removed + 2 * written, #ARGV
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
-- Calls f for each run, with the run's common properties, its number of commands, the number of its first command (from
-- 0), and the index of its arguments.
local function each_run(f)
  local at, ordinal = runs, 0
  while at <= values do
    local run, count = in_common(ARGV[at]), tonumber(ARGV[at + 1])
    local answer = f(run, count, ordinal, at + 2)
    if answer then return answer end
    at, ordinal = at + 2 + run.width * count, ordinal + count
  end
end
local function error_of(reply) return type(reply) == 'table' and reply.err and string.gsub(reply.err, '^-', '') end
-- Maximum number of SETs in one MSET: Lua's stack holds about 8,000 values.
local TOGETHER = 2000
-- Calls f for each piece of a run of SETs, with the number of its first command (from 0), the number of its commands,
-- and the index of its arguments.
local function each_piece(count, at, f)
  for first = 0, count - 1, TOGETHER do
    local answer = f(first, math.min(TOGETHER, count - first), at + 2 * first)
    if answer then return answer end
  end
end

local may = redis.acl_check_cmd
-- All commands that Redis refuses for good and that were not promised. They are collected, so that one answer names all
-- of them.
local refusals = {'REFUSED'}
local function refuse(ordinal, why) refusals[#refusals + 1] = ordinal .. ' ' .. why end
-- Checks `count` commands from number `ordinal` on. Returns an error if a command is not allowed and must not be
-- dropped. An update for which clients may have been told OK waits until the right is given.
local function refusal(run, count, ordinal, at)
  for i = 0, count - 1 do
    local from = at + i * run.width
    local asked, allowed = pcall(may, run.name, unpack(ARGV, from, from + run.width - 1))
    if not asked then
      refuse(ordinal + i, 'Redis does not know the command')
    elseif not allowed then
      local why = 'NOPERM ' .. run.name .. ' is not allowed on its key'
      if run.kind ~= 'other' then return {err = why} end
      refuse(ordinal + i, why)
    end
  end
end
local refused = may and each_run(function(run, count, ordinal, at)
  if run.kind ~= 'plain' then return refusal(run, count, ordinal, at) end
  return each_piece(count, at, function(first, n, from)
    -- This call checks all keys of an MSET in one step.
    local asked, allowed = pcall(function()
      return may('MSET', unpack(ARGV, from, from + 2 * n - 1)) and may('SET', ARGV[from], ARGV[from + 1])
    end)
    if not (asked and allowed) then return refusal(run, n, ordinal + first, from) end
  end)
end)
if refused then return refused end
-- The first write shows whether Redis accepts writes; later writes of a script are not checked
-- again. The HSET changes nothing, and neither do the other checks.
local unwritten = error_of(redis.pcall('HSET', HASH, 'owner', OWNER)) or error_of(redis.pcall('HDEL', HASH, ''))
if unwritten then return {err = unwritten} end
local tried, moved = {['0'] = true}, false
local failure = each_run(function(run)
  if run.kind == 'flush' then
    moved = true
    local kept, why = pcall(pmnet_kept, run.database, run.name)
    why = not kept and (error_of(why) or tostring(why))
    if why then return {err = 'NOPERM what ' .. run.name .. ' needs to keep the records: ' .. why} end
  elseif not tried[run.database] then
    local why = error_of(redis.pcall('SELECT', run.database))
    if why then return {err = 'NOPERM SELECT ' .. run.database .. ': ' .. why} end
    tried[run.database], moved = true, true
  end
end)
if failure then return failure end
if moved then redis.call('SELECT', 0) end
if #refusals > 1 then return refusals end

local failed, current, ran = {}, '0', 'records'
local function note(ordinal, reply)
  local why = error_of(reply)
  if why then failed[#failed + 1] = ordinal .. ' ' .. why end
  ran = ordinal + 1
end
local function one_by_one(run, count, ordinal, at)
  for i = 0, count - 1 do
    local from = at + i * run.width
    if run.kind == 'flush' then
      note(ordinal + i, pmnet_flush(run.database, {run.name, unpack(ARGV, from, from + run.width - 1)}))
    else
      note(ordinal + i, redis.pcall(run.name, unpack(ARGV, from, from + run.width - 1)))
    end
  end
end
local whole, why = pcall(function()
  for from = records + 1, records + removed, 2000 do
    redis.call('HDEL', HASH, unpack(ARGV, from, math.min(from + 1999, records + removed)))
  end
  for from = records + 2 + removed, runs - 1, 2000 do
    redis.call('HSET', HASH, unpack(ARGV, from, math.min(from + 1999, runs - 1)))
  end
  ran = 0
  each_run(function(run, count, ordinal, at)
    if run.database ~= current then
      redis.call('SELECT', run.database)
      current = run.database
    end
    if run.kind ~= 'plain' then return one_by_one(run, count, ordinal, at) end
    each_piece(count, at, function(first, n, from)
      -- A refused MSET has changed nothing, and Redis may allow SET where it refuses MSET.
      local refused = error_of(redis.pcall('MSET', unpack(ARGV, from, from + 2 * n - 1)))
      if refused then return one_by_one(run, n, ordinal + first, from) end
      ran = ordinal + first + n
    end)
  end)
end)
if not whole then return {err = 'BROKEN ' .. ran .. ' ' .. (error_of(why) or tostring(why))} end
return failed
