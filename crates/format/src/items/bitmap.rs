//! Bitmaps of free sectors, as stored by the free-space tree and the v1 cache.
//!
//! Owns [`BitRuns`], which finds runs of set bits a machine word at a time, and [`set_run`]. Bit
//! `i` is bit `i % 8`, counted from the lowest, of byte `i / 8` (`extent_buffer_test_bit` and
//! `le_test_bit` in `fs/btrfs`).

/// A run of equal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRun {
    /// The first bit.
    pub start: u64,
    /// Number of bits, at least 1.
    pub length: u64,
}

/// An iterator over the maximal runs of set bits, ascending.
#[derive(Clone, Debug)]
pub struct BitRuns<'a> {
    bytes: &'a [u8],
    next: u64,
    bits: u64,
}

impl<'a> BitRuns<'a> {
    /// Iterates over the first `bits` bits of `bytes`, or over all of `bytes` if it has fewer.
    pub fn new(bytes: &'a [u8], bits: u64) -> Self {
        Self { bytes, next: 0, bits: bits.min(bytes.len() as u64 * 8) }
    }

    /// Returns the first bit at or after `from` that equals `set`, or the end.
    fn next_bit(&self, from: u64, set: bool) -> u64 {
        let mut bit = from;
        while bit < self.bits {
            let word = self.word(bit / 64);
            let wanted = if set { word } else { !word } >> (bit % 64);
            if wanted != 0 {
                return (bit + u64::from(wanted.trailing_zeros())).min(self.bits);
            }
            bit = (bit / 64 + 1) * 64;
        }
        self.bits
    }

    fn word(&self, index: u64) -> u64 {
        let rest = &self.bytes[(index * 8) as usize..];
        match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        }
    }
}

impl Iterator for BitRuns<'_> {
    type Item = BitRun;

    fn next(&mut self) -> Option<BitRun> {
        let start = self.next_bit(self.next, true);
        if start >= self.bits {
            self.next = self.bits;
            return None;
        }
        let end = self.next_bit(start, false);
        self.next = end;
        Some(BitRun { start, length: end - start })
    }
}

/// Sets or clears the bits of a run.
///
/// # Panics
/// If the run reaches past `bytes`.
pub fn set_run(bytes: &mut [u8], run: BitRun, set: bool) {
    let (mut bit, end) = (run.start, run.start + run.length);
    while bit < end {
        let byte = &mut bytes[(bit / 8) as usize];
        let count = (8 - bit % 8).min(end - bit);
        let mask = (0xff >> (8 - count)) << (bit % 8);
        if set {
            *byte |= mask as u8;
        } else {
            *byte &= !(mask as u8);
        }
        bit += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_match_a_bit_by_bit_scan(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 0..40),
            bits in 0u64..400,
        ) {
            let is_set = |bit: u64| bytes[(bit / 8) as usize] >> (bit % 8) & 1 == 1;
            let mut expected: Vec<BitRun> = Vec::new();
            for bit in (0..bits.min(bytes.len() as u64 * 8)).filter(|&bit| is_set(bit)) {
                match expected.last_mut() {
                    Some(run) if run.start + run.length == bit => run.length += 1,
                    _ => expected.push(BitRun { start: bit, length: 1 }),
                }
            }
            prop_assert_eq!(BitRuns::new(&bytes, bits).collect::<Vec<_>>(), expected.clone());

            let mut copy = vec![0; bytes.len()];
            expected.iter().for_each(|&run| set_run(&mut copy, run, true));
            prop_assert_eq!(BitRuns::new(&copy, bits).collect::<Vec<_>>(), expected.clone());
            expected.iter().for_each(|&run| set_run(&mut copy, run, false));
            prop_assert!(copy.iter().all(|&byte| byte == 0));
        }
    }
}
