//! NameReplacements that take the place of those in a dump.
//!
//! Owns [`NameReplacements`]. A name is replaced by one of the same length, everywhere by the same.
//! Which one depends on a key that is chosen at random for each dump.
//!
//! With [`NameReplacement::SameHash`] the CRC-32C of the new name is that of the old one, so that
//! the keys of directory items still fit. The first bytes are random and the last four follow from
//! the hash. Of up to four bytes only one name has a hash: those get a hash that does not fit.

use papilio_format::checksum::{crc32c_raw, name_hash};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// How names are replaced in a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameReplacement {
    /// They are kept.
    #[default]
    None,
    /// By names that do not fit the hashes in the keys of directory items.
    Random,
    /// By names of the same hash, where there are any.
    SameHash,
}

/// Bytes of a name that the hash determines.
const SUFFIX: usize = 4;
/// Attempts to find a name that can be printed, and one that cannot.
const ATTEMPTS: [u64; 2] = [20_000, 2_000];
/// The polynomial of CRC-32C, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A kind of names: how noise becomes a byte of it, and whether a byte may be in it.
type Kind = (fn(u8) -> u8, fn(u8) -> bool);

/// The replacements of names.
pub(super) struct NameReplacements {
    how: NameReplacement,
    key: RandomState,
    known: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// NameReplacements whose hash does not fit.
    unmatched: Mutex<u64>,
}

impl NameReplacements {
    pub(super) fn new(how: NameReplacement) -> Self {
        Self { how, key: RandomState::new(), known: Mutex::default(), unmatched: Mutex::default() }
    }

    /// Returns whether names are replaced.
    pub(super) fn replaces(&self) -> bool {
        self.how != NameReplacement::None
    }

    /// Returns how many names were replaced by one whose hash does not fit.
    pub(super) fn unmatched(&self) -> u64 {
        *self.unmatched.lock()
    }

    /// Overwrites a name by its replacement.
    pub(super) fn replace(&self, name: &mut [u8]) {
        // The parent of a subvolume's root directory.
        if !self.replaces() || name == b".." {
            return;
        }
        if let Some(known) = self.known.lock().get(name) {
            name.copy_from_slice(known);
            return;
        }
        let same = (self.how == NameReplacement::SameHash).then(|| self.of_same_hash(name));
        let new = same.flatten().unwrap_or_else(|| {
            *self.unmatched.lock() += u64::from(self.how == NameReplacement::SameHash);
            let mut new = vec![0; name.len()];
            self.fill(name, 0, &mut new, printable);
            new
        });
        self.known.lock().insert(name.to_vec(), new.clone());
        name.copy_from_slice(&new);
    }

    /// Fills `new` with bytes that follow from the name and the number of the attempt.
    fn fill(&self, name: &[u8], attempt: u64, new: &mut [u8], byte: fn(u8) -> u8) {
        for (number, part) in new.chunks_mut(8).enumerate() {
            let noise = self.key.hash_one((name, attempt, number)).to_le_bytes();
            for (place, noise) in part.iter_mut().zip(noise) {
                *place = byte(noise);
            }
        }
    }

    fn of_same_hash(&self, name: &[u8]) -> Option<Vec<u8>> {
        let free = name.len().checked_sub(SUFFIX).filter(|&free| free > 0)?;
        let hash = name_hash(name) as u32;
        let mut new = vec![0; name.len()];
        let kinds: [Kind; 2] = [(printable, is_printable), (allowed, is_allowed)];
        for ((byte, is_good), attempts) in kinds.into_iter().zip(ATTEMPTS) {
            for attempt in 1..=attempts {
                self.fill(name, attempt, &mut new[..free], byte);
                let state = crc32c_raw(!1, &new[..free]);
                new[free..].copy_from_slice(&suffix(state, hash));
                if new[free..].iter().all(|&byte| is_good(byte)) && new != name {
                    return Some(new);
                }
            }
        }
        None
    }
}

/// Returns the four bytes that lead a CRC-32C register from `state` to `wanted`.
fn suffix(state: u32, wanted: u32) -> [u8; SUFFIX] {
    // A register that takes four bytes is the exclusive or of both, shifted 32 times. Each shift
    // can be undone: the polynomial has the highest bit, so that bit tells whether it was added.
    let before = (0..u32::BITS).fold(wanted, |register, _| match register >> 31 {
        1 => (register ^ POLYNOMIAL) << 1 | 1,
        _ => register << 1,
    });
    (before ^ state).to_le_bytes()
}

fn printable(noise: u8) -> u8 {
    match noise % 94 + b'!' {
        b'/' => b'_',
        byte => byte,
    }
}

fn is_printable(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'/'
}

fn allowed(noise: u8) -> u8 {
    if is_allowed(noise) { noise } else { b'_' }
}

fn is_allowed(byte: u8) -> bool {
    byte != 0 && byte != b'/'
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::checksum::extref_hash;

    #[test]
    fn names_of_the_same_hash() {
        let names = NameReplacements::new(NameReplacement::SameHash);
        for name in ["12345", "secret", "a longer name.txt", &"x".repeat(255)] {
            let mut new = name.as_bytes().to_vec();
            names.replace(&mut new);
            assert_ne!(new, name.as_bytes());
            assert_eq!(name_hash(&new), name_hash(name.as_bytes()), "{name}");
            // The hash with another seed is the same, too.
            assert_eq!(extref_hash(257, &new), extref_hash(257, name.as_bytes()), "{name}");
            let mut again = name.as_bytes().to_vec();
            names.replace(&mut again);
            assert_eq!(new, again);
        }
        assert_eq!(names.unmatched(), 0);
        let mut short = *b"abcd";
        names.replace(&mut short);
        assert_eq!(names.unmatched(), 1);
        let mut parent = *b"..";
        names.replace(&mut parent);
        assert_eq!(&parent, b"..");
    }

    #[test]
    fn random_names_can_be_printed() {
        let names = NameReplacements::new(NameReplacement::Random);
        let mut new = b"something of some length".to_vec();
        names.replace(&mut new);
        assert!(new.iter().all(|&byte| is_printable(byte)), "{new:?}");
        assert_ne!(new, b"something of some length");
        assert_eq!(names.unmatched(), 0);
    }
}
