//! Header blocks of a tar archive.
//!
//! Owns [`Header`] and the parser of its numbers. The layout is `ustar` of POSIX.1-1988; the GNU
//! format has other fields in place of the prefix.

use std::ops::Range;

/// Bytes of a header. Everything in an archive is padded to a multiple of it.
pub(super) const BLOCK: usize = 512;
/// Offset and number of sparse map entries: in a header of the old GNU format, and in a block that
/// continues the map.
const SPARSE_IN_HEADER: (usize, usize) = (386, 4);
const SPARSE_IN_BLOCK: (usize, usize) = (0, 21);
/// Bytes of such an entry: two numbers of 12 bytes.
const SPARSE_ENTRY: usize = 24;
const CHECKSUM: Range<usize> = 148..156;

/// A header block.
pub(super) struct Header(pub(super) [u8; BLOCK]);

impl Header {
    /// Returns whether the block is all zeros, which marks the end of the archive.
    pub(super) fn is_end(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Returns whether the checksum matches, as a sum of unsigned or of signed bytes.
    pub(super) fn is_valid(&self) -> bool {
        let blank = |at: usize, byte: u8| if CHECKSUM.contains(&at) { b' ' } else { byte };
        let bytes = || self.0.iter().enumerate().map(|(at, &byte)| blank(at, byte));
        let unsigned: i64 = bytes().map(i64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte as i8)).sum();
        number(&self.0[CHECKSUM]).is_some_and(|sum| sum == unsigned || sum == signed)
    }

    /// Returns the type flag of the member.
    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    fn is_ustar(&self) -> bool {
        &self.0[257..263] == b"ustar\0"
    }

    /// Returns whether the header has the old GNU format.
    pub(super) fn is_gnu(&self) -> bool {
        &self.0[257..265] == b"ustar  \0"
    }

    /// Returns the path.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        match text(&self.0[345..500]) {
            prefix if self.is_ustar() && !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }

    /// Returns the target of a link.
    pub(super) fn link(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    /// Returns the mode; only the twelve low bits are valid.
    pub(super) fn mode(&self) -> Option<i64> {
        number(&self.0[100..108])
    }

    /// Returns the owner's user id.
    pub(super) fn uid(&self) -> Option<i64> {
        number(&self.0[108..116])
    }

    /// Returns the group id.
    pub(super) fn gid(&self) -> Option<i64> {
        number(&self.0[116..124])
    }

    /// Returns the number of data bytes that follow in the archive.
    pub(super) fn size(&self) -> Option<i64> {
        number(&self.0[124..136])
    }

    /// Returns the time of the last modification, in seconds since 1970.
    pub(super) fn mtime(&self) -> Option<i64> {
        number(&self.0[136..148])
    }

    /// Returns the major and minor number of a device file.
    pub(super) fn device(&self) -> Option<(i64, i64)> {
        Some((number(&self.0[329..337])?, number(&self.0[337..345])?))
    }

    /// Returns the size of a sparse file of the old GNU format.
    pub(super) fn real_size(&self) -> Option<i64> {
        number(&self.0[483..495])
    }

    /// Returns the start of such a file's map, and whether more blocks of it follow.
    pub(super) fn sparse(&self) -> Option<(Vec<(i64, i64)>, bool)> {
        Some((sparse_entries(&self.0, SPARSE_IN_HEADER)?, self.0[482] != 0))
    }
}

/// Parses a further block of a map. Returns its entries, and whether more blocks follow.
pub(super) fn sparse_block(block: &[u8; BLOCK]) -> Option<(Vec<(i64, i64)>, bool)> {
    Some((sparse_entries(block, SPARSE_IN_BLOCK)?, block[504] != 0))
}

fn sparse_entries(block: &[u8; BLOCK], (start, count): (usize, usize)) -> Option<Vec<(i64, i64)>> {
    let entries = block[start..].chunks_exact(SPARSE_ENTRY).take(count);
    entries
        .take_while(|entry| entry[0] != 0 && entry[12] != 0)
        .map(|entry| Some((number(&entry[..12])?, number(&entry[12..])?)))
        .collect()
}

/// Returns the text of a field up to a NUL, or the whole field.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Parses a number: octal digits between blanks, or binary if the first bit is set. Only blanks are
/// 0.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        // A signed big-endian number; bit 6 of the first byte is the sign.
        let negative = field[0] & 0x40 != 0;
        let first = if negative { field[0] as i8 as i64 } else { i64::from(field[0] & 0x7f) };
        return field[1..]
            .iter()
            .try_fold(first, |value, &byte| value.checked_mul(256)?.checked_add(i64::from(byte)));
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"12x4\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xfe]), Some(-2));
        assert_eq!(number(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
