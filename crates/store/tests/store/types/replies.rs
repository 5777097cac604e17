//! Compares replies byte for byte. Exceptions are elements without an order in Redis, times, and random members.

/// A reply as a tree, whose leaves are bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Leaf(Vec<u8>),
    /// An aggregate reply: the byte of its type, and its parts.
    Branch(u8, Vec<Node>),
}

fn line(bytes: &[u8]) -> (&[u8], usize) {
    let end = bytes
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .expect("a line");
    (&bytes[..end], end + 2)
}

/// Parses one reply. Returns the reply and its length.
pub fn parse(bytes: &[u8]) -> (Node, usize) {
    let (head, mut at) = line(bytes);
    let count = || -> i64 { std::str::from_utf8(&head[1..]).unwrap().parse().unwrap() };
    match head[0] {
        b'$' => {
            let length = usize::try_from(count()).ok();
            at += length.map_or(0, |length| length + 2);
            (Node::Leaf(bytes[..at].to_vec()), at)
        }
        kind @ (b'*' | b'~' | b'%') => {
            let Ok(mut parts) = usize::try_from(count()) else {
                return (Node::Leaf(bytes[..at].to_vec()), at);
            };
            if kind == b'%' {
                parts *= 2;
            }
            let mut found = Vec::new();
            for _ in 0..parts {
                let (part, length) = parse(&bytes[at..]);
                found.push(part);
                at += length;
            }
            (Node::Branch(kind, found), at)
        }
        _ => (Node::Leaf(bytes[..at].to_vec()), at),
    }
}

/// Returns the elements of an array, or `None` for any other reply.
pub fn parts(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (head, start) = line(bytes);
    let is_array = head[0] == b'*' && head[1] != b'-';
    is_array.then(|| split(&bytes[start..]))
}

/// Splits several replies that follow each other.
pub fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (_, length) = parse(bytes);
        found.push(bytes[..length].to_vec());
        bytes = &bytes[length..];
    }
    found
}

/// How the two replies to a command are compared.
enum Comparison {
    Exact,
    /// The elements are equal, in any order.
    Unordered,
    /// The pairs of a map, or of a flat array, are equal, in any order.
    UnorderedPairs,
    /// Types and numbers of elements are equal. The elements themselves are random.
    Shape,
    /// The numbers depend on the clock. The value is the unit of the numbers in milliseconds.
    Time(i64),
    /// The reply is a page of a scan. Its elements come in any order, and the cursor is ignored.
    Page,
    /// Redis compares elements with strcoll(3), which stops at a zero byte. Elements that are equal up to a zero byte
    /// come in any order.
    Collated,
}

fn comparison(name: &[u8]) -> Comparison {
    match name {
        b"HKEYS" | b"HVALS" | b"SMEMBERS" | b"SUNION" | b"SINTER" | b"SDIFF" | b"KEYS" => {
            Comparison::Unordered
        }
        b"HGETALL" => Comparison::UnorderedPairs,
        b"SPOP" | b"SRANDMEMBER" | b"HRANDFIELD" | b"ZRANDMEMBER" | b"RANDOMKEY" => {
            Comparison::Shape
        }
        b"TTL" | b"EXPIRETIME" => Comparison::Time(1000),
        b"PTTL" | b"PEXPIRETIME" => Comparison::Time(1),
        b"SCAN" | b"HSCAN" | b"SSCAN" | b"ZSCAN" => Comparison::Page,
        b"SORT" | b"SORT_RO" => Comparison::Collated,
        _ => Comparison::Exact,
    }
}

/// Maximum difference between the clocks of the two sides, in milliseconds.
const APART_MS: i64 = 3000;

fn sorted(node: Node, pairs: bool) -> Node {
    match node {
        Node::Branch(kind, parts) if pairs => {
            let mut chunks: Vec<Vec<Node>> = parts.chunks(2).map(<[Node]>::to_vec).collect();
            chunks.sort();
            Node::Branch(kind, chunks.concat())
        }
        Node::Branch(kind, mut parts) => {
            parts.sort();
            Node::Branch(kind, parts)
        }
        leaf => leaf,
    }
}

fn shape(node: Node) -> Node {
    match node {
        Node::Leaf(bytes) if bytes[0] == b'$' && bytes[1] != b'-' => Node::Leaf(b"$".to_vec()),
        Node::Leaf(bytes) if bytes[0] == b',' => Node::Leaf(b",".to_vec()),
        Node::Branch(kind, parts) => Node::Branch(kind, parts.into_iter().map(shape).collect()),
        leaf => leaf,
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes.strip_prefix(b":")?)
        .ok()?
        .trim_end()
        .parse()
        .ok()
}

/// Returns whether both replies can be answers to the same command in the same state.
pub fn same(name: &[u8], ours: &[u8], theirs: &[u8]) -> bool {
    if ours == theirs {
        return true;
    }
    let (a, b) = (parse(ours).0, parse(theirs).0);
    match comparison(&name.to_ascii_uppercase()) {
        Comparison::Exact => false,
        Comparison::Collated => ours.contains(&0) && sorted(a, false) == sorted(b, false),
        Comparison::Unordered => sorted(a, false) == sorted(b, false),
        Comparison::UnorderedPairs => sorted(a, true) == sorted(b, true),
        Comparison::Shape => shape(a) == shape(b),
        Comparison::Time(unit) => match (number(ours), number(theirs)) {
            (Some(a), Some(b)) => a > 0 && b > 0 && (a - b).abs() * unit <= APART_MS,
            _ => false,
        },
        // Pages may differ; whole iterations are compared elsewhere.
        Comparison::Page => matches!((a, b), (Node::Branch(..), Node::Branch(..))),
    }
}
