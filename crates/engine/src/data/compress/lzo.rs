//! LZO in Btrfs' framing.
//!
//! Owns [`Lzo`], the buffers of one thread.
//!
//! The stream starts with its total length (4 bytes, little-endian, including itself). Segments
//! follow, each a length and one sector of data, compressed on its own. A length never straddles
//! the end of a sector: fewer than four bytes left in a sector are padding. An inline extent has
//! one segment and no padding.
//!
//! Locks: none. Kernel counterpart: `fs/btrfs/lzo.c`.

use super::limits::DecompressError;
use super::lzo1x::Encoder;
use papilio_format::items::file_extent::Compression;

/// Bytes of a length field.
const LENGTH: usize = 4;

/// The LZO coders of one thread.
#[derive(Default)]
pub(super) struct Lzo {
    encoder: Encoder,
    /// The output of a segment that decodes to more than is wanted.
    buffer: Vec<u8>,
}

impl Lzo {
    /// Compresses `input`; returns `false` if that takes more than `limit` bytes.
    pub(super) fn encode(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        sector: usize,
        limit: usize,
        inline: bool,
    ) -> bool {
        assert!(!inline || input.len() <= sector, "an inline extent has one segment");
        output.extend([0; LENGTH]);
        for data in input.chunks(sector) {
            let length_at = output.len();
            output.extend([0; LENGTH]);
            self.encoder.encode(data, output);
            let length = (output.len() - length_at - LENGTH) as u32;
            output[length_at..][..LENGTH].copy_from_slice(&length.to_le_bytes());
            let left = output.len().next_multiple_of(sector) - output.len();
            if left < LENGTH && !inline {
                // The kernel pads, and counts the padding, after the last segment too.
                output.resize(output.len() + left, 0);
            }
            if output.len() > limit {
                return false;
            }
        }
        let total = output.len() as u32;
        output[..LENGTH].copy_from_slice(&total.to_le_bytes());
        true
    }

    /// Decompresses `input` into `output`, and returns the bytes filled.
    pub(super) fn decode(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Result<usize, DecompressError> {
        let length_at = |offset: usize| {
            let bytes = input.get(offset..)?.first_chunk::<LENGTH>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let total = length_at(0).ok_or(DecompressError::Truncated(Compression::Lzo, 0, output.len()))?;
        // The total may neither exceed the extent nor leave a whole sector of it unused.
        if total as usize > input.len() || (total as usize).next_multiple_of(sector_size) < input.len() {
            return Err(DecompressError::LzoTotal { total, length: input.len() });
        }
        let total = total as usize;
        let most = segment_limit(sector_size);
        let (mut at, mut filled) = (LENGTH, 0);
        while at < total && filled < output.len() {
            let offset = at;
            at += LENGTH;
            let length = length_at(offset).ok_or(DecompressError::LzoSegment { offset, length: 0, total })?;
            let segment = (at.checked_add(length as usize))
                .filter(|&end| end <= total)
                .map(|end| &input[at..end])
                .ok_or(DecompressError::LzoSegment { offset, length, total })?;
            at += segment.len();
            let left = output.len() - filled;
            let target = &mut output[filled..][..left.min(most)];
            filled += match ::lzo::decompress_into(segment, target) {
                // The last segment may hold more than the extent's length says: only its start
                // counts.
                Err(::lzo::Error::OutputOverrun) if left < most => {
                    self.buffer.resize(most, 0);
                    let decoded = ::lzo::decompress_into(segment, &mut self.buffer)
                        .map_err(|error| DecompressError::Lzo(error, offset))?;
                    let wanted = decoded.min(left);
                    target[..wanted].copy_from_slice(&self.buffer[..wanted]);
                    wanted
                }
                decoded => decoded.map_err(|error| DecompressError::Lzo(error, offset))?,
            };
            let left = sector_size - at % sector_size;
            if left < LENGTH {
                at += left;
            }
        }
        Ok(filled)
    }
}

/// Returns the most bytes that a segment may decode to: LZO's worst case for one sector, as in the
/// kernel's work buffer.
const fn segment_limit(sector_size: usize) -> usize {
    sector_size + sector_size / 16 + 64 + 3
}
