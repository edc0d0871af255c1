//! One header block of an archive, as bytes.
//!
//! Owns [`Header`] and its numbers. The fields lie as POSIX.1-1988 `ustar` has them; GNU's format puts
//! others in the place of the prefix.

use std::ops::Range;

/// Bytes of a header, and what everything in an archive is padded to.
pub(super) const BLOCK: usize = 512;
/// Places of a sparse map in a header of GNU's old format, and in a block that goes on with it.
const SPARSE_IN_HEADER: (usize, usize) = (386, 4);
const SPARSE_IN_BLOCK: (usize, usize) = (0, 21);
/// Bytes of one of them: two numbers.
const SPARSE_ENTRY: usize = 24;
const CHECKSUM: Range<usize> = 148..156;

/// A header block.
pub(super) struct Header(pub(super) [u8; BLOCK]);

impl Header {
    /// Whether it is all zeros: the end of the archive.
    pub(super) fn is_end(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Whether the checksum is right, by either way that there is to add up bytes.
    pub(super) fn is_valid(&self) -> bool {
        let blank = |at: usize, byte: u8| if CHECKSUM.contains(&at) { b' ' } else { byte };
        let bytes = || self.0.iter().enumerate().map(|(at, &byte)| blank(at, byte));
        let unsigned: i64 = bytes().map(i64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte as i8)).sum();
        number(&self.0[CHECKSUM]).is_some_and(|sum| sum == unsigned || sum == signed)
    }

    /// The kind of member.
    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    fn is_ustar(&self) -> bool {
        &self.0[257..263] == b"ustar\0"
    }

    /// Whether it is of GNU's old format.
    pub(super) fn is_gnu(&self) -> bool {
        &self.0[257..265] == b"ustar  \0"
    }

    /// The path.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        match text(&self.0[345..500]) {
            prefix if self.is_ustar() && !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }

    /// The target of a link.
    pub(super) fn link(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    /// Mode, with bits above the twelve that count.
    pub(super) fn mode(&self) -> Option<i64> {
        number(&self.0[100..108])
    }

    /// Owner.
    pub(super) fn uid(&self) -> Option<i64> {
        number(&self.0[108..116])
    }

    /// Group.
    pub(super) fn gid(&self) -> Option<i64> {
        number(&self.0[116..124])
    }

    /// Bytes that follow in the archive.
    pub(super) fn size(&self) -> Option<i64> {
        number(&self.0[124..136])
    }

    /// Time of the last modification, in seconds.
    pub(super) fn mtime(&self) -> Option<i64> {
        number(&self.0[136..148])
    }

    /// Major and minor number of a device file.
    pub(super) fn device(&self) -> Option<(i64, i64)> {
        Some((number(&self.0[329..337])?, number(&self.0[337..345])?))
    }

    /// The size of a sparse file of GNU's old format.
    pub(super) fn real_size(&self) -> Option<i64> {
        number(&self.0[483..495])
    }

    /// The beginning of such a file's map, and whether more blocks of it follow.
    pub(super) fn sparse(&self) -> Option<(Vec<(i64, i64)>, bool)> {
        Some((sparse_entries(&self.0, SPARSE_IN_HEADER)?, self.0[482] != 0))
    }
}

/// What a further block of a map says, and whether more follow.
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

/// A field's text, which ends with a NUL or the field.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number: octal digits between blanks, or binary where the first bit is set. Blanks alone are 0.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        // The rest is one signed number, the highest byte first; bit 6 is the sign.
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
