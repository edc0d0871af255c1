//! Encoded writes: the bytes that they put into a file.
//!
//! Owns [`decode`].

use papilio_engine::data::{compression_of_number, decompress};
use papilio_engine::errors::{Error, Result};
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::send_stream::EncodedWrite;

/// Returns the bytes that an encoded write puts into the file.
///
/// # Errors
/// An encoding that is unknown, lengths that contradict each other, data that does not decompress.
pub(crate) fn decode(write: &EncodedWrite) -> Result<Vec<u8>> {
    let bad = |why: &str| Error::Invalid(format!("encoded write: {why}"));
    let end = write.unencoded_offset.checked_add(write.file_length);
    if end.is_none_or(|end| end > write.unencoded_length) {
        return Err(bad("the range is not inside the extent"));
    }
    if write.encryption.unwrap_or(0) != 0 {
        return Err(bad("the encryption is unknown"));
    }
    let (compression, sector) =
        compression_of_number(write.compression).ok_or_else(|| bad("the compression is unknown"))?;
    if write.unencoded_length > MAX_UNCOMPRESSED && compression != Compression::None {
        return Err(bad("a compressed extent holds 128 KiB at most"));
    }
    let range = write.unencoded_offset as usize..(write.unencoded_offset + write.file_length) as usize;
    if compression == Compression::None {
        return write.data.get(range).map(<[u8]>::to_vec).ok_or_else(|| bad("the data is too short"));
    }
    let mut whole = vec![0; write.unencoded_length as usize];
    decompress(compression, &write.data, &mut whole, sector).map_err(|error| bad(&error.to_string()))?;
    Ok(whole[range].to_vec())
}
