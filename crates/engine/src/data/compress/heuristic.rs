//! A guess whether data is worth compressing, from a sample of its bytes.
//!
//! Owns [`is_compressible`]. It samples 16 of each 256 bytes. Data that repeats itself, or that
//! uses few different bytes, is compressible; otherwise the entropy of the sample decides. The
//! guess can be wrong either way: repetitive data whose bytes are equally frequent is left
//! uncompressed, and data that passes may not shrink.
//!
//! Locks: none. Kernel counterpart: `btrfs_compress_heuristic` (`fs/btrfs/compression.c`), the
//! source of the thresholds.

/// The length of a sample in bytes, and the distance from one to the next.
const SAMPLE: usize = 16;
const INTERVAL: usize = 256;
/// The most bytes of data that are sampled: those of one extent.
const SPAN: usize = super::limits::MAX_UNCOMPRESSED as usize;
/// Data with fewer different bytes is compressible.
const ALPHABET_SMALL: usize = 64;
/// Of the byte values that make up nine tenths of the sample: with so few, the data is
/// compressible; with so many, it is noise.
const CORE_SMALL: usize = 64;
const CORE_LARGE: usize = 200;
/// Bits of entropy per byte from which compression gains nothing.
const ENTROPY_HIGH: f32 = 0.80 * 8.0;

/// Returns whether compressing `data` is worth a try. Data of up to a few hundred bytes always is.
pub(crate) fn is_compressible(data: &[u8]) -> bool {
    let mut sample = [0; SPAN / INTERVAL * SAMPLE];
    let mut length = 0;
    for piece in data[..data.len().min(SPAN)].chunks(INTERVAL) {
        let piece = &piece[..piece.len().min(SAMPLE)];
        sample[length..][..piece.len()].copy_from_slice(piece);
        length += piece.len();
    }
    let sample = &sample[..length];
    let (first, second) = sample.split_at(length / 2);
    if *first == second[..first.len()] {
        return true;
    }
    let mut counts = [0u16; 256];
    for &byte in sample {
        counts[usize::from(byte)] += 1;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let alphabet = counts.partition_point(|&count| count > 0);
    if alphabet < ALPHABET_SMALL {
        return true;
    }
    match core(&counts, length * 9 / 10) {
        ..=CORE_SMALL => true,
        CORE_LARGE.. => false,
        _ => entropy(&counts[..alphabet], length) < ENTROPY_HIGH,
    }
}

/// Returns the number of most frequent byte values that make up `share` bytes of the sample.
fn core(counts: &[u16; 256], share: usize) -> usize {
    let mut sum = 0;
    counts
        .iter()
        .take_while(|&&count| {
            let more = sum < share;
            sum += usize::from(count);
            more
        })
        .count()
}

/// Returns Shannon's entropy in bits per byte.
fn entropy(counts: &[u16], length: usize) -> f32 {
    let length = length as f32;
    counts.iter().map(|&count| f32::from(count) / length).map(|share| -share * share.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn noise_is_told_from_text() {
        assert!(!is_compressible(&noise(SPAN)));
        assert!(!is_compressible(&noise(2 * SPAN)));
        assert!(!is_compressible(&noise(16_384)));
        let text: Vec<u8> = include_bytes!("heuristic.rs").iter().copied().cycle().take(SPAN).collect();
        assert!(is_compressible(&text));
        assert!(is_compressible(&[0; SPAN]));
        assert!(is_compressible(&[]));
        assert!(is_compressible(&[1]));
        // The halves are equal, though each is noise.
        let half = noise(SPAN / 2);
        assert!(is_compressible(&[&half[..], &half].concat()));
    }

    #[test]
    fn between_noise_and_text_the_entropy_decides() {
        // All byte values, but some of them more often.
        let mixed = |one_in: usize| -> Vec<u8> {
            noise(SPAN)
                .iter()
                .zip(noise(SPAN + 1).iter().skip(1))
                .map(|(&byte, &choice)| if usize::from(choice) % 12 < one_in { byte } else { byte % 24 })
                .collect()
        };
        assert!(is_compressible(&mixed(3)));
        assert!(!is_compressible(&mixed(11)));
    }

    #[test]
    fn entropy_is_shannons() {
        assert!((entropy(&[8; 256], 2048) - 8.0).abs() < 1e-4);
        assert!((entropy(&[4, 2, 1, 1], 8) - 1.75).abs() < 1e-4);
        assert_eq!(entropy(&[5], 5), 0.0);
        let mut counts = [0; 256];
        counts[..4].copy_from_slice(&[90, 5, 4, 1]);
        assert_eq!(core(&counts, 90), 1);
        assert_eq!(core(&counts, 91), 2);
        assert_eq!(core(&counts, 0), 0);
    }
}
