-- Empties databases, but keeps pmnet's own hashes of every shard, in one atomic step.
local function pmnet_is_ours(key)
  local shard = string.match(key, '^pmnet:{(%d+)}$') or string.match(key, '^pmnet:{(%d+)}:scripts$')
    -- In a Redis Cluster the shard is followed by a number that determines the slot.
    or string.match(key, '^pmnet:{(%d+)%-%d+}$') or string.match(key, '^pmnet:{(%d+)%-%d+}:scripts$')
  return shard and string.format('%.0f', tonumber(shard)) == shard and tonumber(shard) <= 4294967295
    and redis.call('TYPE', key).ok == 'hash'
end
-- Returns the hashes that must be kept over the command `name` in database `db`: names and values, by key. Raises an
-- error if Redis does not allow reading a hash, or writing it back unchanged. The function changes nothing.
local function pmnet_kept(db, name)
  local kept = {}
  redis.setresp(2)
  redis.call('SELECT', 0)
  -- pmnet's hashes are in database 0 only.
  if tonumber(db) == 0 or string.upper(name) == 'FLUSHALL' then
    local cursor = '0'
    repeat
      local page = redis.call('SCAN', cursor, 'MATCH', 'pmnet:{*', 'COUNT', 10000)
      cursor = page[1]
      for _, key in ipairs(page[2]) do
        if not kept[key] and pmnet_is_ours(key) then
          -- If this hash can be written now, it can be written after the flush, when no step may
          -- fail.
          redis.call('HDEL', key, '')
          local all = redis.call('HGETALL', key)
          if #all > 0 then redis.call('HSET', key, all[1], all[2]) end
          kept[key] = all
        end
      end
    until cursor == '0'
  end
  redis.call('SELECT', db)
  return kept
end
local function pmnet_flush(db, command)
  local kept = pmnet_kept(db, command[1])
  local reply = redis.pcall(unpack(command))
  if reply.err then return reply end
  redis.call('SELECT', 0)
  for key, pairs_ in pairs(kept) do
    for from = 1, #pairs_, 2000 do
      redis.call('HSET', key, unpack(pairs_, from, math.min(from + 1999, #pairs_)))
    end
  end
  redis.call('SELECT', db)
  return reply
end
