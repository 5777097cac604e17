//! Random rules of users, and random commands.

use crate::common::{Client, command};
use pmnet_resp::read;

/// Pseudo-random numbers, the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(bound).expect("small");
        usize::try_from((mixed ^ (mixed >> 31)) % bound).expect("small")
    }

    pub fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// Returns true with this probability, in percent.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }
}

/// Commands, categories and rules of a server.
pub struct Server {
    commands: Vec<Known>,
    categories: Vec<String>,
    /// Whether the server has rules about databases.
    pub databases: bool,
    /// Whether the server answers a wrong password even if an earlier answer is still to be sent. Some servers give no
    /// answer in this case.
    pub answers: bool,
}

struct Known {
    /// The command's name, and its subcommand if it has one.
    words: Vec<String>,
    arity: i64,
    blocks: bool,
}

impl Server {
    /// Asks the server for its commands, categories and rules.
    pub fn learn(client: &mut Client) -> Server {
        client.send(&command("COMMAND"));
        let reply = client.next().expect("what it knows");
        let mut commands = Vec::new();
        for one in read::elements(&reply).expect("a list") {
            note(one, &[], &mut commands);
        }
        client.send(&command("ACL CAT"));
        let reply = client.next().expect("its categories");
        let categories = read::elements(&reply).expect("a list");
        let text = |bulk: &[u8]| String::from_utf8_lossy(read::bulk(bulk).unwrap()).into_owned();
        let databases = client.ask("ACL SETUSER nobody db=1") == "+OK\r\n";
        client.ask("ACL DELUSER nobody");
        let lines = ["PING", "AUTH nobody no", "PING", "ECHO x"];
        client.send(&lines.map(command).concat());
        let said: Vec<String> = (0..3).map(|_| client.text()).collect();
        let answers = said[1].starts_with("-WRONGPASS");
        if answers {
            client.text();
        }
        Server {
            commands,
            categories: categories.into_iter().map(text).collect(),
            databases,
            answers,
        }
    }
}

/// Adds a command from a row of COMMAND, or a subcommand of the command `of`.
fn note(one: &[u8], of: &[String], all: &mut Vec<Known>) {
    let parts = read::elements(one).expect("a command");
    let name = String::from_utf8_lossy(read::bulk(parts[0]).expect("a name")).into_owned();
    let name = name.split('|').next_back().unwrap_or_default().to_owned();
    let words = [of, &[name]].concat();
    let subcommands = parts
        .get(9)
        .and_then(|list| read::elements(list))
        .unwrap_or_default();
    let flags = read::elements(parts[2]).unwrap_or_default();
    let blocks = flags
        .iter()
        .any(|flag| read::text(flag) == Some(b"blocking"));
    if subcommands.is_empty() && !UNSENT.contains(&words.join(" ").as_str()) && !is_unsent(&words) {
        let arity = read::integer(parts[1]).expect("its arity");
        all.push(Known {
            words: words.clone(),
            arity,
            blocks,
        });
    }
    for sub in subcommands {
        note(sub, &words, all);
    }
}

/// Commands that are never sent. Each of them ends the server or the connection, changes the server's role, concerns
/// the machine, delays other clients, or gives a random result on which later replies depend.
const UNSENT: [&str; 66] = [
    "shutdown",
    "debug",
    "monitor",
    "sync",
    "psync",
    "replconf",
    "replicaof",
    "slaveof",
    "failover",
    "migrate",
    "save",
    "bgsave",
    "bgrewriteaof",
    "restore-asking",
    "quit",
    "reset",
    "hello",
    "auth",
    "multi",
    "exec",
    "discard",
    "watch",
    "unwatch",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "wait",
    "waitaof",
    "spop",
    "xadd",
    "xreadgroup",
    "xread",
    "expire",
    "pexpire",
    "expireat",
    "pexpireat",
    "setex",
    "psetex",
    "getex",
    "module load",
    "module loadex",
    "module unload",
    "config rewrite",
    "config set",
    "acl setuser",
    "acl deluser",
    "acl load",
    "acl save",
    "acl genpass",
    "client pause",
    "client unpause",
    "client reply",
    "client tracking",
    "client caching",
    "client unblock",
    "client no-evict",
    "script debug",
    "script kill",
    "function kill",
    "lolwut",
    "pfselftest",
    "select",
    "swapdb",
];

fn is_unsent(words: &[String]) -> bool {
    let name = words[0].as_str();
    // Prefixes of commands about clusters, expiring fields and imports, which newer servers have.
    let prefixes = [
        "hexpire", "hpexpire", "hsetex", "hgetex", "himport", "backup", "cluster",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || name.contains('.')
}

/// Commands whose replies depend on the process or the moment. The test only compares whether they are
/// refused.
const LOOSE: [&str; 33] = [
    "info",
    "client",
    "time",
    "randomkey",
    "lastsave",
    "memory",
    "slowlog",
    "latency",
    "hello",
    "config",
    "scan",
    "keys",
    "hscan",
    "sscan",
    "zscan",
    "srandmember",
    "hrandfield",
    "zrandmember",
    "object",
    "acl",
    "role",
    "module",
    "xautoclaim",
    "xclaim",
    "xinfo",
    "xpending",
    "pttl",
    "pexpiretime",
    "expiretime",
    "command",
    "smembers",
    "commandlog",
    "hotkeys",
];

/// Whether only refusals of this command are compared.
pub fn is_loose(words: &[String]) -> bool {
    LOOSE.contains(&words[0].to_ascii_lowercase().as_str())
}

const KEYS: [&str; 12] = [
    "~*", "~a*", "~b*", "~?s", "%R~*", "%W~*", "%R~a*", "%W~b*", "%RW~c*", "~[ab]l", "%R~b*",
    "allkeys",
];
const CHANNELS: [&str; 6] = ["&*", "&c*", "&d1", "resetchannels", "allchannels", "&c1"];
const COMMANDS: [&str; 15] = [
    "+@all",
    "+@all",
    "+@all -@dangerous",
    "+@all -@admin",
    "+@all -@write",
    "+@all -@keyspace",
    "+@read +@connection +@transaction",
    "+@write +@connection +@transaction",
    "+@read +@write +@pubsub +@connection",
    "+@fast +@slow -@scripting",
    "-@all +@string +@list +multi +exec",
    "-@all",
    "allcommands",
    "nocommands +@pubsub",
    "+@all -@pubsub",
];
const CHANGES: [&str; 30] = [
    "-get",
    "+get",
    "-set",
    "+set",
    "-config|set",
    "+config|get",
    "+config",
    "+client|id",
    "-client|kill",
    "-client",
    "+select",
    "-select",
    "+select|1",
    "-multi",
    "-exec",
    "-discard",
    "-watch",
    "+@transaction",
    "+acl|whoami",
    "-acl",
    "-ping",
    "+info",
    "-sort",
    "+sort",
    "+object|encoding",
    "-object|freq",
    "-flushall",
    "-publish",
    "+subscribe",
    "-@blocking",
];
const DATABASES: [&str; 5] = ["db=0", "db=1,2", "db=0,1", "alldbs", "db=3"];

/// A change of a user's rights.
pub struct Change {
    pub words: String,
    /// Whether the change takes no right away.
    pub gives_only: bool,
}

impl Server {
    /// Returns a change of the rights of a user that already has rights.
    pub fn change(&self, random: &mut Random) -> Change {
        let (words, gives_only) = match random.below(6) {
            0 => (self.rules(random), false),
            1 => {
                let nothing = "resetkeys resetchannels -@all clearselectors";
                (format!("{nothing} {}", self.rules(random)), false)
            }
            2 => ("-@all".to_owned(), false),
            3 => (format!("resetkeys {}", random.of(&KEYS)), false),
            4 => ("allkeys allchannels +@all".to_owned(), true),
            _ => {
                let word = random.of(&CHANGES);
                (word.to_owned(), word.starts_with('+'))
            }
        };
        Change { words, gives_only }
    }

    /// Returns words of ACL SETUSER about rights.
    pub fn rules(&self, random: &mut Random) -> String {
        let mut all = vec![self.selector(random)];
        for _ in 0..random.below(4).saturating_sub(1) {
            all.push(format!("({})", self.selector(random)));
        }
        all.join(" ")
    }

    fn selector(&self, random: &mut Random) -> String {
        let mut words = Vec::new();
        for _ in 0..random.below(3) {
            words.push(random.of(&KEYS).to_owned());
        }
        if random.percent(60) {
            words.push(random.of(&CHANNELS).to_owned());
        }
        words.push(random.of(&COMMANDS).to_owned());
        for _ in 0..random.below(4) {
            let sign = if random.percent(60) { '-' } else { '+' };
            words.push(match random.below(6) {
                0 => {
                    let known = &self.commands[random.below(self.commands.len())];
                    format!("{sign}{}", known.words.join("|"))
                }
                1 => {
                    let category = &self.categories[random.below(self.categories.len())];
                    format!("{sign}@{category}")
                }
                _ => random.of(&CHANGES).to_owned(),
            });
        }
        if self.databases && random.percent(50) {
            words.push(random.of(&DATABASES).to_owned());
        }
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }

    /// Returns a command that may be sent at any time, inside or outside of MULTI.
    pub fn command(&self, random: &mut Random) -> Vec<String> {
        if random.percent(35) {
            return self.any(random);
        }
        let template = random.of(&TEMPLATES);
        // The front answers this command for any store, so the rest of a MULTI would differ.
        let is_own = template.starts_with("CLIENT SETINFO") && !self.knows("client setinfo");
        filled(if is_own { "CLIENT ID" } else { template }, random)
    }

    fn knows(&self, words: &str) -> bool {
        self.commands
            .iter()
            .any(|known| known.words.join(" ") == words)
    }

    /// Returns a command that the server knows, with random arguments. Their number is valid, or one too high, or one
    /// too low.
    fn any(&self, random: &mut Random) -> Vec<String> {
        let known = &self.commands[random.below(self.commands.len())];
        let mut words = known.words.clone();
        let least = usize::try_from(known.arity.unsigned_abs()).expect("small");
        let more = match random.below(12) {
            0 => 1,
            1 if known.arity < 0 => 2,
            2 if known.arity < 0 => 3,
            _ => 0,
        };
        let count = if random.percent(4) { 1 } else { least + more };
        while words.len() < count {
            let key = random.percent(60);
            let word = if key {
                "{k}"
            } else {
                random.of(&["{n}", "{m}", "{c}", "{k}", "{v}"])
            };
            words.extend(filled(word, random));
        }
        if known.blocks && words.len() > known.words.len() {
            words.pop();
            words.push("0.01".to_owned());
        }
        words
    }
}

/// Returns the words of a template, in which random words replace the words in braces.
pub fn filled(template: &str, random: &mut Random) -> Vec<String> {
    let fill = |word: &str, random: &mut Random| -> String {
        let owner = random.of(&["a", "a", "b", "b", "c"]);
        match word {
            "{s}" | "{l}" | "{h}" | "{z}" | "{t}" | "{x}" => format!("{owner}{}", &word[1..2]),
            "{k}" => format!("{owner}{}", random.of(&["s", "l", "h", "z", "t", "x", "1"])),
            "{m}" => random.of(&["m1", "m2", "f"]).to_owned(),
            "{c}" => random.of(&["c1", "c2", "d1"]).to_owned(),
            "{d}" => random.of(&["0", "0", "1", "2", "3"]).to_owned(),
            "{n}" => random.of(&["0", "1", "2", "-1"]).to_owned(),
            "{v}" => random.of(&["1", "7", "word", "2.5"]).to_owned(),
            word => word.to_owned(),
        }
    };
    template.split(' ').map(|word| fill(word, random)).collect()
}

/// Commands of all kinds, including those of newer servers.
const TEMPLATES: [&str; 187] = [
    "GET {s}",
    "GET {k}",
    "SET {s} {v}",
    "SET {k} {v}",
    "SET {s} {v} EX 1000",
    "SET {s} {v} GET",
    "SET {s} {v} NX",
    "SET {s} {v} XX GET",
    "SET {s} {v} KEEPTTL",
    "SET {s} {v} IFEQ {v}",
    "SET {s} {v} OOPS",
    "SETEX {s} 1000 {v}",
    "PSETEX {s} 1000000 {v}",
    "SETNX {s} {v}",
    "GETEX {s} PERSIST",
    "GETEX {s} EX 1000",
    "GETDEL {s}",
    "GETSET {s} {v}",
    "MGET {s} {s} {k}",
    "MSET {s} {v} {s} {v}",
    "MSETNX {s} {v} {k} {v}",
    "MSETEX 2 {s} {v} {s} {v} EX 1000",
    "DELEX {s}",
    "DELIFEQ {s} {v}",
    "DIGEST {s}",
    "APPEND {s} {v}",
    "STRLEN {s}",
    "INCR {s}",
    "DECR {s}",
    "INCRBY {s} {n}",
    "INCRBYFLOAT {s} 0.1",
    "GETRANGE {s} 0 -1",
    "SETRANGE {s} 1 {v}",
    "LCS {s} {s}",
    "SETBIT {s} 7 1",
    "GETBIT {s} 7",
    "BITCOUNT {s}",
    "BITPOS {s} 1",
    "BITOP AND {s} {s} {s}",
    "BITFIELD {s} GET u8 0",
    "BITFIELD {s} SET u8 0 7",
    "BITFIELD_RO {s} GET u8 0",
    "DEL {k}",
    "DEL {k} {k}",
    "UNLINK {k}",
    "EXISTS {k} {k}",
    "TYPE {k}",
    "TOUCH {k} {k}",
    "TTL {k}",
    "EXPIRE {k} 1000",
    "PERSIST {k}",
    "RENAME {k} {k}",
    "RENAMENX {s} {s}",
    "COPY {k} {k}",
    "COPY {k} {k} DB {d} REPLACE",
    "MOVE {k} {d}",
    "DUMP {s}",
    "OBJECT ENCODING {k}",
    "OBJECT HELP",
    "RPUSH {l} {v}",
    "LPUSH {l} {v} {v}",
    "LPOP {l}",
    "RPOP {l} 2",
    "LLEN {l}",
    "LRANGE {l} 0 -1",
    "LINDEX {l} 0",
    "LSET {l} 0 {v}",
    "LREM {l} 0 {v}",
    "LTRIM {l} 0 3",
    "LMOVE {l} {l} LEFT RIGHT",
    "RPOPLPUSH {l} {l}",
    "LMPOP 2 {l} {l} LEFT",
    "LPOS {l} {v}",
    "LINSERT {l} BEFORE {v} x",
    "BLPOP {l} {l} 0.01",
    "BRPOP {l} 0.01",
    "BLMOVE {l} {l} LEFT RIGHT 0.01",
    "BLMPOP 0.01 2 {l} {l} LEFT",
    "BZPOPMIN {z} 0.01",
    "BZMPOP 0.01 1 {z} MIN",
    "BRPOPLPUSH {l} {l} 0.01",
    "HSET {h} {m} {v}",
    "HSET {h} {m} {v} {m} {v}",
    "HGET {h} {m}",
    "HMGET {h} {m} {m}",
    "HGETALL {h}",
    "HDEL {h} {m}",
    "HINCRBY {h} {m} 2",
    "HINCRBYFLOAT {h} {m} 0.1",
    "HEXISTS {h} {m}",
    "HLEN {h}",
    "HTTL {h} FIELDS 1 {m}",
    "HEXPIRE {h} 1000 FIELDS 1 {m}",
    "HPERSIST {h} FIELDS 1 {m}",
    "HGETDEL {h} FIELDS 1 {m}",
    "HSETEX {h} EX 1000 FIELDS 1 {m} {v}",
    "HGETEX {h} EX 1000 FIELDS 1 {m}",
    "ZADD {z} {n} {m}",
    "ZADD {z} 0.1 {m}",
    "ZINCRBY {z} 0.2 {m}",
    "ZSCORE {z} {m}",
    "ZRANK {z} {m}",
    "ZRANK {z} {m} WITHSCORE",
    "ZREVRANK {z} {m} WITHSCORE",
    "ZRANK {z} {m} OOPS",
    "ZRANGE {z} 0 -1 WITHSCORES",
    "ZRANGESTORE {z} {z} 0 -1",
    "ZUNION 2 {z} {z} WITHSCORES",
    "ZUNIONSTORE {z} 2 {z} {z}",
    "ZINTERCARD 2 {z} {z}",
    "ZDIFF 2 {z} {z}",
    "ZPOPMIN {z}",
    "ZMPOP 2 {z} {z} MAX",
    "ZREM {z} {m}",
    "ZCARD {z}",
    "ZCOUNT {z} 0 5",
    "SADD {t} {m}",
    "SREM {t} {m}",
    "SCARD {t}",
    "SISMEMBER {t} {m}",
    "SINTER {t} {t}",
    "SINTERCARD 2 {t} {t}",
    "SINTERSTORE {t} {t} {t}",
    "SMOVE {t} {t} {m}",
    "SUNIONSTORE {t} {t} {t}",
    "PFADD {s} {v}",
    "PFCOUNT {s} {s}",
    "PFMERGE {s} {s} {s}",
    "GEOADD {z} 13 38 {m}",
    "GEOSEARCH {z} FROMLONLAT 15 37 BYRADIUS 200 km ASC",
    "GEOSEARCHSTORE {z} {z} FROMLONLAT 15 37 BYRADIUS 200 km",
    "GEORADIUS {z} 15 37 200 km STORE {z}",
    "GEORADIUS_RO {z} 15 37 200 km",
    "GEODIST {z} m1 m2",
    "XADD {x} NOMKSTREAM 1-1 f {v}",
    "XLEN {x}",
    "XRANGE {x} - +",
    "XDEL {x} 1-1",
    "XTRIM {x} MAXLEN 2",
    "XREAD COUNT 1 STREAMS {x} {x} 0 0",
    "XREAD BLOCK 10 STREAMS {x} 0",
    "XGROUP CREATE {x} g 0 MKSTREAM",
    "XGROUP DESTROY {x} g",
    "XREADGROUP GROUP g c STREAMS {x} >",
    "XACK {x} g 1-1",
    "SORT {l}",
    "SORT {l} ALPHA STORE {l}",
    "SORT {l} BY w_*",
    "SORT {l} BY nosort GET {s}",
    "SORT_RO {l} GET a*",
    "SORT_RO {l} ALPHA",
    "SORT {t} LIMIT 0 1 ALPHA GET # GET {s}",
    "PUBLISH {c} {v}",
    "SPUBLISH {c} {v}",
    "PUBSUB CHANNELS",
    "PUBSUB NUMSUB {c}",
    "DBSIZE",
    "FLUSHDB",
    "FLUSHALL",
    "SELECT {d}",
    "SWAPDB 1 1",
    "EVAL return{KEYS[1]} 1 {k}",
    "EVAL_RO return{1} 0",
    "EVAL return{redis.call('GET',KEYS[1])} 1 {s}",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "FCALL nosuch 1 {k}",
    "SCRIPT EXISTS ff",
    "FUNCTION LIST",
    "PING",
    "PING {v}",
    "ECHO {v}",
    "ACL WHOAMI",
    "ACL CAT",
    "CLIENT ID",
    "CLIENT GETNAME",
    "CLIENT SETNAME me",
    "CLIENT SETINFO lib-name x",
    "CLIENT NO-TOUCH ON",
    "CLIENT NOSUCH",
    "CONFIG GET maxmemory",
    "CONFIG SET hz 10",
    "COMMAND COUNT",
    "COMMAND GETKEYS GET {k}",
    "COMMAND GETKEYS PING",
    "INFO server",
    "WAIT 0 10",
    "NOSUCH {k}",
];
