//! Image formats, by their magic numbers.
//!
//! Owns [`ImageFormat`] and [`recognise`].

use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::partition_table;
use papilio_format::PhysicalAddress;
use papilio_format::disk_archive::ARCHIVE_MAGIC;

/// The format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// The bytes of the disk as they are.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
    /// VMware's format, with data and tables in one file.
    VmdkSparse,
    /// VMware's format, a text that names the files with the data.
    VmdkDescriptor,
    /// Hyper-V's format.
    Vhdx,
    /// A raw image compressed with xz.
    Xz,
    /// A raw image compressed with zstd.
    Zstd,
    /// An archive of the used bytes of a file system, see [`crate::archive`].
    Archive,
    /// An image of partclone, see [`crate::partclone`].
    Partclone,
}

impl ImageFormat {
    /// Returns the format's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::VmdkSparse | Self::VmdkDescriptor => "vmdk",
            Self::Vhdx => "vhdx",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Archive => "archive",
            Self::Partclone => "partclone",
        }
    }

    /// Returns whether the file has a disk that can be written, with tables of its own. Writing
    /// over the file itself would destroy them.
    pub(super) fn holds_a_disk(self) -> bool {
        match self {
            Self::Qcow2 | Self::VmdkSparse | Self::VmdkDescriptor | Self::Vhdx => true,
            Self::Raw | Self::Xz | Self::Zstd | Self::Archive | Self::Partclone => false,
        }
    }
}

/// Bytes from the start of a file that decide.
const START: usize = 8192;

const NOT_SUPPORTED: &str =
    "this format is not supported; convert it with: qemu-img convert -O qcow2 FROM TO";

/// Bytes of the longest magic number.
pub(super) const LONGEST_MAGIC: usize = 21;

/// Recognises the format of a file that starts with these bytes, if it is not raw.
pub(super) fn by_magic(start: &[u8]) -> Option<ImageFormat> {
    match start {
        [b'Q', b'F', b'I', 0xfb, ..] => Some(ImageFormat::Qcow2),
        [b'K', b'D', b'M', b'V', ..] => Some(ImageFormat::VmdkSparse),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(ImageFormat::Xz),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(ImageFormat::Zstd),
        // A skippable frame, as pzstd and some seekable files begin with.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(ImageFormat::Zstd),
        _ if start.starts_with(b"# Disk DescriptorFile") => Some(ImageFormat::VmdkDescriptor),
        _ if start.starts_with(b"vhdxfile") => Some(ImageFormat::Vhdx),
        _ if start.starts_with(&ARCHIVE_MAGIC) => Some(ImageFormat::Archive),
        _ if start.starts_with(b"partclone-image") => Some(ImageFormat::Partclone),
        _ => None,
    }
}

/// Recognises the format of a file without a Btrfs superblock.
///
/// # Errors
/// A format that is known and cannot be opened; one that may be another one as well.
pub(super) fn recognise(file: &dyn Device, is_block_device: bool) -> Result<ImageFormat, OpenErrorKind> {
    let mut start = [0; START];
    let length = file.size().min(START as u64) as usize;
    let start = &mut start[..length];
    file.read_at(start, PhysicalAddress(0)).map_err(OpenErrorKind::Io)?;
    let start = &start[..];
    // A block device is a disk and not an image file.
    if is_block_device {
        return Ok(ImageFormat::Raw);
    }
    let is_disk = partition_table::gpt_signature(start) || partition_table::is_mbr(start);
    let format = match by_magic(start) {
        Some(format) => format,
        _ if start.starts_with(b"conectix") => {
            return Err(OpenErrorKind::UnsupportedFormat("VHD", NOT_SUPPORTED));
        }
        _ if start.get(64..68) == Some(&[0x7f, 0x10, 0xda, 0xbe]) => {
            return Err(OpenErrorKind::UnsupportedFormat("VDI", NOT_SUPPORTED));
        }
        // Its layers are opened later.
        _ if is_luks(start) => ImageFormat::Raw,
        // A raw disk may begin with any bytes, but its partition table says what it is.
        _ if let Some((name, advice)) = unsupported(start).filter(|_| !is_disk) => {
            return Err(OpenErrorKind::UnsupportedFormat(name, advice));
        }
        _ => ImageFormat::Raw,
    };
    if format != ImageFormat::Raw && is_disk {
        return Err(OpenErrorKind::Image {
            format: format.name(),
            reason:
                "the file has a partition table in its first sectors too, so it may be a raw disk that was \
                     made to look like another format; --partition none opens it as it is"
                    .to_owned(),
        });
    }
    Ok(format)
}

/// Returns the name of a format that cannot be opened, and what to do about it.
fn unsupported(start: &[u8]) -> Option<(&'static str, &'static str)> {
    const EVIDENCE: &str = "this format is not supported; export the raw image with: ewfexport -f raw FILE";
    const UNPACK: &str = "this format is not supported; decompress it first";
    Some(match start {
        _ if start.starts_with(b"EVF\x09\x0d\x0a\xff\0") => ("forensic (E01)", EVIDENCE),
        _ if start.starts_with(b"EVF2\x0d\x0a\x81\0") => ("forensic (Ex01)", EVIDENCE),
        [0x1f, 0x8b, 8, ..] => ("gzip", UNPACK),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => ("bzip2", UNPACK),
        [0x04, 0x22, 0x4d, 0x18, ..] => ("lz4", UNPACK),
        [b'P', b'K', 3, 4, ..] => ("zip", UNPACK),
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => ("7z", UNPACK),
        _ => return None,
    })
}

/// Returns whether a range starts with a header of LUKS 1 or 2.
fn is_luks(start: &[u8]) -> bool {
    start.starts_with(b"LUKS\xba\xbe")
}

/// Returns whether a whole disk is encrypted.
pub(super) fn is_encrypted(disk: &dyn Device) -> bool {
    let mut start = [0; 8];
    disk.read_at(&mut start, PhysicalAddress(0)).is_ok() && is_luks(&start)
}

/// Names the content of a partition by its first bytes, if it is known.
pub(super) fn other_content(start: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|bytes| bytes.starts_with(magic));
    match () {
        () if is_luks(start) => Some("luks"),
        () if at(0x438, &[0x53, 0xef]) => Some("ext4"),
        () if at(0, b"XFSB") => Some("xfs"),
        () if at(82, b"FAT32") || at(54, b"FAT") => Some("vfat"),
        () if at(3, b"NTFS    ") => Some("ntfs"),
        () if at(3, b"EXFAT   ") => Some("exfat"),
        () if at(4086, b"SWAPSPACE2") => Some("swap"),
        () if at(512 + 24, b"LVM2 001") => Some("lvm2"),
        () if at(0, b"hsqs") => Some("squashfs"),
        () => None,
    }
}
