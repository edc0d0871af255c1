//! Decoding of valid, truncated and mutated streams, and round trips.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::io::Write;
use std::sync::LazyLock;

const SECTOR: usize = 4096;
const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

thread_local! {
    /// Whether the next results of this thread's encoders are damaged.
    static DAMAGES: Cell<bool> = const { Cell::new(false) };
}

/// Damages the result of an encoder, if a test wants it.
pub(super) fn damage(output: &mut [u8]) {
    let middle = output.len() / 2;
    if DAMAGES.get() && middle > 0 {
        output[middle] ^= 0x10;
    }
}

/// Compresses as a write does, with each result verified.
pub fn compress(choice: CompressionChoice, input: &[u8], output: &mut Vec<u8>, sector_size: u32) -> bool {
    super::compress(choice, input, output, sector_size, VerifyCompression::Always)
}

fn compress_inline(choice: CompressionChoice, input: &[u8], output: &mut Vec<u8>, sector_size: u32) -> bool {
    super::compress_inline(choice, input, output, sector_size, VerifyCompression::Always)
}

/// Compresses in the kernel's layout, padded to sectors.
fn stream_of(compression: Compression, data: &[u8]) -> Vec<u8> {
    let mut stream = match compression {
        Compression::Zlib => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
            encoder.write_all(data).expect("a vector takes all");
            encoder.finish().expect("a vector takes all")
        }
        Compression::Lzo => compress_lzo(data),
        Compression::Zstd => ::zstd::bulk::compress(data, 3).expect("compresses"),
        Compression::None => unreachable!("nothing to test"),
    };
    stream.resize(stream.len().next_multiple_of(SECTOR), 0);
    stream
}

fn compress_lzo(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; 4];
    for sector in data.chunks(SECTOR) {
        let left = SECTOR - stream.len() % SECTOR;
        if left < 4 {
            stream.resize(stream.len() + left, 0);
        }
        let segment = lzokay_native::compress(sector).expect("compresses");
        stream.extend((segment.len() as u32).to_le_bytes());
        stream.extend(segment);
    }
    let total = stream.len() as u32;
    stream[..4].copy_from_slice(&total.to_le_bytes());
    stream
}

/// Returns text with some noise: compressible, with matches of all lengths.
fn sample(length: usize, noise: u32) -> Vec<u8> {
    let mut state = noise.wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|index| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            if state.is_multiple_of(8) { state as u8 } else { b"the quick brown fox "[index % 20] }
        })
        .collect()
}

fn decode(compression: Compression, input: &[u8], length: usize) -> Result<Vec<u8>, DecompressError> {
    let mut output = vec![0xaa; length];
    decompress(compression, input, &mut output, SECTOR as u32)?;
    Ok(output)
}

#[test]
fn whole_extents_round_trip() {
    for compression in ALL {
        for length in [1, 100, 4095, 4096, 4097, 131_072] {
            let data = sample(length, length as u32);
            let stream = stream_of(compression, &data);
            assert!(decode(compression, &stream, length) == Ok(data), "{compression} {length}");
        }
    }
}

#[test]
fn short_streams_leave_zeros_and_long_ones_are_cut() {
    let data = sample(10_000, 1);
    for compression in ALL {
        let stream = stream_of(compression, &data);
        let long = decode(compression, &stream, 12_288).expect("decodes");
        assert!(long[..10_000] == data && long[10_000..].iter().all(|&byte| byte == 0), "{compression}");
        for length in [1, 4096, 5000, 9_999] {
            assert!(decode(compression, &stream, length).expect("decodes") == data[..length]);
        }
    }
}

#[test]
fn streams_cut_short_are_errors() {
    let data = sample(40_000, 2);
    for compression in ALL {
        let stream = stream_of(compression, &data);
        for cut in [0, 1, 3, 5, 4096] {
            assert!(decode(compression, &stream[..cut], data.len()).is_err(), "{compression} {cut}");
        }
    }
}

#[test]
fn impossible_lengths_are_refused_before_decoding() {
    let mut output = vec![0; MAX_UNCOMPRESSED as usize + 1];
    for compression in ALL {
        let result = decompress(compression, &[0; 8], &mut output, 4096);
        assert!(matches!(result, Err(DecompressError::TooLong { what: "uncompressed", .. })));
        let result = decompress(compression, &vec![0; MAX_COMPRESSED as usize + 1], &mut [0], 4096);
        assert!(matches!(result, Err(DecompressError::TooLong { what: "on disk", .. })));
    }
    assert_eq!(decode(Compression::None, &[0; 8], 1), Err(DecompressError::NoDecoder(Compression::None)));
}

#[test]
fn lzo_headers_never_straddle_a_sector() {
    // Segments of literals only, of chosen lengths: their headers move through all positions of a
    // sector and meet the padding rule.
    let mut paddings = [0; 4];
    for first in 1..=200u8 {
        let (mut stream, mut data) = (vec![0; 4], Vec::new());
        for length in (1..=200u8).cycle().skip(first.into()).take(100) {
            let left = SECTOR - stream.len() % SECTOR;
            if left < 4 {
                stream.resize(stream.len() + left, 0);
                paddings[left] += 1;
            }
            let literals = vec![length; length.into()];
            stream.extend((u32::from(length) + 4).to_le_bytes());
            stream.push(17 + length);
            stream.extend(&literals);
            stream.extend([17, 0, 0]);
            data.extend(literals);
        }
        let total = stream.len() as u32;
        stream[..4].copy_from_slice(&total.to_le_bytes());
        assert!(decode(Compression::Lzo, &stream, data.len()) == Ok(data), "{first}");
    }
    assert!(paddings[1..].iter().all(|&count| count > 0), "not all paddings met: {paddings:?}");
}

#[test]
fn lzo_totals_that_leave_sectors_unused_are_refused() {
    let mut stream = stream_of(Compression::Lzo, &sample(100, 3));
    stream.resize(2 * SECTOR, 0);
    let result = decode(Compression::Lzo, &stream, 100);
    assert!(matches!(result, Err(DecompressError::LzoTotal { length: 8192, .. })), "{result:?}");
    stream[..4].copy_from_slice(&8193u32.to_le_bytes());
    let result = decode(Compression::Lzo, &stream, 100);
    assert_eq!(result, Err(DecompressError::LzoTotal { total: 8193, length: 8192 }));
}

#[test]
fn zstd_windows_past_the_limit_are_refused() {
    // No content size in the header, so that the decoder needs the whole window.
    let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 3).expect("an encoder");
    encoder.window_log(20).expect("a window");
    encoder.include_contentsize(false).expect("a flag");
    encoder.write_all(&sample(50_000, 4)).expect("a vector takes all");
    let stream = encoder.finish().expect("a vector takes all");
    assert!(matches!(decode(Compression::Zstd, &stream, 50_000), Err(DecompressError::Zstd(_))));
}

#[test]
fn zlib_checks_the_header_but_not_the_checksum() {
    let data = sample(5000, 5);
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
    encoder.write_all(&data).expect("a vector takes all");
    let mut stream = encoder.finish().expect("a vector takes all");
    *stream.last_mut().expect("not empty") ^= 1;
    assert!(decode(Compression::Zlib, &stream, data.len()) == Ok(data.clone()));
    stream[0] ^= 1;
    assert!(matches!(decode(Compression::Zlib, &stream, data.len()), Err(DecompressError::ZlibHeader(_))));
}

proptest! {
    #[test]
    fn mutated_streams_never_panic(
        ram in 1usize..131_073,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        static STREAMS: LazyLock<Vec<(Compression, Vec<u8>)>> = LazyLock::new(|| {
            let each = |length| {
                let data = sample(length, 7);
                ALL.map(|compression| (compression, stream_of(compression, &data)))
            };
            [300, 4096, 20_000].into_iter().flat_map(each).collect()
        });
        for (compression, stream) in STREAMS.iter() {
            let mut stream = stream.clone();
            for (at, value) in &flips {
                let at = at.index(stream.len());
                stream[at] = *value;
            }
            let end = if whole { stream.len() } else { cut.index(stream.len()) };
            let _ = decode(*compression, &stream[..end], ram);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), ram in 1usize..10_000) {
        for compression in ALL {
            let _ = decode(compression, &bytes, ram);
        }
        // Valid headers, so that the decoders get further.
        let mut framed = vec![0x78, 0x9c];
        framed.extend(&bytes);
        let _ = decode(Compression::Zlib, &framed, ram);
        let mut framed = (bytes.len() as u32 + 8).to_le_bytes().to_vec();
        framed.extend((bytes.len() as u32).to_le_bytes());
        framed.extend(&bytes);
        let _ = decode(Compression::Lzo, &framed, ram);
        let mut framed = vec![0x28, 0xb5, 0x2f, 0xfd];
        framed.extend(&bytes);
        let _ = decode(Compression::Zstd, &framed, ram);
    }
}

/// Returns every algorithm with every level.
pub(super) fn choices() -> Vec<CompressionChoice> {
    let with = |algorithm, levels: std::ops::RangeInclusive<i32>| {
        levels
            .filter(|&level| level != 0)
            .map(move |level| CompressionChoice::with_level(algorithm, level).unwrap())
    };
    let mut choices = vec![CompressionChoice::new(Compression::Lzo)];
    choices.extend(with(Compression::Zlib, 1..=9));
    choices.extend(with(Compression::Zstd, -15..=15));
    choices
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn all_choices_round_trip() {
    let mut output = Vec::new();
    for choice in choices() {
        let algorithm = choice.algorithm();
        for sector in [4096, 65_536] {
            for length in [1, 4095, 4096, 4097, 8192, 8193, 65_536, 100_000, 131_072] {
                let data = sample(length, 9);
                let sectors = length.div_ceil(sector);
                let worth = compress(choice, &data, &mut output, sector as u32);
                if sectors == 1 {
                    assert!(!worth, "{choice}: one sector cannot save a sector");
                    continue;
                }
                // Text with an eighth of noise: long inputs always save space.
                assert!(worth || sectors < 4, "{choice}, {length} bytes");
                if !worth {
                    continue;
                }
                assert!(output.len().is_multiple_of(sector) && output.len() / sector < sectors);
                let mut decoded = vec![0xaa; length];
                decompress(algorithm, &output, &mut decoded, sector as u32).unwrap();
                assert!(decoded == data, "{choice}, {length} bytes in sectors of {sector}");
            }
        }
    }
}

#[test]
fn zeros_take_one_sector() {
    let mut output = vec![1, 2, 3];
    for choice in choices() {
        assert!(compress(choice, &[0; 131_072], &mut output, 4096), "{choice}");
        assert_eq!(output.len(), 4096, "{choice}");
        assert!(decode(choice.algorithm(), &output, 131_072) == Ok(vec![0; 131_072]), "{choice}");
    }
}

#[test]
fn noise_and_empty_input_do_not_shrink() {
    let mut output = Vec::new();
    for choice in choices() {
        for length in [0, 1, 4095, 4096, 4097, 12_288, 131_072] {
            assert!(!compress(choice, &noise(length), &mut output, 4096), "{choice}, {length} bytes");
        }
        assert!(!compress_inline(choice, &noise(2048), &mut output, 4096), "{choice}");
        assert!(!compress_inline(choice, &[], &mut output, 4096), "{choice}");
        assert!(!compress_inline(choice, &[5], &mut output, 4096), "{choice}");
    }
    assert!(!compress(CompressionChoice::NONE, &[0; 131_072], &mut output, 4096));
    assert!(!compress_inline(CompressionChoice::NONE, &[0; 100], &mut output, 4096));
}

#[test]
fn inline_extents_are_not_padded() {
    let mut output = Vec::new();
    for choice in choices() {
        for length in [200, 2048, 4095, 4096] {
            let data = vec![b'a'; length];
            assert!(compress_inline(choice, &data, &mut output, 4096), "{choice}, {length} bytes");
            assert!(output.len() < 200, "{choice}, {length} bytes");
            assert!(decode(choice.algorithm(), &output, length) == Ok(data), "{choice}, {length} bytes");
            if choice.algorithm() == Compression::Lzo {
                // The kernel insists on one segment that fills the rest.
                let length_at =
                    |at: usize| u32::from_le_bytes(output[at..at + 4].try_into().unwrap()) as usize;
                assert_eq!((length_at(0), length_at(4)), (output.len(), output.len() - 8));
            }
        }
    }
}

/// The layout of `lzo_compress_folios`: lengths never straddle sectors; the bytes left in a sector
/// are zero and count in the total.
#[test]
fn lzo_segments_match_the_kernels_layout() {
    let mut output = Vec::new();
    let mut paddings = [0; 4];
    for noisy in 3950..4090 {
        // A first sector that ends at every position around a sector's end, and some small ones.
        let mut data = vec![0; SECTOR - noisy];
        data.extend(noise(noisy));
        data.resize(5 * SECTOR, 0);
        assert!(compress(CompressionChoice::new(Compression::Lzo), &data, &mut output, 4096));
        let length_at = |at: usize| u32::from_le_bytes(output[at..at + 4].try_into().unwrap()) as usize;
        let total = length_at(0);
        assert_eq!(total.next_multiple_of(SECTOR), output.len());
        assert!(output[total..].iter().all(|&byte| byte == 0));
        let (mut at, mut segments) = (4, 0);
        while at < total {
            at += 4 + length_at(at);
            segments += 1;
            let left = at.next_multiple_of(SECTOR) - at;
            if left < 4 {
                paddings[left] += 1;
                assert!(output[at..at + left].iter().all(|&byte| byte == 0));
                at += left;
            }
        }
        assert_eq!((at, segments), (total, data.len().div_ceil(SECTOR)));
    }
    assert!(paddings.iter().all(|&count| count > 0), "not all paddings met: {paddings:?}");
}

#[test]
fn zlib_has_a_header_and_zstd_one_small_frame() {
    let mut output = Vec::new();
    for choice in choices() {
        assert!(compress(choice, &sample(131_072, 3), &mut output, 4096), "{choice}");
        match choice.algorithm() {
            Compression::Zlib => {
                assert_eq!(output[0], 0x78, "deflate with a window of 32 KiB");
                assert!(u16::from_be_bytes([output[0], output[1]]).is_multiple_of(31));
            }
            Compression::Zstd => {
                assert_eq!(output[..4], [0x28, 0xb5, 0x2f, 0xfd]);
                // A decoder that allows no larger window than the kernel's takes it.
                assert!(decode(Compression::Zstd, &output, 131_072).is_ok(), "{choice}");
                let frame = ::zstd::zstd_safe::find_frame_compressed_size(&output).unwrap();
                assert_eq!(frame.next_multiple_of(SECTOR), output.len(), "{choice}");
                assert!(output[frame..].iter().all(|&byte| byte == 0), "{choice}");
            }
            _ => {}
        }
    }
}

#[test]
fn higher_levels_compress_better() {
    let text: Vec<u8> = include_bytes!("tests.rs").iter().copied().cycle().take(131_072).collect();
    let size = |value: &str| {
        let mut output = Vec::new();
        assert!(compress(value.parse().unwrap(), &text, &mut output, 4096));
        output.len()
    };
    // The text comes again after some 10 KiB, which the quick ones find as well.
    assert!(size("zstd:15") <= size("zstd:1") && size("zstd:1") <= size("zstd:-15"));
    assert!(size("zlib:9") <= size("zlib:1"));
    assert!(size("lzo") < 131_072 * 2 / 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn compressible_data_survives_a_round_trip(
        length in 1usize..131_073,
        seed in any::<u32>(),
        noise_from in any::<prop::sample::Index>(),
        choice in prop::sample::select(choices()),
    ) {
        let mut data = sample(length, seed);
        let from = noise_from.index(length);
        data[from..].copy_from_slice(&noise(length - from));
        let mut output = Vec::new();
        if compress(choice, &data, &mut output, 4096) {
            prop_assert!(decode(choice.algorithm(), &output, length) == Ok(data));
        }
    }
}

/// A result that differs from the input is not used, whatever is wrong with it.
#[test]
fn wrong_results_are_stored_uncompressed() {
    let data = sample(131_072, 5);
    let mut output = Vec::new();
    for choice in choices() {
        for length in [4096, 20_000, 131_072] {
            DAMAGES.set(true);
            let damaged = compress(choice, &data[..length], &mut output, 4096);
            let damaged_inline = compress_inline(choice, &data[..3000], &mut output, 4096);
            DAMAGES.set(false);
            assert!(!damaged && !damaged_inline, "{choice}, {length} bytes");
            assert_eq!(compress(choice, &data[..length], &mut output, 4096), length > 4096, "{choice}");
        }
    }
}

/// A check finds each damaged stream that readers find, and those of zlib that decode to other
/// data.
#[test]
fn streams_are_verified_without_their_data() {
    for length in [1, 100, 4095, 4096, 4097, 131_072] {
        let data = sample(length, length as u32);
        for compression in ALL {
            let stream = stream_of(compression, &data);
            let verify = |stream: &[u8], length: usize| {
                verify_stream(compression, stream, length as u64, SECTOR as u32)
            };
            // As it is, as the file's last extent, and with a part of its bytes in use.
            for ram in [length, length.next_multiple_of(SECTOR), length.div_ceil(2)] {
                assert_eq!(verify(&stream, ram), Ok(()), "{compression}, {length} bytes for {ram}");
            }
            for at in (0..stream.len()).step_by(37) {
                let mut stream = stream.clone();
                stream[at] ^= 0x41;
                let read = decode(compression, &stream, length);
                let wrong = read.as_ref().is_ok_and(|read| *read != data);
                match verify(&stream, length) {
                    Ok(()) => assert!(read.is_ok() && !(wrong && compression == Compression::Zlib)),
                    Err(DecompressError::ZlibChecksum | DecompressError::ZlibEnd) => assert!(read.is_ok()),
                    Err(error) => assert_eq!(Err(error), read),
                }
            }
        }
    }
    let most = MAX_UNCOMPRESSED + 1;
    assert!(matches!(verify_stream(ALL[0], &[0; 8], most, 4096), Err(DecompressError::TooLong { .. })));
    assert_eq!(
        verify_stream(Compression::None, &[0; 8], 1, 4096),
        Err(DecompressError::NoDecoder(Compression::None))
    );
}
