//! Random commands of memcached, and their answers in a form that can be compared. Tests include this source file by
//! its path.
//!
//! Two servers get the same commands: a real memcached, and the front. Parts of answers that always differ are removed:
//! uniques, and the seconds until an item expires. If a command has a unique, each server gets the unique that it has
//! last shown for the key.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The command that is sent after each exchange. The answer to this command shows that all commands before it are
/// answered.
pub const FENCE: &[u8] = b"mn\r\n";
const FENCED: &[u8] = b"MN\r\n";
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The largest possible unique, which no item has.
const NO_UNIQUE: &str = "18446744073709551615";
/// Length of data that is too large for an item.
const LARGE: usize = 1_048_577;

/// A part of a command.
#[derive(Clone, Debug)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// The unique that the server has last shown for this key.
    Unique(&'static str),
}

/// Makes random commands.
pub struct Script {
    random: fastrand::Rng,
}

const KEYS: &[&str] = &["a", "b", "counter", "k:4"];
/// A key that is used only in its base64 form.
const BINARY_KEY: &str = "Zm9vIGJhcg==";
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "9",
    "10",
    "99",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "x",
    "",
    "5 ",
    " 7",
    "+3",
    "007",
];
const TIMES: &[&str] = &["0", "0", "0", "100", "-1", "2592001", "x"];

impl Script {
    pub fn new(seed: u64) -> Script {
        Script {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn key(&mut self) -> &'static str {
        self.pick(KEYS)
    }

    /// Returns data without a minus sign. After a number of 2^63 or more, memcached 1.6 looks for a minus sign even
    /// after the item's end, in memory that other items have used.
    fn data(&mut self) -> Vec<u8> {
        match self.random.usize(..12) {
            0..=4 => self.pick(NUMBERS).replace('-', "").into(),
            5 => vec![b'x'; self.random.usize(..1500)],
            6 => (0..self.random.usize(..40))
                .map(|_| self.random.u8(..))
                .filter(|byte| !b"M-".contains(byte))
                .collect(),
            _ => self.pick(&["abc", "v", "hello world"]).into(),
        }
    }

    /// Returns some commands that are sent together. A command that counts (incr, decr) is sent alone. If the item of
    /// the command was just read, memcached counts in a new item, and adds no blanks after a shorter number.
    pub fn together(&mut self, most: usize) -> Vec<Piece> {
        let counts = |command: &[Piece]| {
            let Some(Piece::Bytes(bytes)) = command.first() else {
                return false;
            };
            [&b"incr"[..], b"decr", b"ma "]
                .into_iter()
                .any(|name| bytes.starts_with(name))
        };
        let mut all = self.command();
        let count = if counts(&all) {
            0
        } else {
            self.random.usize(..most)
        };
        for _ in 0..count {
            let next = self.command();
            if !counts(&next) {
                all.extend(next);
            }
        }
        all
    }

    /// Returns the next command, with its data.
    fn command(&mut self) -> Vec<Piece> {
        let key = self.key();
        let quiet = if self.random.usize(..6) == 0 {
            " noreply"
        } else {
            ""
        };
        let flags = self.pick(&["0", "7", "4294967295", "4294967296", "x", "-1"]);
        let flags = if self.random.bool() { "0" } else { flags };
        let time = self.pick(TIMES);
        match self.random.usize(..40) {
            0..=6 => {
                let verb = self.pick(&["set", "add", "replace", "append", "prepend"]);
                let data = self.data();
                self.store(
                    &format!("{verb} {key} {flags} {time} {}{quiet}", data.len()),
                    &data,
                )
            }
            7 | 8 => {
                let data = self.data();
                let line = format!("cas {key} {flags} {time} {} ", data.len());
                self.with_unique(line, key, &format!("{quiet}\r\n"), Some(data))
            }
            9..=12 => {
                let verb = self.pick(&["incr", "decr"]);
                line(format!("{verb} {key} {}{quiet}", self.pick(NUMBERS)))
            }
            13 => line(format!("touch {key} {time}{quiet}")),
            14 => line(format!("delete {key}{quiet}")),
            15 => line(format!(
                "delete {key} {}{quiet}",
                self.pick(&["0", "1", "x"])
            )),
            16..=18 => {
                let verb = self.pick(&["get", "gets"]);
                let keys: Vec<&str> = (0..self.random.usize(..5)).map(|_| self.key()).collect();
                line(format!("{verb} {}", keys.join(" ")))
            }
            19 => {
                let verb = self.pick(&["gat", "gats"]);
                line(format!("{verb} {time} {key} {}", self.key()))
            }
            20 if self.random.usize(..8) == 0 => line(format!("flush_all{quiet}")),
            20 => self.odd(),
            21..=26 => self.meta_get(),
            27..=31 => self.meta_set(),
            32..=34 => self.meta_delete(),
            35..=38 => self.meta_count(),
            _ => self.odd(),
        }
    }

    fn store(&mut self, head: &str, data: &[u8]) -> Vec<Piece> {
        // The data is longer or shorter than its command says.
        let wrong = match self.random.usize(..60) {
            0 => &b"12"[..],
            _ => b"",
        };
        vec![Piece::Bytes(
            [head.as_bytes(), b"\r\n", data, wrong, b"\r\n"].concat(),
        )]
    }

    fn with_unique(
        &mut self,
        head: String,
        key: &'static str,
        tail: &str,
        data: Option<Vec<u8>>,
    ) -> Vec<Piece> {
        let unique = match self.random.usize(..6) {
            0 => Piece::Bytes(self.pick(&["0", NO_UNIQUE, "x"]).into()),
            _ => Piece::Unique(key),
        };
        let mut tail = tail.as_bytes().to_vec();
        if let Some(data) = data {
            tail.extend_from_slice(&data);
            tail.extend_from_slice(b"\r\n");
        }
        vec![Piece::Bytes(head.into_bytes()), unique, Piece::Bytes(tail)]
    }

    fn name(&mut self) -> (&'static str, &'static str) {
        match self.random.usize(..5) {
            0 => (BINARY_KEY, " b"),
            _ => (self.key(), ""),
        }
    }

    fn flags(&mut self, of: &[&'static str]) -> String {
        let mut chosen: Vec<&str> = of
            .iter()
            .copied()
            .filter(|_| self.random.usize(..3) == 0)
            .collect();
        self.random.shuffle(&mut chosen);
        if self.random.usize(..60) == 0 {
            chosen.push(self.pick(&[
                "v", "v v", "?", "Nx", "Tx", "Fx", "Cx", "M", "MM", "MZ", "Jx", "Dx",
            ]));
        }
        chosen.iter().map(|flag| format!(" {flag}")).collect()
    }

    fn meta_get(&mut self) -> Vec<Piece> {
        let (key, binary) = self.name();
        let mut flags = self.flags(&["k", "Oopaque", "s", "t", "c", "f", "v", "q", "u", "N100"]);
        flags += self.pick(&["", "", "", " T100", " R30", " R200", " T0"]);
        line(format!("mg {key}{binary}{flags}"))
    }

    fn meta_set(&mut self) -> Vec<Piece> {
        let (key, binary) = self.name();
        let data = self.data();
        let mut flags = self.flags(&["k", "Oopaque", "c", "q", "F7", "T100", "I"]);
        flags += self.pick(&["", "", "", " MS", " ME", " MA", " MP", " MR"]);
        let head = format!("ms {key} {}{binary}{flags}", data.len());
        if binary.is_empty() && self.random.usize(..3) == 0 {
            return self.with_unique(format!("{head} C"), key, "\r\n", Some(data));
        }
        self.store(&head, &data)
    }

    fn meta_delete(&mut self) -> Vec<Piece> {
        let (key, binary) = self.name();
        let flags = self.flags(&["k", "Oopaque", "q", "I", "T100"]);
        if binary.is_empty() && self.random.usize(..3) == 0 {
            return self.with_unique(format!("md {key}{flags} C"), key, "\r\n", None);
        }
        line(format!("md {key}{binary}{flags}"))
    }

    fn meta_count(&mut self) -> Vec<Piece> {
        let (key, binary) = self.name();
        let mut flags = self.flags(&["k", "Oopaque", "t", "c", "v", "q", "N100", "J13", "D2"]);
        flags += self.pick(&["", "", " MI", " MD", " M+", " M-"]);
        if binary.is_empty() && self.random.usize(..4) == 0 {
            return self.with_unique(format!("ma {key}{flags} C"), key, "\r\n", None);
        }
        line(format!("ma {key}{binary}{flags}"))
    }

    fn odd(&mut self) -> Vec<Piece> {
        let long = "k".repeat(251);
        let text = match self.random.usize(..26) {
            0 => String::new(),
            1 => "x".into(),
            2 => "nothing".into(),
            3 => "set".into(),
            4 => format!("set {long} 0 0 1"),
            5 => "get".into(),
            6 => format!("mg {long} v"),
            7 => "set a 0 0 -1".into(),
            8 => "incr a".into(),
            9 => "touch a".into(),
            10 => "gat".into(),
            11 => "gat 5".into(),
            12 => "mg".into(),
            13 => "ms a".into(),
            14 => "ms a S5".into(),
            15 => format!("mg a O{}", "o".repeat(32)),
            16 => "verbosity 1".into(),
            17 => "verbosity".into(),
            18 => "flush_all x".into(),
            19 => "cas a 0 0 1".into(),
            20 => format!("  get   a  {} ", self.key()),
            21 => "mg notbase64! b v".into(),
            22 => "mx a".into(),
            23 => "gats 5".into(),
            24 if self.random.usize(..10) == 0 => {
                let head = format!("set a 0 0 {LARGE}\r\n");
                return vec![Piece::Bytes(
                    [head.as_bytes(), &vec![b'l'; LARGE], b"\r\n"].concat(),
                )];
            }
            _ => "stats reset".into(),
        };
        line(text)
    }
}

fn line(text: String) -> Vec<Piece> {
    vec![Piece::Bytes([text.as_bytes(), b"\r\n"].concat())]
}

/// Returns the line with `that` instead of `this`.
fn replaced(line: &[u8], this: &[u8], that: &[u8]) -> Vec<u8> {
    match line.windows(this.len()).position(|part| part == this) {
        Some(at) => [&line[..at], that, &line[at + this.len()..]].concat(),
        None => line.to_vec(),
    }
}

/// The uniques that one server has shown.
#[derive(Default)]
pub struct Known(HashMap<Vec<u8>, Vec<u8>>);

impl Known {
    /// Returns a command for this server, with its uniques.
    pub fn render(&self, pieces: &[Piece]) -> Vec<u8> {
        let render = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.clone(),
            Piece::Unique(key) => self
                .0
                .get(key.as_bytes())
                .cloned()
                .unwrap_or_else(|| NO_UNIQUE.into()),
        };
        pieces.iter().flat_map(render).collect()
    }

    /// Returns an answer without the parts that always differ between two servers.
    pub fn normalise(&mut self, answer: &[u8]) -> String {
        let mut out = String::new();
        let mut rest = answer;
        while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
            let (line, behind) = (&rest[..end], &rest[end + 2..]);
            rest = behind;
            // memcached has made this item itself, and forgets that the key is binary.
            let line = replaced(line, b" kfoo bar", b" kZm9vIGJhcg== b");
            let mut words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let length = match (words[0], words.len()) {
                (b"VALUE", 4 | 5) => Some(words[3]),
                (b"VA", 2..) => Some(words[1]),
                _ => None,
            };
            if let (b"VALUE", [_, key, _, _, unique]) = (words[0], &words[..]) {
                self.0.insert(key.to_vec(), unique.to_vec());
                words[4] = b"U";
            }
            if matches!(words[0], b"VA" | b"HD" | b"EX" | b"NF" | b"NS") {
                let key = words.iter().find_map(|word| word.strip_prefix(b"k"));
                let key = key.map(<[u8]>::to_vec);
                for word in &mut words[1..] {
                    let digits =
                        |word: &[u8]| word.len() > 1 && word[1..].iter().all(u8::is_ascii_digit);
                    match word.first() {
                        Some(b'c') if digits(word) && *word != b"c0" => {
                            if let Some(key) = &key {
                                self.0.insert(key.clone(), word[1..].to_vec());
                            }
                            *word = b"cU";
                        }
                        Some(b't') if digits(word) && word.len() > 2 => *word = b"tN",
                        _ => {}
                    }
                }
            }
            out += &String::from_utf8_lossy(&words.join(&b' '));
            out.push('\n');
            if let Some(length) =
                length.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok())
            {
                let data = &rest[..length.min(rest.len())];
                out += &format!("{} bytes: {}\n", data.len(), data.escape_ascii());
                rest = rest.get(length + 2..).unwrap_or_default();
            }
        }
        out + &rest.escape_ascii().to_string()
    }
}

/// A connection on which a fence ends each exchange.
pub struct Caller(TcpStream);

impl Caller {
    pub fn connect(address: SocketAddr) -> Caller {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            if let Ok(stream) = TcpStream::connect(address) {
                stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
                stream.set_nodelay(true).unwrap();
                return Caller(stream);
            }
            assert!(Instant::now() < deadline, "nobody listens at {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends commands. Returns their answers.
    pub fn exchange(&mut self, commands: &[u8]) -> std::io::Result<Vec<u8>> {
        self.0.write_all(&[commands, FENCE].concat())?;
        let mut answer = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        while !answer.ends_with(FENCED) {
            match self.0.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
        answer.truncate(answer.len() - FENCED.len());
        Ok(answer)
    }
}

/// A real memcached. The process is killed when this value is dropped.
pub struct Memcached {
    child: Child,
    pub address: SocketAddr,
}

impl Memcached {
    /// Starts a memcached. Returns `None` if this machine has none.
    pub fn start() -> Option<Memcached> {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let port = address.port().to_string();
        let child = Command::new("memcached")
            .args([
                "-l",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "0",
                "-u",
                "nobody",
                "-t",
                "1",
                // The maintainer thread of memcached sometimes holds an item that was read. A shorter number then gets
                // no blanks. `no_lru_maintainer` switches the thread off.
                "-o",
                "no_lru_maintainer,no_lru_crawler",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Memcached {
            child: child.ok()?,
            address,
        })
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // memcached may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
