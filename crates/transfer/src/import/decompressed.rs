//! Archives that are compressed.
//!
//! Owns [`decompressed`] and [`whole`]. The first bytes tell the format. Streams that follow one
//! another are read as one, as the programs of each format do.

use papilio_engine::errors::{Error, Result};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const XZ_MAGIC: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const BZIP2_MAGIC: &[u8] = b"BZh";
/// Bytes of the header of a `.lzma` file: properties, dictionary size, size.
const LZMA_HEADER: usize = 13;
/// Memory for a dictionary of xz or lzma in KiB; `xz -9` takes 64 MiB.
const MEMORY_KIB: u32 = 1 << 20;

/// Returns the content of an archive without its compression.
///
/// # Errors
/// An archive that cannot be read.
pub(super) fn decompressed<'r>(name: &Path, archive: impl Read + 'r) -> Result<Box<dyn Read + 'r>> {
    let host = |source| Error::Host { path: name.to_path_buf(), source };
    let mut archive = BufReader::with_capacity(1 << 20, archive);
    let start = archive.fill_buf().map_err(host)?;
    Ok(match start {
        start if start.starts_with(GZIP_MAGIC) => Box::new(flate2::bufread::MultiGzDecoder::new(archive)),
        start if start.starts_with(ZSTD_MAGIC) => {
            Box::new(zstd::stream::read::Decoder::with_buffer(archive).map_err(host)?)
        }
        start if start.starts_with(XZ_MAGIC) => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(archive, true, MEMORY_KIB))
        }
        start if start.starts_with(BZIP2_MAGIC) => Box::new(bzip2::bufread::MultiBzDecoder::new(archive)),
        start if is_lzma(start) => {
            let reader = lzma_rust2::LzmaReader::new_mem_limit(archive, MEMORY_KIB, None);
            Box::new(reader.map_err(host)?)
        }
        _ => Box::new(archive),
    })
}

/// Returns whether the first bytes are the header of a `.lzma` file, which has no magic: usual
/// properties, a dictionary of a size that xz(1) writes, and a size that is unknown or sensible.
/// The name of a member of a tar archive is nothing of that kind.
fn is_lzma(start: &[u8]) -> bool {
    let Some(header) = start.first_chunk::<LZMA_HEADER>() else { return false };
    let dictionary = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
    let size = header[5..].iter().rev().fold(0u64, |size, &byte| size << 8 | u64::from(byte));
    let usual = dictionary.is_power_of_two() || (dictionary / 3).is_power_of_two() && dictionary % 3 == 0;
    header[0] == 0x5d && dictionary >= 4096 && usual && (size == u64::MAX || size < 1 << 48)
}

/// Returns the bytes of a file that is not large.
pub(super) fn whole(name: &Path, file: impl Read, most: u64) -> Result<Vec<u8>> {
    let host = |source| Error::Host { path: name.to_path_buf(), source };
    let mut bytes = Vec::new();
    let length = decompressed(name, file)?.take(most + 1).read_to_end(&mut bytes).map_err(host)?;
    match length as u64 <= most {
        true => Ok(bytes),
        false => Err(Error::Invalid(format!("{}: longer than {most} bytes", name.display()))),
    }
}
