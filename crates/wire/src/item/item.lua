-- A change of an item of memcached (pmnet_wire::item): the rules of change.rs once more, for Redis.
-- KEYS: the key. ARGV: the name of the change and its arguments, as Change::arguments writes them.
local key, op = KEYS[1], ARGV[1]
local old = redis.call('GET', key)
local left = old and redis.call('PTTL', key) or -1
local state, flags, unique, data
if old then
  state = #old >= 13 and string.byte(old) or 0
  if state < 16 or state > 19 then
    return redis.error_reply('ERR pmnet: the key holds something that memcached\'s front did not write')
  end
  state, flags, unique, data = state - 16, string.sub(old, 2, 5), string.sub(old, 6, 13), string.sub(old, 14)
end
local stale, sent = old and state % 2 == 1, old and state >= 2

local function reply(status, text, won) return {status, text or '', left, won and 1 or 0} end
local function touch(e)
  if e == '' then return end
  if e == '0' then redis.call('PERSIST', key) else redis.call('PEXPIREAT', key, e) end
end
local function put(is_stale, is_sent, f, u, d, e)
  local value = string.char(16 + (is_stale and 1 or 0) + (is_sent and 2 or 0)) .. f .. u .. d
  redis.call('SET', key, value, 'KEEPTTL')
  touch(e)
end
-- Not by <, which asks the locale.
local function less(a, b)
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return false
end

-- Numbers of 64 bits, as two with up to ten digits.
local HALF, TOP_HIGH, TOP_LOW = 10000000000, 1844674407, 3709551616
local function parse(text)
  local sign, digits, after = string.match(text, '^[ \t-\r]*([+-]?)(%d+)(.?)')
  if not digits or not string.match(after, '^[ \t-\r%z]?$') then return nil end
  digits = string.match(digits, '^0*(%d*)$')
  if #digits > 20 then return nil end
  local low = tonumber(string.sub(digits, -10)) or 0
  local high = tonumber(string.sub(digits, 1, -11)) or 0
  if high > TOP_HIGH or high == TOP_HIGH and low >= TOP_LOW then return nil end
  if sign == '-' and (high > 0 or low > 0) then return nil end
  return high, low
end
local function show(high, low)
  if high == 0 then return string.format('%.0f', low) end
  return string.format('%.0f%010.0f', high, low)
end
local function add(h1, l1, h2, l2)
  local high, low = h1 + h2, l1 + l2
  if low >= HALF then high, low = high + 1, low - HALF end
  if high > TOP_HIGH or high == TOP_HIGH and low >= TOP_LOW then
    high, low = high - TOP_HIGH, low - TOP_LOW
    if low < 0 then high, low = high - 1, low + HALF end
  end
  return high, low
end
local function subtract(h1, l1, h2, l2)
  if h2 > h1 or h2 == h1 and l2 > l1 then return 0, 0 end
  local high, low = h1 - h2, l1 - l2
  if low < 0 then high, low = high - 1, low + HALF end
  return high, low
end

if op == 'STORE' then
  local mode, compare, item, till, most = ARGV[2], ARGV[3], ARGV[5], ARGV[6], tonumber(ARGV[7])
  local f, u, d = string.sub(item, 2, 5), string.sub(item, 6, 13), string.sub(item, 14)
  if not old then return reply(mode == 'REPLACE' and 'NOT_FOUND' or 'NOT_STORED') end
  local same = compare == '' or compare == unique
  if mode == 'REPLACE' then
    if same then
      put(false, false, f, u, d, till)
    elseif ARGV[4] == '1' and less(compare, unique) then
      put(true, sent, f, u, d, '')
    else
      return reply('EXISTS')
    end
    return reply('STORED')
  end
  if not same then return reply('EXISTS') end
  if #data + #d > most then return reply('NOT_STORED') end
  put(false, false, flags, u, mode == 'APPEND' and data .. d or d .. data, '')
  return reply('STORED')
elseif op == 'COUNT' then
  local compare, u, initial = ARGV[4], ARGV[5], ARGV[6]
  if not old then
    if initial == '' then return reply('NOT_FOUND') end
    put(false, false, '\0\0\0\0', u, initial, ARGV[7])
    return reply('NEW', initial, true)
  end
  if data == '' then return reply('NON_NUMERIC') end
  if compare ~= '' and compare ~= unique then return reply('EXISTS') end
  local high, low = parse(data)
  if not high then return reply('NON_NUMERIC') end
  local text = show((ARGV[2] == '1' and add or subtract)(high, low, parse(ARGV[3])))
  local blanks = #data - #text
  local kept = blanks >= 0
  put(stale and kept, sent and kept, flags, u, text .. string.rep(' ', blanks), ARGV[8])
  return reply('OK', text)
elseif op == 'DROP' then
  if not old then return reply('NOT_FOUND') end
  if ARGV[2] ~= '' and ARGV[2] ~= unique then return reply('EXISTS') end
  if ARGV[3] == '1' then put(true, false, flags, ARGV[4], data, ARGV[5]) else redis.call('DEL', key) end
  return reply('DELETED')
elseif op == 'FETCH' then
  if not old then
    if ARGV[3] == '' then return reply('NOT_FOUND') end
    local item = '\0\0\0\0' .. ARGV[2]
    put(false, true, '\0\0\0\0', ARGV[2], '', ARGV[3])
    return reply('NEW', string.char(16) .. item, true)
  end
  local soon = left >= 0 and math.ceil(left / 1000) < tonumber(ARGV[5])
  local won = not sent and (stale or soon)
  if won then put(stale, true, flags, unique, data, '') end
  touch(ARGV[4])
  return reply('HIT', old, won)
end
return redis.error_reply('ERR pmnet: unknown change of an item')
