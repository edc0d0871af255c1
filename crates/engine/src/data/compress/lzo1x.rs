//! Compression to the LZO1X bit stream, quickly rather than well.
//!
//! Owns [`Encoder`]. It finds matches of four or more bytes through a hash table of the last
//! position of each four bytes, and takes the first match. After many bytes without a match, it
//! tests fewer positions. Any LZO1X decoder reads the result.
//!
//! The stream is a sequence of instructions. Each is a match (copy `length` bytes from `distance`
//! bytes back) whose last bits give the number of literals (0 to 3) that follow, or a run of at
//! least 4 literals:
//!
//! | bits of the first byte | what follows | meaning |
//! |---|---|---|
//! | `0000LLLL` | literals | run of 3 + L; L = 0: 18 + extended length |
//! | `0001HLLL` | `DDDDDDSS DDDDDDDD` | length 2 + L (0: 9 + extended), distance 16384 + (H << 14) + D |
//! | `001LLLLL` | `DDDDDDSS DDDDDDDD` | length 2 + L (0: 33 + extended), distance 1 + D |
//! | `LLLDDDSS` (L from 2) | `HHHHHHHH` | length 1 + L, distance 1 + (H << 3) + D |
//!
//! An extended length is a zero byte for each 255, then a byte of 1 to 255. The first byte of a
//! stream may also be 17 + the length of a run of up to 238 literals. The stream ends with a match
//! of distance 16384: 17, 0, 0.
//!
//! Locks: none. Source: the kernel's `Documentation/staging/lzo.rst`, which describes the decoder.

/// Bits of the hash.
const HASH_BITS: u32 = 13;
/// The shortest match that is searched for.
const MATCH_MIN: usize = 4;
/// The largest distance of each form of match.
const NEAR: usize = 2048;
const MIDDLE: usize = 16384;
const FAR: usize = 49151;
/// The longest match of the shortest form.
const NEAR_LENGTH: usize = 8;
/// After 2^`SKIP_SHIFT` bytes without a match every second position is tested, then every third,
/// and so on.
const SKIP_SHIFT: usize = 5;

/// The hash table, reused for each block.
pub(super) struct Encoder {
    /// The position of the last four bytes with each hash.
    places: Box<[u16; 1 << HASH_BITS]>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { places: Box::new([0; 1 << HASH_BITS]) }
    }
}

impl Encoder {
    /// Appends `input`, 1 to 65,536 bytes, in compressed form: at most 1/16 and 67 bytes more than
    /// the input.
    pub(super) fn encode(&mut self, input: &[u8], output: &mut Vec<u8>) {
        assert!((1..=1 << 16).contains(&input.len()), "one sector");
        output.reserve(input.len() + input.len() / 16 + 67);
        self.places.fill(0);
        let start = output.len();
        // `literals` is the start of the bytes that no instruction covers yet.
        let (mut at, mut literals) = (1, 0);
        while let Some(word) = word_at(input, at) {
            let place = &mut self.places[hash(word)];
            let candidate = usize::from(*place);
            *place = at as u16;
            let distance = at - candidate;
            if distance > FAR || word_at(input, candidate) != Some(word) {
                at += 1 + ((at - literals) >> SKIP_SHIFT);
                continue;
            }
            let end = at + MATCH_MIN + common(&input[candidate + MATCH_MIN..], &input[at + MATCH_MIN..]);
            // The match may start at skipped positions.
            while at > literals.max(distance) && input[at - 1] == input[at - 1 - distance] {
                at -= 1;
            }
            put_literals(output, start, &input[literals..at]);
            put_match(output, end - at, distance);
            at = end;
            literals = at;
        }
        put_literals(output, start, &input[literals..]);
        output.extend([0x11, 0, 0]);
    }
}

/// Returns the four bytes at `at`.
#[inline]
fn word_at(input: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*input.get(at..)?.first_chunk()?))
}

#[inline]
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Returns the length of the common prefix of `earlier` and `later`.
#[inline]
fn common(earlier: &[u8], later: &[u8]) -> usize {
    let mut length = 0;
    while let (Some(a), Some(b)) = (earlier[length..].first_chunk::<8>(), later[length..].first_chunk::<8>())
    {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return length + (differ.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    length + earlier[length..].iter().zip(&later[length..]).take_while(|(a, b)| a == b).count()
}

/// Appends literals after a match, or at the start of the stream, at output position `start`.
fn put_literals(output: &mut Vec<u8>, start: usize, literals: &[u8]) {
    let count = literals.len();
    if output.len() == start {
        match count {
            1..=238 => output.push(17 + count as u8),
            _ => put_run(output, count),
        }
    } else {
        match count {
            0 => return,
            // In the last bits of the match before, in its last byte but one.
            1..=3 => {
                let bits = output.len() - 2;
                output[bits] |= count as u8;
            }
            _ => put_run(output, count),
        }
    }
    output.extend_from_slice(literals);
}

fn put_run(output: &mut Vec<u8>, count: usize) {
    match count {
        4..=18 => output.push(count as u8 - 3),
        _ => {
            output.push(0);
            put_extended(output, count - 18);
        }
    }
}

fn put_extended(output: &mut Vec<u8>, length: usize) {
    let zeros = (length - 1) / 255;
    output.resize(output.len() + zeros, 0);
    output.push((length - zeros * 255) as u8);
}

fn put_match(output: &mut Vec<u8>, length: usize, distance: usize) {
    debug_assert!((MATCH_MIN..).contains(&length) && (1..=FAR).contains(&distance));
    if distance <= NEAR && length <= NEAR_LENGTH {
        let offset = distance - 1;
        output.push((((length - 1) << 5) | ((offset & 7) << 2)) as u8);
        output.push((offset >> 3) as u8);
        return;
    }
    let (form, short, offset) = if distance <= MIDDLE {
        (0x20, 33, distance - 1)
    } else {
        let offset = distance - MIDDLE;
        (0x10 | ((offset >> 14) << 3), 9, offset & 0x3fff)
    };
    if length <= short {
        output.push((form | (length - 2)) as u8);
    } else {
        output.push(form as u8);
        put_extended(output, length - short);
    }
    output.push(((offset & 0x3f) << 2) as u8);
    output.push((offset >> 6) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compresses, and checks with two decoders that share no code.
    fn check(input: &[u8]) -> usize {
        let mut encoder = Encoder::default();
        let mut output = b"before".to_vec();
        encoder.encode(input, &mut output);
        let stream = &output[6..];
        assert!(stream.len() <= input.len() + input.len() / 16 + 67);
        let mut decoded = vec![0; input.len()];
        assert_eq!(::lzo::decompress_into(stream, &mut decoded), Ok(input.len()));
        assert!(decoded == input);
        let other = lzokay_native::decompress_all(stream, Some(input.len())).unwrap();
        assert!(other == input);
        // A reused table does not change the result.
        let mut again = b"before".to_vec();
        encoder.encode(input, &mut again);
        assert!(again == output);
        stream.len()
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn literal_runs_of_every_form() {
        for length in (1..700).chain([4095, 4096, 65_535, 65_536]) {
            check(&noise(length));
        }
    }

    #[test]
    fn matches_of_every_length_and_distance() {
        for length in (4..60).chain([263, 264, 265, 288, 289, 290, 519, 1000]) {
            for distance in
                [1, 2, 7, 8, 9, 2047, 2048, 2049, 16_383, 16_384, 16_385, 32_767, 32_768, 49_151, 49_152]
            {
                // Noise, then `length` bytes copied from `distance` bytes back, then some literals.
                let mut input = noise(distance.max(8));
                for _ in 0..length {
                    input.push(input[input.len() - distance]);
                }
                for literals in [0, 1, 3, 4, 18, 19] {
                    let mut input = input.clone();
                    input.extend(noise(50_000).iter().rev().take(literals));
                    check(&input);
                }
            }
        }
    }

    #[test]
    fn repetitive_data_shrinks() {
        assert!(check(&[0; 4096]) < 40);
        let text: Vec<u8> =
            b"the quick brown fox jumps over the lazy dog. ".iter().copied().cycle().take(4096).collect();
        assert!(check(&text) < 120);
        assert_eq!(check(&[7]), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn any_data_survives_a_round_trip(
            parts in prop::collection::vec((0usize..400, any::<u8>(), 1usize..40, any::<u16>()), 1..60),
        ) {
            // Bytes of a small alphabet, and copies of earlier bytes.
            let mut input = vec![1];
            for (back, byte, length, pattern) in parts {
                for index in 0..length {
                    let copy = input.len().checked_sub(back + 1).filter(|_| back > 20);
                    let next = match copy {
                        Some(from) => input[from],
                        None => byte.wrapping_add((pattern >> (index % 13)) as u8 & 3),
                    };
                    input.push(next);
                }
            }
            check(&input);
        }
    }
}
