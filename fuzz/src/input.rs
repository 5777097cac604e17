//! Decisions drawn from the bytes of one input.
//!
//! A target asks for its next decision. When the bytes are used up, every decision is zero; so
//! every input has a meaning, and a prefix of an input is the beginning of the same run.

use arbitrary::{Arbitrary, Unstructured};

/// The remaining bytes.
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Returns decisions from these bytes.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(Unstructured::new(data))
    }

    /// Whether bytes remain; targets end their loops by it.
    #[must_use]
    pub fn more(&self) -> bool {
        !self.0.is_empty()
    }

    fn value<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        self.value()
    }

    /// Takes two bytes.
    pub fn short(&mut self) -> u16 {
        self.value()
    }

    /// Takes four bytes.
    pub fn word(&mut self) -> u32 {
        self.value()
    }

    /// Takes eight bytes.
    pub fn long(&mut self) -> u64 {
        self.value()
    }

    /// Returns a number in `0..bound`; `bound` is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.int_in_range(0..=bound - 1).unwrap_or(0)
    }

    /// Returns an index into a list of this length, which is at least 1.
    pub fn index(&mut self, length: usize) -> usize {
        self.0.int_in_range(0..=length - 1).unwrap_or(0)
    }

    /// Returns one of these values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// True once in `of` times, and never when the bytes are used up.
    pub fn rarely(&mut self, of: u8) -> bool {
        self.byte() % of == of - 1
    }

    /// Takes up to `most` bytes, preceded by their length.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = self.index(most + 1).min(self.0.len());
        self.0.bytes(length).unwrap_or_default()
    }

    /// Returns all remaining bytes.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0.take_rest()
    }

    /// Returns a number that is often `expected`, often near it, sometimes an extreme, sometimes
    /// random, so that off-by-one errors are found.
    pub fn near(&mut self, expected: u64) -> u64 {
        match self.byte() {
            0..=159 => expected,
            160..=191 => expected.wrapping_add(1),
            192..=215 => expected.wrapping_sub(1),
            216..=235 => expected.wrapping_add(u64::from(self.byte())),
            236..=247 => expected.wrapping_sub(u64::from(self.byte())),
            248 => 0,
            249 => u64::MAX,
            250 => u64::MAX - 1,
            251 => 1 << 63,
            _ => self.long(),
        }
    }

    /// As [`Input::near`], for 32 bits.
    pub fn near_word(&mut self, expected: u32) -> u32 {
        let low = self.near(u64::from(expected)) & u64::from(u32::MAX);
        u32::try_from(low).expect("masked")
    }
}
