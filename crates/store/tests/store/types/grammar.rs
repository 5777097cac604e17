//! Random commands, of which some are wrong.
//!
//! A template is words separated by spaces. `<name>` is chosen at random from a pool. `[ a | b ]` is an option that may
//! be left out. `{ a | b }` is a choice. A `*` after one of these repeats it.

use super::random::Random;

/// One command. The first element is its name.
pub type Command = Vec<Vec<u8>>;

/// Commands that only read.
pub const READS: &[&str] = &[
    "GET <s>",
    "STRLEN <s>",
    "GETRANGE <s> <index> <index>",
    "SUBSTR <s> <index> <index>",
    "MGET <s> { <s> | <any> }*",
    "GETBIT <s> <offset>",
    "BITCOUNT <s> [ <index> <index> [ BIT | BYTE ] ]",
    "BITPOS <s> { 0 | 1 | 2 } [ <index> [ <index> [ BIT | BYTE ] ] ]",
    "HGET <h> <member>",
    "HMGET <h> { <member> }*",
    "HGETALL <h>",
    "HKEYS <h>",
    "HVALS <h>",
    "HLEN <h>",
    "HEXISTS <h> <member>",
    "HSTRLEN <h> <member>",
    "HRANDFIELD <h> [ <draw> [ WITHVALUES ] ]",
    "LLEN <l>",
    "LRANGE <l> <index> <index>",
    "LRANGE <l> 0 -1",
    "LINDEX <l> <index>",
    "LPOS <l> <value> [ RANK <rank> | COUNT <count> | MAXLEN <count> ]*",
    "SCARD <t>",
    "SISMEMBER <t> <member>",
    "SMISMEMBER <t> { <member> }*",
    "SMEMBERS <t>",
    "SRANDMEMBER <t> [ <draw> ]",
    "SUNION { <t> | <any> }*",
    "SINTER <t> [ <t> ]*",
    "SDIFF <t> [ <t> ]*",
    "SINTERCARD { 1 <t> | 2 <t> <t> | <count> <t> <t> } [ LIMIT <count> ]",
    "ZCARD <z>",
    "ZSCORE <z> <member>",
    "ZMSCORE <z> { <member> }*",
    "ZRANK <z> <member>",
    "ZREVRANK <z> <member>",
    "ZCOUNT <z> <bound> <bound>",
    "ZLEXCOUNT <x> <lex> <lex>",
    "ZRANGE <z> <index> <index> [ WITHSCORES | REV ]*",
    "ZRANGE <z> 0 -1 WITHSCORES",
    "ZRANGE <z> <bound> <bound> BYSCORE [ REV | WITHSCORES | LIMIT <index> <index> ]*",
    "ZRANGE <x> <lex> <lex> BYLEX [ REV | WITHSCORES | LIMIT <index> <index> ]*",
    "ZRANGE <z> <index> <index> [ BYSCORE | BYLEX | REV | WITHSCORES | LIMIT <index> <index> ]*",
    "ZREVRANGE <z> <index> <index> [ WITHSCORES ]",
    "ZRANGEBYSCORE <z> <bound> <bound> [ WITHSCORES | LIMIT <index> <index> ]*",
    "ZREVRANGEBYSCORE <z> <bound> <bound> [ WITHSCORES | LIMIT <index> <index> ]*",
    "ZRANGEBYLEX <x> <lex> <lex> [ LIMIT <index> <index> ]*",
    "ZREVRANGEBYLEX <x> <lex> <lex> [ LIMIT <index> <index> ]*",
    "ZRANDMEMBER <z> [ <draw> [ WITHSCORES ] ]",
    "ZUNION { 1 <z> | 2 <z> <z> | 2 <z> <t> } [ WEIGHTS <score> <score> | AGGREGATE { SUM | MIN | MAX } | WITHSCORES ]*",
    "ZINTER { 1 <z> | 2 <z> <z> | 2 <z> <t> } [ WEIGHTS <score> <score> | AGGREGATE { SUM | MIN | MAX } | WITHSCORES ]*",
    "ZDIFF { 1 <z> | 2 <z> <z> | 3 <z> <z> <t> } [ WITHSCORES ]",
    "ZINTERCARD { 1 <z> | 2 <z> <z> | <count> <z> <z> } [ LIMIT <count> ]",
    "EXISTS { <any> }*",
    "TOUCH { <any> }*",
    "TYPE <any>",
    "TTL <any>",
    "PTTL <any>",
    "EXPIRETIME <any>",
    "PEXPIRETIME <any>",
    "KEYS <pattern>",
    "DBSIZE",
    "SORT_RO { <l> | <t> | <s> } ALPHA [ LIMIT <index> <index> | GET { # | s* | h*->1 | h*-> | <any> } | ASC | DESC ]*",
    "SORT { <l> | <t> | <h> } ALPHA [ LIMIT <index> <index> | ASC | DESC | foo ]*",
    "SORT <l> BY nosort [ LIMIT <index> <index> | DESC | GET # ]*",
    "RANDOMKEY",
    "PING [ <value> ]",
    "ECHO <value>",
    "SCAN <cursor> [ MATCH <pattern> | COUNT <count> | TYPE { string | zset | ZSET | none | foo } ]*",
    "HSCAN <h> <cursor> [ MATCH <pattern> | COUNT <count> ]*",
    "SSCAN <t> <cursor> [ MATCH <pattern> | COUNT <count> ]*",
    "ZSCAN <z> <cursor> [ MATCH <pattern> | COUNT <count> ]*",
];

/// Commands that change something.
pub const WRITES: &[&str] = &[
    "SET <s> <value> [ NX | XX | GET | KEEPTTL | EX <seconds> | PX <milliseconds> | EXAT <second> | PXAT <millisecond> ]*",
    "SET <s> <number>",
    "SET <any> <value>",
    "SETNX <s> <value>",
    "SETEX <s> <seconds> <value>",
    "PSETEX <s> <milliseconds> <value>",
    "GETSET <s> <value>",
    "GETDEL <s>",
    "GETEX <s> [ PERSIST | EX <seconds> | PX <milliseconds> | EXAT <second> | PXAT <millisecond> ]*",
    "MSET { <s> <value> }*",
    "MSETNX { <s> <value> }*",
    "APPEND <s> <value>",
    "SETRANGE <s> <offset> <value>",
    "SETBIT <s> <offset> { 0 | 1 | 2 }",
    "BITOP { AND | OR | XOR | NOT | and } <s> <s> [ <s> ]*",
    "INCR <s>",
    "DECR <s>",
    "INCRBY <s> <number>",
    "DECRBY <s> <number>",
    "INCRBYFLOAT <s> <score>",
    "HSET <h> { <member> <value> }*",
    "HSET <h> { <member> <number> }*",
    "HMSET <h> { <member> <value> }*",
    "HSETNX <h> <member> <value>",
    "HDEL <h> { <member> }*",
    "HINCRBY <h> <member> <number>",
    "HINCRBYFLOAT <h> <member> <score>",
    "LPUSH <l> { <value> | <member> }*",
    "RPUSH <l> { <value> | <member> }*",
    "LPUSHX <l> { <member> }*",
    "RPUSHX <l> { <member> }*",
    "LPOP <l> [ <count> ]",
    "RPOP <l> [ <count> ]",
    "LMPOP { 1 <l> | 2 <l> <l> | <count> <l> } { LEFT | RIGHT } [ COUNT <count> ]",
    "LSET <l> <index> <member>",
    "LTRIM <l> <index> <index>",
    "LINSERT <l> { BEFORE | AFTER } <member> <member>",
    "LREM <l> <index> <member>",
    "LMOVE <l> <l> { LEFT | RIGHT } { LEFT | RIGHT }",
    "RPOPLPUSH <l> <l>",
    "SADD <t> { <member> }*",
    "SREM <t> { <member> }*",
    "SMOVE <t> <t> <member>",
    "SPOP <t> [ <count> ]",
    "SUNIONSTORE <t> { <t> }*",
    "SINTERSTORE <t> <t> [ <t> ]*",
    "SDIFFSTORE <t> <t> [ <t> ]*",
    "ZADD <z> [ NX | XX | GT | LT | CH | INCR ]* { <score> <member> }*",
    "ZADD <z> { <score> <member> }*",
    "ZADD <x> { 0 <member> }*",
    "ZADD <z> <score> <member>",
    "ZINCRBY <z> <score> <member>",
    "ZREM <z> { <member> }*",
    "ZPOPMIN <z> [ <count> ]",
    "ZPOPMAX <z> [ <count> ]",
    "ZMPOP { 1 <z> | 2 <z> <z> | <count> <z> } { MIN | MAX } [ COUNT <count> ]",
    "ZREMRANGEBYRANK <z> <index> <index>",
    "ZREMRANGEBYSCORE <z> <bound> <bound>",
    "ZREMRANGEBYLEX <x> <lex> <lex>",
    "ZRANGESTORE <z> <z> <bound> <bound> BYSCORE [ REV | LIMIT <index> <index> ]*",
    "ZRANGESTORE <z> <z> <index> <index> [ REV | BYSCORE ]",
    "ZUNIONSTORE <z> { 1 <z> | 2 <z> <z> | 2 <z> <t> } [ WEIGHTS <score> <score> | AGGREGATE { SUM | MIN | MAX } ]*",
    "ZINTERSTORE <z> { 1 <z> | 2 <z> <z> | 2 <z> <t> } [ WEIGHTS <score> <score> | AGGREGATE { SUM | MIN | MAX } ]*",
    "ZDIFFSTORE <z> { 1 <z> | 2 <z> <z> }",
    "DEL { <any> }*",
    "UNLINK { <any> }*",
    "EXPIRE <any> <seconds> [ NX | XX | GT | LT ]*",
    "PEXPIRE <any> <milliseconds> [ NX | XX | GT | LT ]*",
    "EXPIREAT <any> <second> [ NX | XX | GT | LT ]*",
    "PEXPIREAT <any> <millisecond> [ NX | XX | GT | LT ]*",
    "PERSIST <any>",
    "RENAME <any> <any>",
    "RENAMENX <any> <any>",
    "SORT { <l> | <t> } ALPHA LIMIT 0 20 STORE <l>",
    "COPY <any> <any> [ DB { 0 | 1 | 2 | 16 | <number> } | REPLACE ]*",
    "MOVE <any> { 0 | 1 | 2 | 16 | <number> }",
];

/// Commands that wait, unless they stand in a transaction.
pub const BLOCKING: &[&str] = &[
    "BLPOP { <l> | <any> }* <wait>",
    "BRPOP { <l> }* <wait>",
    "BLMOVE <l> <l> { LEFT | RIGHT | up } { LEFT | RIGHT } <wait>",
    "BRPOPLPUSH <l> <l> <wait>",
    "BLMPOP <wait> { 1 <l> | 2 <l> <l> | <count> <l> } { LEFT | RIGHT } [ COUNT <count> ]",
    "BZPOPMIN { <z> | <any> }* <wait>",
    "BZPOPMAX { <z> }* <wait>",
    "BZMPOP <wait> { 1 <z> | 2 <z> <z> | <count> <z> } { MIN | MAX } [ COUNT <count> ]",
];

/// Commands that are chosen rarely, because they would keep all collections small.
pub const RARE: &[&str] = &[
    "FLUSHALL [ SYNC | ASYNC | <value> ]",
    "FLUSHDB [ SYNC | ASYNC ]",
    "NOSUCH { <value> }*",
];

const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "5",
    "-3",
    "10",
    "100",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775806",
    "4611686018427387904",
    "9223372036854775808",
    "2147483648",
    "-2147483649",
    "01",
    "-0",
    "+1",
    "1.5",
    "x",
    "",
    " 1",
];
const SCORES: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "1.5",
    "-2.5",
    "0.1",
    "3.3",
    "1e3",
    "1e-3",
    "inf",
    "-inf",
    "+inf",
    "infinity",
    "nan",
    "-0",
    "1e308",
    "-1e308",
    "1e309",
    "1e-400",
    "5e-324",
    "0x10",
    "0x1.8p1",
    "9007199254740993",
    "100000000000000000",
    "3000000000000000000",
    "1e19",
    "1e20",
    "12345678.9012345678",
    "0.30000000000000004",
    "1e17",
    "123456789012345678",
    ".5",
    "5.",
    "1e",
    "x",
    "",
    " 1",
    "1 ",
    "10.50",
    "5.0e3",
    "-1e-7",
    "17179869184.25",
];
const BOUNDS: &[&str] = &[
    "0", "1", "(1", "2", "(2", "-1", "3", "1.5", "(1.5", "-inf", "+inf", "inf", "(inf", "(-inf",
    "", "(", " 1", "nan", "x", "1e309", "-1e309", "1e3", "100", "-100",
];
const MEMBERS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"aa",
    b"ab",
    b"b\0",
    b"",
    b"1",
    b"2",
    b"-1",
    b"10",
    b"007",
    b"\xff\xfe",
    b"two\r\nlines",
    b"A longer member, of more than sixty-four bytes, which changes how Redis keeps it",
];
const VALUES: &[&[u8]] = &[
    b"a",
    b"b",
    b"",
    b"0",
    b"1",
    b"-1",
    b"12",
    b"value",
    b"\0\x01\x80\xff",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"1.5",
    b"3.0e3",
    b"inf",
    b"nan",
    b" 1",
    b"1 ",
    b"hello world",
    b"\r\n",
    b"0x1f",
];
const LEX: &[&[u8]] = &[
    b"-", b"+", b"[a", b"(a", b"[b", b"(b", b"[aa", b"(ab", b"[", b"(", b"[\xff", b"[1", b"(2",
    b"a", b"", b"+x", b"-\0",
];
const PATTERNS: &[&str] = &[
    "*", "s*", "*1", "?1", "[sh]?", "[^s]*", "[a-l]*", "\\s1", "x", "", "**", "s[", "*[0-9]",
    "[z-s]2", "s\\", "a*b*",
];
const INDICES: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "3",
    "5",
    "-5",
    "7",
    "-7",
    "20",
    "-20",
    "100",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "",
    "1.0",
];
const COUNTS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "4",
    "10",
    "100",
    "-1",
    "-2",
    "9223372036854775807",
    "x",
    "",
];
const DRAWS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "10",
    "1000",
    "-1",
    "-2",
    "-5",
    "-9223372036854775808",
    "9223372036854775807",
    "x",
];
const RANKS: &[&str] = &["1", "2", "3", "-1", "-2", "-3", "0", "100", "x"];
const OFFSETS: &[&str] = &[
    "0",
    "1",
    "2",
    "7",
    "8",
    "9",
    "31",
    "63",
    "64",
    "100",
    "1000",
    "-1",
    "4294967296",
    "536870912",
    "9223372036854775807",
    "x",
];
const SECONDS: &[&str] = &[
    "1000",
    "2000",
    "100000",
    "1",
    "0",
    "-1",
    "9223372036854775807",
    "9223372036854775",
    "-9223372036854775807",
    "x",
];
const CURSORS: &[&str] = &["0", "x", "-", "", "18446744073709551616", " 1"];
/// Absolute times that are far from the time of any test.
const SECOND: &[&str] = &[
    "32503680000",
    "32503690000",
    "1",
    "0",
    "-1",
    "9223372036854775807",
    "x",
];

/// Settings of the random commands.
#[derive(Clone, Copy)]
pub struct Grammar {
    /// Whether many members are chosen, also in one command, so that collections become large.
    pub wide: bool,
}

impl Grammar {
    /// Returns a random command, which is sometimes malformed.
    pub fn command(self, random: &mut Random, templates: &[&str]) -> Command {
        let template = random.pick(templates);
        let words: Vec<&str> = template.split(' ').collect();
        let mut command = Vec::new();
        self.expand(random, &words, &mut command);
        if random.below(25) == 0 {
            self.damage(random, &mut command);
        }
        tame(&mut command);
        command
    }

    fn damage(self, random: &mut Random, command: &mut Command) {
        let at = 1 + random.below(command.len());
        match random.below(4) {
            0 if at < command.len() => drop(command.remove(at)),
            1 => command.insert(at, self.pool(random, "value")),
            2 if at < command.len() => command[at] = self.pool(random, "number"),
            _ => command[0].make_ascii_lowercase(),
        }
    }

    fn expand(self, random: &mut Random, words: &[&str], out: &mut Command) {
        let mut at = 0;
        while at < words.len() {
            let word = words[at];
            if word == "[" || word == "{" {
                let close = closing(words, at);
                let repeated = words[close].ends_with('*');
                let parts = alternatives(&words[at + 1..close]);
                let least = u64::from(word == "{");
                let times = if repeated {
                    least + random.below_u64(if self.wide { 30 } else { 4 })
                } else {
                    least + random.below_u64(2 - least)
                };
                for _ in 0..times {
                    let part = random.pick(&parts);
                    self.expand(random, part, out);
                }
                at = close;
            } else if let Some(name) = word.strip_prefix('<') {
                out.push(self.pool(random, name.trim_end_matches('>')));
            } else {
                out.push(word.as_bytes().to_vec());
            }
            at += 1;
        }
    }

    fn pool(self, random: &mut Random, name: &str) -> Vec<u8> {
        let words = |words: &[&str], random: &mut Random| random.pick(words).as_bytes().to_vec();
        match name {
            // The type of the key is right in most cases.
            "s" | "h" | "l" | "t" | "z" | "x" => {
                let name = if random.below(25) == 0 {
                    random.pick(&["s", "h", "l", "t", "z", "x"])
                } else {
                    name
                };
                match random.below(12) {
                    0 => format!("{name}none").into_bytes(),
                    1 => [name.as_bytes(), b"\0\xff\r\n"].concat(),
                    n => format!("{name}{}", n % 3).into_bytes(),
                }
            }
            "any" => {
                let kind = random.pick(&["s", "h", "l", "t", "z", "x", "s"]);
                if random.below(30) == 0 {
                    Vec::new()
                } else {
                    self.pool(random, kind)
                }
            }
            "value" if random.below(60) == 0 => vec![b'v'; 200 + random.below(5000)],
            "value" => random.pick(VALUES).to_vec(),
            "member" if self.wide || random.below(8) == 0 => {
                random.below(300).to_string().into_bytes()
            }
            "member" => random.pick(MEMBERS).to_vec(),
            "number" => words(NUMBERS, random),
            "score" if random.below(4) == 0 => {
                let scale = random.pick(&[1.0, 10.0, 1000.0, 1e9]);
                let number = f64::from(u32::try_from(random.below(20_000)).unwrap()) - 10_000.0;
                format!("{}", number / scale).into_bytes()
            }
            "score" => words(SCORES, random),
            "bound" => words(BOUNDS, random),
            "lex" => random.pick(LEX).to_vec(),
            "pattern" => words(PATTERNS, random),
            "index" => words(INDICES, random),
            "count" => words(COUNTS, random),
            "draw" => words(DRAWS, random),
            "rank" => words(RANKS, random),
            "offset" => words(OFFSETS, random),
            "wait" if random.below(3) > 0 => b"1".to_vec(),
            "wait" => words(SCORES, random),
            "seconds" => words(SECONDS, random),
            "milliseconds" => match words(SECONDS, random) {
                text if text == b"1000" || text == b"2000" || text == b"1" => {
                    [&text[..], b"00000"].concat()
                }
                text => text,
            },
            "second" => words(SECOND, random),
            "millisecond" => match words(SECOND, random) {
                text if text.starts_with(b"325") => [&text[..], b"000"].concat(),
                text => text,
            },
            "cursor" => words(CURSORS, random),
            other => panic!("no pool {other}"),
        }
    }
}

/// Limits values to sizes at which a million commands are possible, and avoids forms whose result Redis leaves
/// undefined.
fn tame(command: &mut Command) {
    let name = command[0].to_ascii_uppercase();
    let large = |text: &Vec<u8>, limit: u64| {
        pmnet_resp::parse_integer(text)
            .is_some_and(|n| (limit + 1..1 << 33).contains(&n.unsigned_abs()))
    };
    // No key may expire during the test.
    for at in 1..command.len() {
        let before = command[at - 1].to_ascii_uppercase();
        let least = match (name.as_slice(), before.as_slice(), at) {
            (b"SETEX" | b"EXPIRE", _, 2) | (b"SET" | b"GETEX", b"EX", _) => 1000,
            (b"PSETEX" | b"PEXPIRE", _, 2) | (b"SET" | b"GETEX", b"PX", _) => 1_000_000,
            _ => continue,
        };
        if pmnet_resp::parse_integer(&command[at]).is_some_and(|n| (1..least).contains(&n)) {
            command[at] = least.to_string().into_bytes();
        }
    }
    match name.as_slice() {
        b"SETRANGE" | b"SETBIT" if command.get(2).is_some_and(|text| large(text, 4000)) => {
            command[2] = b"100".to_vec();
        }
        b"SRANDMEMBER" | b"HRANDFIELD" | b"ZRANDMEMBER" => {
            let draws = command
                .get(2)
                .and_then(|text| pmnet_resp::parse_integer(text));
            if draws.is_some_and(|n| n < -100 && n != i64::MIN) {
                command[2] = b"-7".to_vec();
            }
        }
        b"LPOS" => {
            for word in command.iter_mut().skip(3) {
                if word == b"-9223372036854775808" {
                    *word = b"-4".to_vec();
                }
            }
        }
        _ => {}
    }
}

fn closing(words: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(open) {
        match *word {
            "[" | "{" => depth += 1,
            "]" | "}" | "]*" | "}*" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("{words:?} has no end");
}

fn alternatives<'a, 't>(words: &'a [&'t str]) -> Vec<&'a [&'t str]> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, word) in words.iter().enumerate() {
        match *word {
            "[" | "{" => depth += 1,
            "]" | "}" | "]*" | "}*" => depth -= 1,
            "|" if depth == 0 => {
                parts.push(&words[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&words[from..]);
    parts
}
