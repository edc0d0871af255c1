//! Decompression of file data: zlib, LZO in Btrfs' framing, zstd.
//!
//! Owns [`decompress`] and each thread's decoders, which are made once and reused, so that the steady
//! state allocates nothing. Every bound is known beforehand: at most [`MAX_UNCOMPRESSED`] bytes come
//! out, and the input is one extent. Locks: none. Kernel counterparts: `fs/btrfs/zlib.c`,
//! `fs/btrfs/lzo.c`, `fs/btrfs/zstd.c`, and `btrfs_decompress` (`fs/btrfs/compression.c`).

use flate2::{Decompress, FlushDecompress, Status};
use papilio_format::items::file_extent::Compression;
use std::cell::RefCell;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// Bytes that one compressed extent holds at most, uncompressed (`BTRFS_MAX_UNCOMPRESSED`).
pub(crate) const MAX_UNCOMPRESSED: u64 = 128 * 1024;

/// Bytes that one compressed extent has at most on disk (`BTRFS_MAX_COMPRESSED`).
pub(crate) const MAX_COMPRESSED: u64 = 128 * 1024;

/// The largest zstd window that the kernel writes and accepts (`ZSTD_BTRFS_MAX_WINDOWLOG`).
const ZSTD_WINDOW_LOG: u32 = 17;

/// Bytes of the lengths in LZO framing.
const LZO_LENGTH: usize = 4;

/// Why an extent cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecompressError {
    #[error("compressed extent of {length} bytes ({what}), at most {limit} are possible")]
    TooLong { what: &'static str, length: u64, limit: u64 },
    #[error("zlib: bad stream header {0:#06x}")]
    ZlibHeader(u16),
    #[error("zlib: bad data")]
    Zlib,
    #[error("{0}: stream ends after {1} of {2} bytes")]
    Truncated(Compression, usize, usize),
    #[error("lzo: total length is {total}, the extent has {length} bytes")]
    LzoTotal { total: u32, length: usize },
    #[error("lzo: segment of {length} bytes at {offset} reaches past the total of {total}")]
    LzoSegment { offset: usize, length: u32, total: usize },
    #[error("{0}, in the segment at {1}")]
    Lzo(lzo::Error, usize),
    #[error("zstd: {0}")]
    Zstd(&'static str),
    #[error("no decoder for compression type {0}")]
    NoDecoder(Compression),
}

/// The decoders of one thread.
#[derive(Default)]
struct Decoders {
    zlib: Option<Decompress>,
    zstd: Option<DCtx<'static>>,
    /// For the LZO segment that produces more than is wanted.
    lzo: Vec<u8>,
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
}

/// Decodes the whole of `input`, an extent with the padding behind its stream, into `output`, which
/// is as long as the uncompressed extent (`ram_bytes`). A stream that holds less leaves zeros, one
/// that holds more is cut, as the kernel does.
///
/// # Errors
/// [`DecompressError`]; `output` then holds anything.
pub(crate) fn decompress(
    compression: Compression,
    input: &[u8],
    output: &mut [u8],
    sector_size: u32,
) -> Result<(), DecompressError> {
    check_lengths(input.len() as u64, output.len() as u64)?;
    if output.is_empty() {
        return Ok(());
    }
    let filled = DECODERS.with_borrow_mut(|decoders| match compression {
        Compression::Zlib => decoders.zlib(input, output),
        Compression::Lzo => decoders.lzo(input, output, sector_size as usize),
        Compression::Zstd => decoders.zstd(input, output),
        Compression::None => Err(DecompressError::NoDecoder(compression)),
    })?;
    output[filled..].fill(0);
    Ok(())
}

/// Refuses a compressed extent that the kernel could not have written, before memory is taken for it.
///
/// # Errors
/// [`DecompressError::TooLong`].
pub(crate) fn check_lengths(compressed: u64, uncompressed: u64) -> Result<(), DecompressError> {
    let check = |what, length, limit| {
        if length > limit { Err(DecompressError::TooLong { what, length, limit }) } else { Ok(()) }
    };
    check("on disk", compressed, MAX_COMPRESSED)?;
    check("uncompressed", uncompressed, MAX_UNCOMPRESSED)
}

impl Decoders {
    /// The kernel inflates the raw stream behind the header and so never looks at its Adler-32: the
    /// extent's own checksums vouch for it. So does this.
    fn zlib(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, DecompressError> {
        const DEFLATED: u8 = 8;
        const PRESET_DICTIONARY: u8 = 0x20;
        let truncated = |filled| DecompressError::Truncated(Compression::Zlib, filled, output.len());
        let Some((&[method, flags], stream)) = input.split_first_chunk() else {
            return Err(truncated(0));
        };
        let header = u16::from_be_bytes([method, flags]);
        if method & 0x0f != DEFLATED || flags & PRESET_DICTIONARY != 0 || !header.is_multiple_of(31) {
            return Err(DecompressError::ZlibHeader(header));
        }
        let decoder = self.zlib.get_or_insert_with(|| Decompress::new(false));
        decoder.reset(false);
        let length = output.len();
        let status =
            decoder.decompress(stream, output, FlushDecompress::Finish).map_err(|_| DecompressError::Zlib)?;
        let filled = decoder.total_out() as usize;
        if status != Status::StreamEnd && filled < length {
            return Err(DecompressError::Truncated(Compression::Zlib, filled, length));
        }
        Ok(filled)
    }

    /// A total length, then segments of at most one sector each behind their lengths. A length never
    /// straddles the end of a sector: where less than four bytes are left, they are padding.
    fn lzo(&mut self, input: &[u8], output: &mut [u8], sector_size: usize) -> Result<usize, DecompressError> {
        let length_at = |offset: usize| {
            let bytes = input.get(offset..)?.first_chunk::<LZO_LENGTH>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let total = length_at(0).ok_or(DecompressError::Truncated(Compression::Lzo, 0, output.len()))?;
        // Neither past the extent nor leaving a whole sector of it unused.
        if total as usize > input.len() || (total as usize).next_multiple_of(sector_size) < input.len() {
            return Err(DecompressError::LzoTotal { total, length: input.len() });
        }
        let total = total as usize;
        let most = segment_limit(sector_size);
        let (mut at, mut filled) = (LZO_LENGTH, 0);
        while at < total && filled < output.len() {
            let offset = at;
            at += LZO_LENGTH;
            let length = length_at(offset).ok_or(DecompressError::LzoSegment { offset, length: 0, total })?;
            let segment = (at.checked_add(length as usize))
                .filter(|&end| end <= total)
                .map(|end| &input[at..end])
                .ok_or(DecompressError::LzoSegment { offset, length, total })?;
            at += segment.len();
            let room = output.len() - filled;
            let target = &mut output[filled..][..room.min(most)];
            filled += match lzo::decompress_into(segment, target) {
                // The last segment may hold more than the extent is said to: only its start counts.
                Err(lzo::Error::OutputOverrun) if room < most => {
                    self.lzo.resize(most, 0);
                    let decoded = lzo::decompress_into(segment, &mut self.lzo)
                        .map_err(|error| DecompressError::Lzo(error, offset))?;
                    let wanted = decoded.min(room);
                    target[..wanted].copy_from_slice(&self.lzo[..wanted]);
                    wanted
                }
                decoded => decoded.map_err(|error| DecompressError::Lzo(error, offset))?,
            };
            let left = sector_size - at % sector_size;
            if left < LZO_LENGTH {
                at += left;
            }
        }
        Ok(filled)
    }

    /// One frame; what follows it is padding.
    fn zstd(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, DecompressError> {
        let failed = |code| DecompressError::Zstd(get_error_name(code));
        if self.zstd.is_none() {
            let mut decoder = DCtx::try_create().ok_or(DecompressError::Zstd("no memory"))?;
            decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG)).map_err(failed)?;
            self.zstd = Some(decoder);
        }
        let decoder = self.zstd.as_mut().expect("made above");
        decoder.reset(ResetDirective::SessionOnly).map_err(failed)?;
        let length = output.len();
        let mut source = InBuffer::around(input);
        let mut target = OutBuffer::around(output);
        loop {
            let before = (source.pos(), target.pos());
            let hint = decoder.decompress_stream(&mut target, &mut source).map_err(failed)?;
            if hint == 0 || target.pos() == length {
                return Ok(target.pos());
            }
            if source.pos() == input.len() || before == (source.pos(), target.pos()) {
                return Err(DecompressError::Truncated(Compression::Zstd, target.pos(), length));
            }
        }
    }
}

/// Bytes that a segment may decode to: LZO's worst case for one sector, as the kernel's work buffer.
const fn segment_limit(sector_size: usize) -> usize {
    sector_size + sector_size / 16 + 64 + 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::sync::LazyLock;

    const SECTOR: usize = 4096;
    const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

    /// Compresses as the kernel lays it out, padded to sectors.
    fn compress(compression: Compression, data: &[u8]) -> Vec<u8> {
        let mut stream = match compression {
            Compression::Zlib => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
                encoder.write_all(data).expect("a vector takes all");
                encoder.finish().expect("a vector takes all")
            }
            Compression::Lzo => compress_lzo(data),
            Compression::Zstd => zstd::bulk::compress(data, 3).expect("compresses"),
            Compression::None => unreachable!("nothing to test"),
        };
        stream.resize(stream.len().next_multiple_of(SECTOR), 0);
        stream
    }

    fn compress_lzo(data: &[u8]) -> Vec<u8> {
        let mut stream = vec![0; LZO_LENGTH];
        for sector in data.chunks(SECTOR) {
            let left = SECTOR - stream.len() % SECTOR;
            if left < LZO_LENGTH {
                stream.resize(stream.len() + left, 0);
            }
            let segment = lzokay_native::compress(sector).expect("compresses");
            stream.extend((segment.len() as u32).to_le_bytes());
            stream.extend(segment);
        }
        let total = stream.len() as u32;
        stream[..LZO_LENGTH].copy_from_slice(&total.to_le_bytes());
        stream
    }

    /// Text with some noise: compressible, with matches of all lengths.
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
    fn whole_extents_come_back() {
        for compression in ALL {
            for length in [1, 100, 4095, 4096, 4097, 131_072] {
                let data = sample(length, length as u32);
                let stream = compress(compression, &data);
                assert!(decode(compression, &stream, length) == Ok(data), "{compression} {length}");
            }
        }
    }

    #[test]
    fn short_streams_leave_zeros_and_long_ones_are_cut() {
        let data = sample(10_000, 1);
        for compression in ALL {
            let stream = compress(compression, &data);
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
            let stream = compress(compression, &data);
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
        // Segments of literals only, whose lengths can be chosen: their headers move through all
        // places of a sector and meet the padding rule.
        let mut paddings = [0; LZO_LENGTH];
        for first in 1..=200u8 {
            let (mut stream, mut data) = (vec![0; LZO_LENGTH], Vec::new());
            for length in (1..=200u8).cycle().skip(first.into()).take(100) {
                let left = SECTOR - stream.len() % SECTOR;
                if left < LZO_LENGTH {
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
            stream[..LZO_LENGTH].copy_from_slice(&total.to_le_bytes());
            assert!(decode(Compression::Lzo, &stream, data.len()) == Ok(data), "{first}");
        }
        assert!(paddings[1..].iter().all(|&count| count > 0), "not all paddings met: {paddings:?}");
    }

    #[test]
    fn lzo_totals_that_leave_sectors_unused_are_refused() {
        let mut stream = compress(Compression::Lzo, &sample(100, 3));
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
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).expect("an encoder");
        encoder.window_log(20).expect("a window");
        encoder.include_contentsize(false).expect("a flag");
        encoder.write_all(&sample(50_000, 4)).expect("a vector takes all");
        let stream = encoder.finish().expect("a vector takes all");
        assert!(matches!(decode(Compression::Zstd, &stream, 50_000), Err(DecompressError::Zstd(_))));
    }

    #[test]
    fn a_zlib_checksum_is_not_looked_at_but_its_header_is() {
        let data = sample(5000, 5);
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
        encoder.write_all(&data).expect("a vector takes all");
        let mut stream = encoder.finish().expect("a vector takes all");
        *stream.last_mut().expect("not empty") ^= 1;
        assert!(decode(Compression::Zlib, &stream, data.len()) == Ok(data.clone()));
        stream[0] ^= 1;
        assert!(matches!(
            decode(Compression::Zlib, &stream, data.len()),
            Err(DecompressError::ZlibHeader(_))
        ));
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
                    ALL.map(|compression| (compression, compress(compression, &data)))
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
            // With the headers right, the decoders see more of it.
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
}
