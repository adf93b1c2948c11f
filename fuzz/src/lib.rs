//! Helpers that the fuzz targets share: reading an input as a script, virtual time, and bounds on
//! memory.
//!
//! A target is `fuzz_targets/NAME.rs`. Its seeds are `corpus/NAME/*`. `run` builds and runs them.

pub mod flow;
pub mod nic;
pub mod site;

use std::time::{Duration, Instant};

/// Returns some instant to count from. Targets only add to it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "no other way to get an Instant; only differences matter")]
pub fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(|| Instant::now() + Duration::from_secs(1))
}

/// An input, read from the front as a script of steps. Past the end everything is zero.
#[derive(Clone, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Reads `input` from its first byte.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Returns whether nothing is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next bytes, fewer at the end.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// Returns all that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// Returns the next byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    /// Returns the next two bytes as a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Returns the next four bytes as a number.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Returns the next eight bytes as a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Returns one of `choices`, by the next byte.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u8()) % choices.len()]
    }

    /// Returns a length of up to `most`: one byte for short ones, two for long ones.
    pub fn length(&mut self, most: usize) -> usize {
        let short = usize::from(self.u8());
        let length = if short < 0xe0 { short } else { usize::from(self.u16()) };
        length % (most + 1)
    }

    /// Returns a span of time: most are microseconds, some are seconds.
    pub fn span(&mut self) -> Duration {
        let byte = self.u8();
        Duration::from_micros(u64::from(byte & 0x1f) << (byte >> 5 << 1))
            * if byte == 0xff { 1000 } else { 1 }
    }
}

/// Runs `f` and fails if it has more than `bound` bytes allocated at a time.
pub fn within<T>(bound: u64, what: &str, f: impl FnOnce() -> T) -> T {
    let mut result = None;
    let memory = allocation_counter::measure(|| result = Some(f()));
    assert!(memory.bytes_max <= bound, "{what}: {} bytes allocated, {bound} documented", memory.bytes_max);
    result.expect("it ran")
}
