//! Hides pmnet's own keys: commands that list or count the keys of a database do not show these keys.
//!
//! pmnet's keys are only in database 0. In database 0, a script runs the client's command and removes pmnet's keys from
//! its reply. Answers to code of a client (`redis.call('KEYS', …)`) are not changed.

/// ARGV: pmnet's two keys, the common prefix of pmnet's keys, and the command.
const WITHOUT_OWN_LUA: &str = "local records, scripts, prefix = unpack(ARGV, 1, 3)
local function own(key) return string.sub(key, 1, #prefix) == prefix end
local function shown(keys)
  local out = {}
  for _, key in ipairs(keys) do
    if not own(key) then out[#out + 1] = key end
  end
  return out
end
local name, reply = string.upper(ARGV[4]), nil
for _ = 1, name == 'RANDOMKEY' and 100 or 1 do
  reply = redis.pcall(unpack(ARGV, 4))
  if type(reply) ~= 'string' or not own(reply) then break end
  reply = false
end
if type(reply) == 'table' and not reply.err then
  if name == 'SCAN' then reply[2] = shown(reply[2]) else reply = shown(reply) end
elseif name == 'DBSIZE' and type(reply) == 'number' then
  reply = reply - redis.call('EXISTS', records, scripts)
end
return reply";

/// Returns whether the command lists or counts keys. Redis itself reports a wrong number of arguments.
fn shows_keys(name: &[u8], arguments: usize) -> bool {
    match name {
        b"DBSIZE" | b"RANDOMKEY" => arguments == 1,
        b"KEYS" => arguments == 2,
        b"SCAN" => arguments >= 2,
        _ => false,
    }
}

/// The names of pmnet's keys in a store.
#[derive(Clone, Copy, Debug)]
pub struct OwnKeys<'a> {
    /// The hash with the position in the log and the sessions.
    pub records: &'a [u8],
    /// The hash with the scripts of clients.
    pub scripts: &'a [u8],
}

impl<'a> OwnKeys<'a> {
    /// Returns the command that is sent in place of the client's command, if the client's command must be changed.
    /// `name`: the command's name in upper case.
    #[must_use]
    pub fn hidden(
        &self,
        database: u32,
        name: &[u8],
        arguments: &[&'a [u8]],
    ) -> Option<Vec<&'a [u8]>> {
        if database != 0 || !shows_keys(name, arguments.len()) {
            return None;
        }
        let head: [&[u8]; 6] = [
            b"EVAL",
            WITHOUT_OWN_LUA.as_bytes(),
            b"0",
            self.records,
            self.scripts,
            pmnet_wire::promise::RECORDS_PREFIX,
        ];
        Some([&head[..], arguments].concat())
    }
}
