-- Runs the commands of one request and writes their replies, as RESP bytes, into a record.
-- ARGV: db, RESP version of the reply, form ('s', or 'k' for a pack, which may end early), records hash, field, prefix,
-- scripts hash, expected watermark, expected owner, reply in a record whose request has begun, length of the longest reply that
-- can be passed on, reply in place of a longer one, number of keys for slots.lua and these keys (in a Redis
-- Cluster only); then for each command its number of arguments and the arguments, or 0 and a finished reply; before the commands of a
-- transaction, their number as a negative number.
-- Before this text: slots.lua, flush.lua; NOT_NOW, the first words of temporary errors (passing.rs); KNOWN, the names of all
-- commands; and UNNAMED, the commands that change keys without naming one (commands.rs).
--
-- No command takes effect before the record states that the request has begun. Redis checks whether it accepts writes
-- only at the first write of a script. So later writes cannot fail for a temporary reason, and the true reply can be
-- written at the end. The first word of an error of this script is PARTLY if the request had begun. If the request had
-- not begun, the first word is RAISED if the refusal does not come from Redis. Otherwise the error is Redis's own.
local DB, RESP, FORM, HASH, FIELD, PREFIX, SCRIPTS, WATERMARK, OWNER, BEGUN, REPLY_MAX, TOO_LONG = unpack(ARGV, 1, 12)
local SLOTS = 14
local COMMANDS = SLOTS + tonumber(ARGV[SLOTS - 1])
RESP, REPLY_MAX = tonumber(RESP), tonumber(REPLY_MAX)
local SCRIPTS_MAX, DEPTH_MAX, WHY_MAX = 10000, 64, 1000
local EXACT = 9007199254740992
-- Limits of a pack: the bytes of replies and the microseconds after which it ends; the longest reply of a read; the
-- number of parts between two checks of the time; the space for the head of its reply.
local PACK_REPLIES_MAX, PACK_MICROSECONDS_MAX, PACK_READ_MAX, PACK_LOOKS, PACK_HEADER = 262144, 20000, 16384, 16, 16

local function set(names)
  local t = {}
  for name in string.gmatch(names, '%S+') do t[name] = true end
  return t
end
-- Temporary errors. If a command of pmnet or of a client gets such an error before the request has
-- begun, nothing has happened, and the whole request can be tried again.
local PASSING = set(NOT_NOW)
-- Strings in the replies of these commands are doubles in RESP3.
local DOUBLES = set('ZADD ZINCRBY ZMSCORE ZSCORE')

-- Commands that change nothing: a request that has run only such commands may be killed, or tried again.
local READS = set([[GET MGET GETRANGE SUBSTR STRLEN EXISTS TYPE TTL PTTL EXPIRETIME PEXPIRETIME KEYS SCAN RANDOMKEY
  DBSIZE DUMP BITCOUNT BITPOS GETBIT BITFIELD_RO LCS SORT_RO HGET HMGET HGETALL HKEYS HVALS HLEN HEXISTS HSTRLEN
  HRANDFIELD HSCAN LRANGE LLEN LINDEX LPOS SMEMBERS SISMEMBER SMISMEMBER SCARD SRANDMEMBER SDIFF SINTER SUNION
  SINTERCARD SSCAN ZSCORE ZMSCORE ZCARD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYSCORE ZRANGEBYLEX ZREVRANGE
  ZREVRANGEBYSCORE ZREVRANGEBYLEX ZRANK ZREVRANK ZRANDMEMBER ZSCAN ZDIFF ZINTER ZUNION ZINTERCARD GEODIST GEOHASH
  GEOPOS GEOSEARCH GEORADIUS_RO GEORADIUSBYMEMBER_RO XRANGE XREVRANGE XLEN XREAD XPENDING XINFO TIME ECHO PING
  SELECT]])

local aborted
local function passing(message)
  return PASSING[string.match(message, '^-?(%u+)') or ''] ~= nil
end

-- The database that is selected now, whether the request has begun, and whether Redis would refuse commands that need
-- memory.
local current, begun, short_of_memory = '0', false, false
local function in_records(f, ...)
  local before = current
  redis.call('SELECT', 0)
  local result = f(...)
  redis.call('SELECT', before)
  return result
end
-- Writes `value` into the record, as the first write or as a later write. Returns nil, or the
-- reason why the write failed.
local function write_record(value)
  local reply = redis.pcall('HSET', HASH, FIELD, value)
  if type(reply) == 'table' and reply.err and string.match(reply.err, '^-?OOM') then
    -- If the script has changed something before, Redis does not refuse HSET. This HDEL counts as a change, and it
    -- needs no memory.
    short_of_memory = true
    reply = redis.pcall('HDEL', HASH, '')
    if type(reply) ~= 'table' then reply = redis.pcall('HSET', HASH, FIELD, value) end
  end
  local why = type(reply) == 'table' and reply.err
  -- An operator can remove the reason in every case, so the request is tried again.
  return why and 'TRYAGAIN the record of a request cannot be written: ' .. string.gsub(why, '^-', '') or nil
end
-- Begins the request in its record, before any command takes effect. Returns false if the record cannot be written;
-- then nothing has happened.
local function begin()
  if not begun then
    aborted = in_records(write_record, PREFIX .. BEGUN)
    begun = not aborted
  end
  return begun
end
local OOM = "OOM command not allowed when used memory > 'maxmemory'."
-- Whether Redis would refuse commands that need memory. The function checks this by a write, but only if INFO shows a
-- shortage, because a script that has written cannot be killed.
local function lacks_memory()
  local info = redis.call('INFO', 'memory')
  local used, most = string.match(info, '\nused_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
  if not used or not most or tonumber(most) == 0 or tonumber(used) <= tonumber(most) then return false end
  return begin() and short_of_memory
end
-- Returns Redis's description of the command with this name, if Redis has the command.
local function row_of(name)
  local reply = redis.pcall('COMMAND', 'INFO', name)
  return type(reply) == 'table' and not reply.err and reply[1]
end
-- Returns the elements of a column, which is a set in RESP3.
local function members_of(column)
  if not column or not column.set then return column or {} end
  local found = {}
  for member in pairs(column.set) do found[#found + 1] = member end
  return found
end
local function row_has(row, flag)
  for _, word in ipairs(members_of(row[3])) do
    if (type(word) == 'table' and word.ok or word) == flag then return true end
  end
  return false
end
-- Returns whether Redis reports this flag for the command. An unknown command has no flags.
local function has_flag(flag, name, argument)
  for _, full in ipairs({type(argument) == 'string' and name .. '|' .. argument or name, name}) do
    local row = row_of(full)
    if row then return row_has(row, flag) end
  end
  return false
end

-- The reply so far, in pieces. Each load reads all records, so a reply that is too long to be passed on is not kept in
-- its record.
local out, out_bytes = {}, 0
local function add(s)
  out_bytes = out_bytes + #s
  if out_bytes <= REPLY_MAX then out[#out + 1] = s else out = {} end
end
local function add_bulk(s)
  -- Neither this function nor the later functions copy a string that may be very long.
  if #s > REPLY_MAX then return add(s) end
  add('$' .. #s .. '\r\n' .. s .. '\r\n')
end
local function add_null() add(RESP == 3 and '_\r\n' or '$-1\r\n') end
local function add_error(message)
  if #message > REPLY_MAX then return add(message) end
  message = string.gsub(string.gsub(message, '^-', ''), '[\r\n]', ' ')
  add('-' .. message .. '\r\n')
end
local function add_integer(n)
  if n ~= n or n >= 9223372036854775808 or n < -9223372036854775808 then
    add(':-9223372036854775808\r\n')
  else
    add(':' .. string.format('%.0f', n < 0 and math.ceil(n) or math.floor(n)) .. '\r\n')
  end
end
-- Version number of Valkey; 0 on a Redis. (Valkey also reports a version of Redis.)
local VALKEY = redis.SERVER_NAME == 'valkey' and (redis.VALKEY_VERSION_NUM or 0x80000) or 0
-- Redis 7.2 and newer write the shortest text of a number, in a format of their own; older versions
-- write 17 digits.
local SHORTEST = (redis.REDIS_VERSION_NUM or 0) >= 0x70200
local function double_text(v)
  if not SHORTEST then return string.format('%.17g', v) end
  if v ~= v then return 'nan' end
  if v == math.floor(v) and math.abs(v) < 4611686018427387904 then return string.format('%.0f', v) end
  local text
  for digits = 0, 16 do
    text = string.format('%.' .. digits .. 'e', v)
    if tonumber(text) == v then break end
  end
  local sign, first, rest, exponent = string.match(text, '^(%-?)(%d)%.?(%d*)e([+-]%d+)$')
  -- The number is infinite, or not a number.
  if not sign then return text end
  exponent = tonumber(exponent)
  local digits, far = first .. rest, math.abs(exponent)
  local zeros = exponent - #digits + 1
  if zeros >= 0 and far < #digits + 7 then return sign .. digits .. string.rep('0', zeros) end
  if zeros < 0 and (zeros > -7 or far < 4) then
    local point = #digits + zeros
    if point <= 0 then return sign .. '0.' .. string.rep('0', -point) .. digits end
    return sign .. string.sub(digits, 1, point) .. '.' .. string.sub(digits, point + 1)
  end
  return sign .. first .. (rest == '' and '' or '.' .. rest) .. (exponent < 0 and 'e-' or 'e+') .. far
end
local function add_double(s)
  if RESP == 3 then add(',' .. s .. '\r\n') else add_bulk(s) end
end

local function one_line(s) return #s > REPLY_MAX and s or (string.gsub(s, '[\r\n]', ' ')) end
-- Returns a field of a table that a client's code may have made, without running any of that code.
local function field(v, name, kind)
  local found = rawget(v, name)
  return type(found) == kind and found or nil
end
-- Adds v, which was produced under RESP version `from`. `opts.user`: arrays end at their first nil, as in Redis.
local function add_value(v, from, opts, depth)
  local kind = type(v)
  if depth > DEPTH_MAX then
    return add_error('ERR reached lua stack limit')
  elseif kind == 'string' then
    if opts.doubles and RESP == 3 then return add(',' .. v .. '\r\n') else return add_bulk(v) end
  elseif kind == 'number' then
    return add_integer(v)
  elseif kind == 'boolean' then
    if from == 3 then
      return add(RESP == 3 and (v and '#t\r\n' or '#f\r\n') or (v and ':1\r\n' or ':0\r\n'))
    elseif v then
      return add(':1\r\n')
    elseif RESP == 2 and opts.null_array then
      return add('*-1\r\n')
    end
    return add_null()
  elseif kind ~= 'table' then
    return add_null()
  end
  local err, ok, double = field(v, 'err', 'string'), field(v, 'ok', 'string'), field(v, 'double', 'number')
  local map, members = field(v, 'map', 'table'), field(v, 'set', 'table')
  local big, verbatim = field(v, 'big_number', 'string'), field(v, 'verbatim_string', 'table')
  local text = verbatim and field(verbatim, 'string', 'string')
  local format = verbatim and field(verbatim, 'format', 'string')
  if err then
    add_error(err)
  elseif ok then
    add('+' .. one_line(ok) .. '\r\n')
  elseif double then
    add_double(double_text(double))
  elseif map then
    local n = 0
    for _ in next, map do n = n + 1 end
    add(RESP == 3 and '%' .. n .. '\r\n' or '*' .. 2 * n .. '\r\n')
    for key, value in next, map do
      add_value(key, from, opts, depth + 1)
      add_value(value, from, opts, depth + 1)
    end
  elseif members then
    local n = 0
    for _ in next, members do n = n + 1 end
    add((RESP == 3 and '~' or '*') .. n .. '\r\n')
    for key in next, members do add_value(key, from, opts, depth + 1) end
  elseif big then
    big = one_line(big)
    if RESP == 3 then add('(' .. big .. '\r\n') else add_bulk(big) end
  elseif text and format then
    if RESP == 3 then
      -- The format has three characters in any case.
      format = string.sub(format .. '   ', 1, 3)
      add('=' .. #text + 4 .. '\r\n' .. format .. ':' .. text .. '\r\n')
    else
      add_bulk(text)
    end
  else
    local n = 0
    if opts.user then
      while rawget(v, n + 1) ~= nil do n = n + 1 end
    else
      n = table.maxn(v)
    end
    add('*' .. n .. '\r\n')
    for i = 1, n do add_value(rawget(v, i), from, opts, depth + 1) end
  end
end

-- The object that a client's script sees as `redis`. This object watches for errors that must stop
-- the request, and cannot reach the records. `user_wrote`: the script has written, and from then on
-- Redis no longer checks whether there is memory. `user_reads`: the script has declared that it
-- writes nothing (no-writes). `user_fills`: the script has declared that it may use scarce memory
-- (allow-oom). `raised_by`, `raised_at`: the last error that was raised for a command, and its
-- position, if that is known.
local user_resp, user_wrote, user_reads, user_fills, raised_by, raised_at
-- In read-only scripts these commands count as writes, which the reply to COMMAND does not show.
local TELLS = set('PFCOUNT PUBLISH SPUBLISH')
local READ_ONLY = 'ERR Write commands are not allowed from read-only scripts.'
local function call_guarded(name, arguments, ...)
  if not READS[name] then
    if user_reads and (TELLS[name] or has_flag('write', name, arguments[2])) then
      return {err = READ_ONLY}
    end
    if not begin() then error('stopped', 0) end
    if short_of_memory and not user_wrote and not user_fills then
      if has_flag('denyoom', name, arguments[2]) then return {err = OOM} end
      user_wrote = has_flag('write', name, arguments[2])
    end
  end
  -- `...` is passed on without unpack, which takes fewer elements.
  local reply = redis.pcall(...)
  local failed = type(reply) == 'table' and reply.err
  if name == 'SELECT' and not failed then current = tostring(arguments[2]) end
  if failed and not begun and passing(failed) then
    aborted = failed
    error('stopped', 0)
  end
  return reply
end
-- Raises an error at the place where the client's function has called the present function.
local function raise_at_caller(err)
  -- The position is empty if the client's function ended with this call.
  local _, at = pcall(error, '', 4)
  raised_by, raised_at = err, at
  error(err, 0)
end
-- These commands could remove or show pmnet's own keys without naming them (pmnet_wire::guard).
local REACHES_RECORDS = [[FLUSHALL FLUSHDB SWAPDB FT.CREATE FT._CREATEIFNX FT.DROPINDEX FT._DROPINDEXIFX FT.DROP FT._DROPIFX
  TRIMSLOTS CLUSTER|FLUSHSLOT CLUSTER|MIGRATESLOTS CLUSTER|MIGRATION CLUSTER|SYNCSLOTS CLUSTER|CANCELSLOTMIGRATIONS ]]
local reaches_records
-- Returns whether no script may call a command that Redis has got since pmnet read its commands (commands.rs). Its name
-- may hide what it does (rename-command), or it may change keys without naming them. The tenth column of a row has the
-- subcommands.
local later = {}
local function is_unfit(name, sub)
  if string.find(KNOWN, ' ' .. name .. ' ', 1, true) then return false end
  if later[name] == nil then later[name] = row_of(name) or false end
  local row = later[name]
  if not row then return false end
  if string.upper(row[1]) ~= name then return true end
  local family = members_of(row[10])
  if #family > 0 then
    row = nil
    for _, member in ipairs(family) do
      if string.upper(member[1]) == name .. '|' .. sub then row = member end
    end
  end
  return row and row_has(row, 'write') and row[4] == 0 and not row_has(row, 'movablekeys')
end
local function guarded(raise)
  return function(...)
    if aborted then error('stopped', 0) end
    -- The arguments include those that are nil.
    local arguments = {n = select('#', ...), ...}
    local name = type(arguments[1]) == 'string' and string.upper(arguments[1]) or ''
    local reply
    local sub = type(arguments[2]) == 'string' and string.upper(arguments[2]) or ''
    reaches_records = reaches_records or set(REACHES_RECORDS .. UNNAMED)
    if reaches_records[name] or reaches_records[name .. '|' .. sub] or is_unfit(name, sub) then
      reply = {err = 'ERR pmnet: ' .. name .. ' is not available inside scripts'}
    end
    for i = 2, arguments.n do
      if type(arguments[i]) == 'string' and string.sub(arguments[i], 1, 7) == 'pmnet:{' then
        reply = {err = 'ERR pmnet: keys that begin with pmnet:{ are reserved'}
      end
    end
    reply = reply or call_guarded(name, arguments, ...)
    if raise and type(reply) == 'table' and reply.err then
      raise_at_caller(reply)
    end
    return reply
  end
end
-- The environment of a client's script. The names in HIDDEN are locals of the script's chunk. So the script cannot
-- reach the true redis, nor anything through which it could find it: the global table, and chunks that are compiled in
-- that table. (setfenv would serve too, but Redis 7 lacks it.) Valkey's other name for redis is hidden if it exists,
-- whatever name the server reports. (In Redis, reading the name is an error.)
local HAS_SERVER = pcall(function() return server end)
local HIDDEN = (HAS_SERVER and 'server ' or '') .. 'KEYS ARGV redis _G loadstring load getmetatable getfenv setfenv newproxy module require '
  .. 'package debug dofile loadfile'
local function load_hidden(code, name)
  local head = 'local ' .. string.gsub(HIDDEN, ' ', ',') .. ' = ... return function(...) '
  return loadstring(head .. code .. '\nend', name)
end
local function proxy()
  local t = {call = guarded(true), pcall = guarded(false)}
  for name in pairs(set([[sha1hex error_reply status_reply log acl_check_cmd LOG_DEBUG LOG_VERBOSE LOG_NOTICE
    LOG_WARNING REDIS_VERSION REDIS_VERSION_NUM SERVER_NAME VALKEY_VERSION VALKEY_VERSION_NUM
    REPL_ALL REPL_AOF REPL_SLAVE REPL_REPLICA REPL_NONE]])) do
    t[name] = redis[name]
  end
  function t.setresp(...)
    local ok, why = pcall(redis.setresp, ...)
    -- Redis's pcall turns the error into a text.
    if not ok then raise_at_caller(type(why) == 'string' and {err = why} or why) end
    user_resp = ...
  end
  function t.replicate_commands() return true end
  function t.set_repl()
    raise_at_caller({err = 'ERR pmnet: redis.set_repl is not available: all effects go to the AOF and to replicas'})
  end
  return t
end
-- Returns the values of the hidden names, in their order. A name without a value gets nil.
local function shadows(keys, args)
  local t, names, values = {KEYS = keys, ARGV = args, redis = proxy()}, set(HIDDEN), {}
  local true_G, true_getmetatable = _G, getmetatable
  t.server = t.redis
  t._G = setmetatable({}, {
    __index = function(_, name)
      if names[name] then return t[name] end
      return true_G[name]
    end,
    __newindex = function(_, name, value) true_G[name] = value end,
    __metatable = false,
  })
  function t.getmetatable(v)
    if type(v) == 'table' then return true_getmetatable(v) end
  end
  function t.loadstring(code, name)
    if type(code) ~= 'string' then error('bad argument #1 to loadstring (string expected)', 2) end
    -- Bytecode after the head is a syntax error.
    local f, message = load_hidden(code, name or code)
    if not f then return nil, message end
    return f(unpack(values, 1, values.n))
  end
  function t.load(pieces, name)
    local all = {}
    for piece in pieces do
      if piece == '' then break end
      all[#all + 1] = piece
    end
    return t.loadstring(table.concat(all), name or '=(load)')
  end
  values.n = 0
  for name in string.gmatch(HIDDEN, '%S+') do
    values.n = values.n + 1
    values[values.n] = t[name]
  end
  return unpack(values, 1, values.n)
end

local function keep_script(sha, body)
  if redis.call('HEXISTS', SCRIPTS, 'script/' .. sha) == 1 then return true end
  if redis.call('HLEN', SCRIPTS) >= SCRIPTS_MAX then return false end
  redis.call('HSET', SCRIPTS, 'script/' .. sha, body)
  return true
end
-- Scripts that EVAL made known in this request. These scripts are kept at the end of the request, because only a script
-- that has changed nothing may be killed.
local seen_scripts = {}
-- Valkey 8.1 and newer check the engine last, because the engine may belong to a module.
local ENGINE_LAST = VALKEY >= 0x80100
local SCRIPT_FLAGS = set('no-writes allow-oom allow-stale no-cluster allow-cross-slot-keys')
-- Returns the flags in a first line `#!lua …`, or false if there is no such line. If the line is wrong, returns nil and Redis's error.
local function shebang(body)
  if string.sub(body, 1, 2) ~= '#!' then return false end
  local line = string.match(body, '^([^\n]*)\n')
  if not line then return nil, 'ERR Invalid script shebang' end
  local found, engine = {}, nil
  for word in string.gmatch(line, '%S+') do
    local flags = engine and string.match(word, '^flags=(.*)$')
    if not engine then
      engine = word
      if word ~= '#!lua' and not ENGINE_LAST then return nil, 'ERR Unexpected engine in script shebang: ' .. word end
    elseif not flags then
      return nil, 'ERR Unknown lua shebang option: ' .. word
    elseif flags ~= '' then
      for flag in string.gmatch(flags .. ',', '([^,]*),') do
        if not SCRIPT_FLAGS[flag] then return nil, 'ERR Unexpected flag in script shebang: ' .. flag end
        found[flag] = true
      end
    end
  end
  if engine ~= '#!lua' then return nil, "ERR Could not find scripting engine '" .. string.sub(engine, 3) .. "'" end
  return found
end
-- Returns the function, and the flags of its first line. If the text is wrong, returns nil and Redis's error.
local function compile(body)
  local flags, wrong = shebang(body)
  if wrong then return nil, wrong end
  body = string.gsub(body, '^#![^\n]*', '')
  local f, message = load_hidden(body, '@user_script')
  if f then return f, flags end
  -- Compiles the text without pmnet's additions, so that the error has the client's text and position.
  local alone, why = loadstring(body, '@user_script')
  return nil, 'ERR Error compiling script (new function): ' .. (alone and message or why)
end
-- Returns the line of a tail call, which leaves no trace, if only one line is possible.
local function line_of_return(body)
  local line, found = 0, nil
  for text in string.gmatch(body .. '\n', '([^\n]*)\n') do
    line = line + 1
    if string.match(text, 'return%s+[%w_.]+%s*%(') then
      if found then return end
      found = line
    end
  end
  return found
end

local INTEGER_MAX = '9223372036854775807'
-- Reads a number as Redis does: no leading zeros, 64 bits. The result may be rounded.
local function integer(text)
  local digits = string.match(text, '^-?([1-9]%d*)$')
  local fits = digits and (#digits < #INTEGER_MAX or (#digits == #INTEGER_MAX and digits <= INTEGER_MAX))
  return (fits or text == '0') and tonumber(text)
end
local NOSCRIPT, SHA_BYTES = 'NOSCRIPT No matching script.' .. (VALKEY > 0 and '' or ' Please use EVAL.'), 40
-- Valkey 9.1 and newer do not name the script in an error.
local NAMED = VALKEY < 0x90100
local function user_script(name, first, last)
  if name == 'EVALSHA' and #ARGV[first + 1] ~= SHA_BYTES then return add_error(NOSCRIPT) end
  local count = integer(ARGV[first + 2])
  if not count then return add_error('ERR value is not an integer or out of range') end
  if count > last - first - 2 then
    return add_error("ERR Number of keys can't be greater than number of args")
  end
  if count < 0 then return add_error("ERR Number of keys can't be negative") end
  local body, sha = ARGV[first + 1], nil
  if name == 'EVALSHA' then
    sha = string.lower(body)
    body = in_records(redis.call, 'HGET', SCRIPTS, 'script/' .. sha)
    if not body then return add_error(NOSCRIPT) end
  else
    sha = redis.sha1hex(body)
  end
  local f, flags = compile(body)
  if not f then return add_error(flags) end
  if name == 'EVAL' then seen_scripts[sha] = body end
  local reads, fills = flags and flags['no-writes'], flags and flags['allow-oom']
  if flags and not reads and not fills and lacks_memory() then return add_error(OOM) end
  if aborted then return end
  local keys, args = {}, {}
  for i = first + 3, last do
    if i < first + 3 + count then keys[#keys + 1] = ARGV[i] else args[#args + 1] = ARGV[i] end
  end
  user_resp, user_wrote, user_reads, user_fills, raised_by = 2, false, reads, fills, nil
  local raised, at
  local ok, result = xpcall(function() return f(shadows(keys, args))() end, function(e)
    raised = e
    if raised_by ~= nil and rawequal(e, raised_by) then
      at = raised_at
    else
      -- The position of the caller of this function. If the caller is a function of Redis or of Lua, the position is
      -- that of the caller's caller.
      local _, first = pcall(error, '', 3)
      local _, second = pcall(error, '', 4)
      at = first ~= '' and first or second
    end
    return e
  end)
  user_reads = false
  if aborted then return end
  redis.setresp(2)
  redis.call('SELECT', DB)
  current = DB
  if ok then return add_value(result, user_resp, {user = true}, 0) end
  local text
  if type(raised) == 'table' then
    text = field(raised, 'err', 'string') or 'ERR the script raised what is no error'
    -- Redis 6 puts a position in this script at the start of the text.
    if not redis.REDIS_VERSION_NUM then text = (string.gsub(text, '^@user_script: %d+:', 'ERR')) end
  else
    text = 'ERR ' .. tostring(raised)
  end
  local line = string.match(text, '^ERR user_script:(%d+):') or string.match(at or '', '^user_script:(%d+):')
  line = line or line_of_return(body)
  local place = line and 'on @user_script:' .. line .. '.'
  local where = NAMED and sha .. (place and ', ' .. place or '') or place or ''
  add_error(text .. ' script: ' .. where)
end

-- Handles SCRIPT LOAD and EXISTS. Redis itself executes the other subcommands.
local function script_command(first, last)
  local sub = string.upper(ARGV[first + 1])
  if sub == 'LOAD' then
    local body = ARGV[first + 2]
    local f, wrong = compile(body)
    if not f then return add_error(wrong) end
    local sha = redis.sha1hex(body)
    if not begin() then return end
    if not in_records(keep_script, sha, body) then return add_error('ERR pmnet: too many scripts are kept, SCRIPT FLUSH first') end
    add_bulk(sha)
  else
    add('*' .. last - first - 1 .. '\r\n')
    for i = first + 2, last do
      add_integer(in_records(redis.call, 'HEXISTS', SCRIPTS, 'script/' .. string.lower(ARGV[i])))
    end
  end
end

local SCRIPTED = set('EVAL EVALSHA')
local BY_KEY = set('INCR DECR INCRBY DECRBY')
local function plain(name, first, last)
  if not READS[name] then
    if not begin() then return end
    if short_of_memory and has_flag('denyoom', name, ARGV[first + 1]) then return add_error(OOM) end
  end
  -- The command runs under RESP2, where a null is false: under RESP3 it is nil, which ends an array. Commands whose replies would
  -- lose other facts are not executed in this script (exact.rs).
  local v = redis.pcall(unpack(ARGV, first, last))
  if not begun and type(v) == 'table' and v.err and passing(v.err) then
    aborted = v.err
    return
  end
  if type(v) == 'number' and (v >= EXACT or v <= -EXACT) then
    -- Lua has rounded the number; the stored text is exact.
    local exact
    if BY_KEY[name] then exact = redis.call('GET', ARGV[first + 1]) end
    if name == 'HINCRBY' then exact = redis.call('HGET', ARGV[first + 1], ARGV[first + 2]) end
    if exact then return add(':' .. exact .. '\r\n') end
  end
  -- If there is no element, these commands reply with a null array, which Lua cannot tell from a null string.
  local popped_none = (name == 'LPOP' or name == 'RPOP') and last > first + 1
  add_value(v, 2, {doubles = DOUBLES[name], null_array = popped_none}, 0)
end

-- Calls f for each of `count` commands, the first of which is at index `at`. f gets the upper-case name (nil: a
-- finished reply), and the indexes of the command's first and last argument. Returns the index after these commands.
local function each_command(at, count, f)
  for _ = 1, count do
    local arguments = tonumber(ARGV[at])
    local first, last = at + 1, at + math.max(arguments, 1)
    f(arguments > 0 and string.upper(ARGV[first]) or nil, first, last)
    at = last + 1
    if aborted then break end
  end
  return at
end
local function is_plain(name)
  return not (SCRIPTED[name] or name == 'SCRIPT' or name == 'FLUSHALL' or name == 'FLUSHDB')
end
local function run(name, first, last)
  if not name then
    add(ARGV[first])
  elseif SCRIPTED[name] then
    user_script(name, first, last)
  elseif name == 'SCRIPT' then
    script_command(first, last)
  elseif is_plain(name) then
    plain(name, first, last)
  elseif begin() then
    add_value(pmnet_flush(DB, {unpack(ARGV, first, last)}), 2, {}, 0)
  end
end
-- Runs a transaction of `count` commands. When memory is short, Redis discards every transaction, except a transaction
-- of scripts and reads, which is not checked before it changes something. Returns the index after the transaction.
local function transaction(at, count)
  local changes = false
  local after = each_command(at, count, function(name)
    changes = changes or (name and is_plain(name) and not READS[name])
  end)
  if changes and begin() and short_of_memory then
    add_error('EXECABORT Transaction discarded because of: ' .. OOM)
  elseif not aborted then
    add('*' .. count .. '\r\n')
    each_command(at, count, run)
  end
  return after
end
-- Runs the transaction or the command at index `at`. Returns the index after the transaction or
-- command, and whether it is a single read.
local function unit(at)
  local count = tonumber(ARGV[at])
  if count < 0 then return transaction(at + 1, -count), false end
  return each_command(at, 1, run), READS[string.upper(ARGV[at + 1])] and count > 0
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
-- Runs commands and transactions of a pack until there is a reason to stop, and returns the array
-- of their replies. All commands of the pack were sent together, and the front sends the rest
-- again. A read with a long reply is not run in a pack, because its reply would be kept.
local function pack()
  local replies, bytes, longest, at, until_ = {}, 0, REPLY_MAX, COMMANDS, nil
  while at <= #ARGV and bytes <= PACK_REPLIES_MAX do
    if #replies % PACK_LOOKS == 0 then
      local time = now()
      if until_ and time >= until_ then break end
      until_ = until_ or time + PACK_MICROSECONDS_MAX
    end
    out, out_bytes, REPLY_MAX = {}, 0, longest - bytes - PACK_HEADER
    local after, reads = unit(at)
    if aborted then return end
    if reads and out_bytes > PACK_READ_MAX then break end
    local reply = out_bytes <= REPLY_MAX and table.concat(out) or TOO_LONG
    replies[#replies + 1], bytes, at = reply, bytes + #reply, after
  end
  return '*' .. #replies .. '\r\n' .. table.concat(replies)
end
local function request()
  redis.call('SELECT', DB)
  current = DB
  local reply
  if FORM == 'k' then
    reply = pack()
  else
    local at = COMMANDS
    while at <= #ARGV and not aborted do at = unit(at) end
    reply = out_bytes <= REPLY_MAX and table.concat(out) or TOO_LONG
  end
  redis.call('SELECT', 0)
  current = '0'
  if aborted then return end
  aborted = write_record(PREFIX .. reply)
  if aborted then return end
  begun = true
  for sha, body in pairs(seen_scripts) do keep_script(sha, body) end
  return reply
end

redis.setresp(2)
local owner = redis.call('HGET', HASH, 'owner')
if owner and owner ~= OWNER then return {err = 'FENCED'} end
if not owner or (redis.call('HGET', HASH, 'watermark') or '') ~= WATERMARK then
  return {err = 'TRYAGAIN the records were changed by another process'}
end
local elsewhere = pmnet_elsewhere(SLOTS, COMMANDS - 1)
if elsewhere then return elsewhere end
local ok, result = pcall(request)
if ok and not aborted then return result end
-- A client's code may have raised the error. So its text is never taken for an error of pmnet or of Redis.
local why = aborted or type(result) == 'table' and field(result, 'err', 'string') or tostring(result)
why = string.sub(why, 1, WHY_MAX)
return {err = (begun and 'PARTLY ' or aborted and '' or 'RAISED ') .. string.gsub(why, '^-', '')}
