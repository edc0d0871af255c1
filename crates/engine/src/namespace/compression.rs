//! The compression property of files and directories: the attribute `btrfs.compression`, and the
//! inode flags that go with it.
//!
//! Kernel counterparts: `prop_compression_validate`, `prop_compression_apply`, `inherit_props`
//! (`fs/btrfs/props.c`).

use crate::errors::{Error, PathError, Result};
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};

/// The name of the attribute.
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

/// A decoded value of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompressionProperty {
    /// New data is compressed.
    Compress(Compression),
    /// New data is not compressed.
    Never,
}

impl CompressionProperty {
    /// Decodes a value: `zlib`, `lzo` or `zstd`, optionally with a level (`zstd:3`), or `no` or
    /// `none`.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        if value == b"no" || value == b"none" {
            return Some(Self::Never);
        }
        let name = value.split(|&byte| byte == b':').next()?;
        let found = Compression::of_name(std::str::from_utf8(name).ok()?);
        let found = found.filter(|algorithm| *algorithm != Compression::None)?;
        let level = value.get(name.len() + 1..).unwrap_or_default();
        level.iter().all(u8::is_ascii_digit).then_some(Self::Compress(found))
    }

    /// The value that new files in a directory with this property get: the algorithm without a
    /// level. [`CompressionProperty::Never`] is inherited as a flag only.
    pub(crate) fn inherited(self) -> Option<&'static [u8]> {
        match self {
            Self::Compress(compression) => Some(compression.name().as_bytes()),
            Self::Never => None,
        }
    }

    /// Returns the flags of an inode that gets this property.
    pub(crate) fn apply(self, flags: InodeFlags) -> InodeFlags {
        match self {
            Self::Compress(_) => (flags - InodeFlags::NOCOMPRESS) | InodeFlags::COMPRESS,
            Self::Never => (flags - InodeFlags::COMPRESS) | InodeFlags::NOCOMPRESS,
        }
    }
}

/// Whether an inode of this kind can have the property: files and directories can.
pub(crate) fn can_have(kind: Option<FileKind>) -> bool {
    matches!(kind, Some(FileKind::Regular | FileKind::Directory))
}

/// Whether the data of an inode with these flags may be compressed at all.
pub(crate) fn can_compress(flags: InodeFlags) -> bool {
    !flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM)
}

/// Decodes a value for an inode.
///
/// # Errors
/// [`Error::Invalid`] for an unknown value, or an inode whose data must not be compressed;
/// [`PathError::NotSupported`] for an inode that is neither file nor directory.
pub(crate) fn parse_for(item: &InodeItem, value: &[u8]) -> Result<CompressionProperty> {
    if !can_have(item.kind()) {
        return Err(Error::path(COMPRESSION, PathError::NotSupported));
    }
    let invalid = |why: &str| Err(Error::Invalid(format!("btrfs.compression: {why}")));
    match CompressionProperty::parse(value) {
        None => invalid("the value is none of zlib, lzo, zstd and none"),
        Some(_) if !can_compress(item.flags) => {
            invalid("the file's data has no checksums or is overwritten in place")
        }
        Some(property) => Ok(property),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_parse_and_are_inherited() {
        let parse = CompressionProperty::parse;
        assert_eq!(parse(b"zlib"), Some(CompressionProperty::Compress(Compression::Zlib)));
        assert_eq!(parse(b"zstd:15"), Some(CompressionProperty::Compress(Compression::Zstd)));
        assert_eq!(parse(b"lzo"), Some(CompressionProperty::Compress(Compression::Lzo)));
        assert_eq!(parse(b"none"), Some(CompressionProperty::Never));
        for bad in [&b""[..], b"zstd:x", b"none:3", b"ZLIB", b"gzip", b"zstdx"] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
        let compress = parse(b"zstd").unwrap();
        assert_eq!(compress.inherited(), Some(&b"zstd"[..]));
        assert_eq!(compress.apply(InodeFlags::NOCOMPRESS), InodeFlags::COMPRESS);
        assert_eq!(CompressionProperty::Never.apply(InodeFlags::COMPRESS), InodeFlags::NOCOMPRESS);
        assert_eq!(CompressionProperty::Never.inherited(), None);
    }
}
