-- Redis Cluster: checks that this node serves the slots of the keys ARGV[first] to ARGV[last], and is moving none of
-- these slots. The keys do not exist. If the check passes, returns nil. Otherwise returns an error: ELSEWHERE, the
-- number of the first key that fails (from 0), and Redis's text. The function changes nothing.
local function pmnet_elsewhere(first, last)
  for at = first, last do
    local reply = redis.pcall('EXISTS', ARGV[at])
    if type(reply) == 'table' and reply.err then
      return {err = 'ELSEWHERE ' .. at - first .. ' ' .. string.gsub(reply.err, '^-', '')}
    end
  end
end
