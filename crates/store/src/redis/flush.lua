-- Empties databases and carries the protocol's records over it, in one atomic step.
-- db: database that the command runs in; hashes: keys in database 0 to keep.
local function pmnet_flush(db, hashes, command)
  redis.setresp(2)
  redis.call('SELECT', 0)
  local kept = {}
  for i = 1, #hashes do kept[i] = redis.call('HGETALL', hashes[i]) end
  redis.call('SELECT', db)
  local reply = redis.pcall(unpack(command))
  if reply.err then return reply end
  redis.call('SELECT', 0)
  for i = 1, #hashes do
    local pairs_ = kept[i]
    for from = 1, #pairs_, 2000 do
      redis.call('HSET', hashes[i], unpack(pairs_, from, math.min(from + 1999, #pairs_)))
    end
  end
  redis.call('SELECT', db)
  return reply
end
