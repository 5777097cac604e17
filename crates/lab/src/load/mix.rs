//! Mixes of operations. A mix is a list with weights (`set:80,get:20`), or each write is followed
//! by a read of its key (`alternate`).

use super::history::Op;

/// Maximum number of parts of a mix.
const PARTS_MAX: usize = 16;
/// Largest weight of one part.
const WEIGHT_MAX: u32 = 1_000_000;

/// Name of the mix in which each client reads what it has just written.
const ALTERNATE: &str = "alternate";

/// A random choice among operations with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    parts: Vec<(Op, u32)>,
    total: u32,
    /// The parts come in turn, and every second operation uses the key of the operation before.
    alternate: bool,
}

/// The reason why a mix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// The name is not that of an operation that a mix can have.
    #[error("unknown operation {0:?}; there are set, get, incr, lpush, rpush, mset, setnx, ping")]
    Operation(String),
    /// The weight is not a number from 1 to a million.
    #[error("bad weight {0:?}: a number from 1 to 1000000 is needed")]
    Weight(String),
    /// The mix has no parts, or too many.
    #[error("a mix has 1 to {PARTS_MAX} parts, such as set:80,get:20, or is {ALTERNATE}")]
    Parts,
}

impl Mix {
    /// Builds a mix from operations and weights.
    ///
    /// # Errors
    /// Fails if the mix is invalid: [`MixError`].
    pub fn new(parts: Vec<(Op, u32)>) -> Result<Mix, MixError> {
        if parts.is_empty() || parts.len() > PARTS_MAX {
            return Err(MixError::Parts);
        }
        for (_, weight) in &parts {
            if !(1..=WEIGHT_MAX).contains(weight) {
                return Err(MixError::Weight(weight.to_string()));
            }
        }
        let total = parts.iter().map(|(_, weight)| weight).sum();
        Ok(Mix {
            parts,
            total,
            alternate: false,
        })
    }

    /// Returns a mix of one operation.
    #[must_use]
    pub fn only(op: Op) -> Mix {
        Mix {
            parts: vec![(op, 1)],
            total: 1,
            alternate: false,
        }
    }

    /// Returns a mix in which a `GET` of the same key follows each `SET`. Each client has keys of
    /// its own.
    #[must_use]
    pub fn alternate() -> Mix {
        Mix {
            parts: vec![(Op::Set, 1), (Op::Get, 1)],
            total: 2,
            alternate: true,
        }
    }

    /// Returns the operation of a client's turn (counted from 0), and whether it uses the key of
    /// the turn before.
    pub fn next(&self, turn: u64, random: &mut fastrand::Rng) -> (Op, bool) {
        if self.alternate {
            let again = !turn.is_multiple_of(2);
            return (self.parts[usize::from(again)].0, again);
        }
        (self.draw(random), false)
    }

    fn draw(&self, random: &mut fastrand::Rng) -> Op {
        let mut point = random.u32(0..self.total);
        for (op, weight) in &self.parts {
            match point.checked_sub(*weight) {
                None => return *op,
                Some(rest) => point = rest,
            }
        }
        self.parts[0].0
    }
}

impl std::str::FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Mix, MixError> {
        if text.trim() == ALTERNATE {
            return Ok(Mix::alternate());
        }
        let mut parts = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let op = Op::from_name(name.trim())
                .ok_or_else(|| MixError::Operation(name.trim().to_owned()))?;
            let weight = weight
                .trim()
                .parse()
                .map_err(|_| MixError::Weight(weight.trim().to_owned()))?;
            parts.push((op, weight));
        }
        Mix::new(parts)
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.alternate {
            return f.write_str(ALTERNATE);
        }
        for (position, (op, weight)) in self.parts.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{}:{weight}", op.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_draws_in_proportion() {
        let mix: Mix = "set:3, get:1".parse().unwrap();
        assert_eq!(mix.to_string(), "set:3,get:1");
        let mut random = fastrand::Rng::with_seed(1);
        let sets = (0..10_000)
            .filter(|turn| mix.next(*turn, &mut random) == (Op::Set, false))
            .count();
        assert!((7_200..7_800).contains(&sets), "{sets}");
        assert_eq!("get".parse::<Mix>().unwrap(), Mix::only(Op::Get));
    }

    #[test]
    fn alternate_reads_back() {
        let mix: Mix = "alternate".parse().unwrap();
        assert_eq!(mix, Mix::alternate());
        assert_eq!(mix.to_string(), "alternate");
        let mut random = fastrand::Rng::with_seed(1);
        for turn in 0..4 {
            let even = turn % 2 == 0;
            let op = if even { Op::Set } else { Op::Get };
            assert_eq!(mix.next(turn, &mut random), (op, !even));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!("".parse::<Mix>(), Err(MixError::Parts));
        assert_eq!(
            "frob:1".parse::<Mix>(),
            Err(MixError::Operation("frob".into()))
        );
        for bad in ["set:0", "set:-1", "set:x", "set:1000001"] {
            assert!(matches!(bad.parse::<Mix>(), Err(MixError::Weight(_))));
        }
    }
}
