-- Redis Cluster: whether the slots of the keys ARGV[first] to ARGV[last], none of which exists, are all served here, and none is being
-- moved. Nil, or an error: ELSEWHERE, the number of the first such key from 0, and Redis's words. It changes nothing.
local function pmnet_elsewhere(first, last)
  for at = first, last do
    local reply = redis.pcall('EXISTS', ARGV[at])
    if type(reply) == 'table' and reply.err then
      return {err = 'ELSEWHERE ' .. at - first .. ' ' .. string.gsub(reply.err, '^-', '')}
    end
  end
end
