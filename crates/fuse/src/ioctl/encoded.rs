//! Reading and writing compressed extents as they lie.
//!
//! Owns [`read`] and [`write`]. The bytes go between the file system and the buffers in the
//! caller's memory. As in the kernel, nothing checks that written bytes decompress: a later read
//! fails.
//!
//! Kernel counterparts: `btrfs_ioctl_encoded_read`, `btrfs_ioctl_encoded_write`
//! (`fs/btrfs/ioctl.c`), `import_iovec` (`lib/iov_iter.c`).

use super::call::{Changed, IoctlCall, IoctlReply, Result};
use super::caller_memory::{BlockedCaller, CallerMemory};
use papilio::format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio::format::items::inode::InodeFlags;
use papilio::{EncodedExtent, FileKind, compression_of_number, number_of_compression};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::EncodedIo;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// Most buffers of a call (`UIO_MAXIOV`).
const MOST_BUFFERS: u64 = 1024;
/// Most stored bytes of an extent (`BTRFS_MAX_COMPRESSED`).
const MAX_COMPRESSED: usize = 128 << 10;
/// Most bytes of a call (`MAX_RW_COUNT`).
const MOST_BYTES: u64 = 0x7fff_f000;

const INVALID: Errno = Errno(libc::EINVAL);

/// A part of the caller's memory.
struct Buffer {
    address: u64,
    length: u64,
}

/// Reads the list of buffers.
fn buffers(memory: &CallerMemory<'_>, arguments: &EncodedIo) -> Result<Vec<Buffer>> {
    if arguments.buffer_count > MOST_BUFFERS {
        return Err(INVALID);
    }
    let mut list = vec![[0_u64; 2]; arguments.buffer_count as usize];
    if !list.is_empty() {
        memory.read(arguments.buffers, list.as_mut_bytes())?;
    }
    let mut left = MOST_BYTES;
    let mut buffers = Vec::with_capacity(list.len());
    for [address, length] in list {
        if i64::try_from(length).is_err() {
            return Err(INVALID);
        }
        let length = length.min(left);
        left -= length;
        buffers.push(Buffer { address, length });
    }
    Ok(buffers)
}

/// Refuses a range that no file can have.
fn must_be_offsets(offset: u64, length: u64) -> Result<()> {
    let end = offset.checked_add(length).and_then(|end| i64::try_from(end).ok());
    end.map(drop).ok_or(INVALID)
}

/// Answers `BTRFS_IOC_ENCODED_READ`.
pub(super) fn read(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let caller = BlockedCaller::of(call)?;
    let memory = caller.memory()?;
    // The command's number says that the caller only reads, so its input does not come along.
    let mut bytes = [0; size_of::<EncodedIo>()];
    memory.read(call.address, &mut bytes[..offset_of!(EncodedIo, length)])?;
    let mut arguments = EncodedIo::read_from_bytes(&bytes).map_err(|_| INVALID)?;
    if arguments.flags != 0 {
        return Err(INVALID);
    }
    let buffers = buffers(&memory, &arguments)?;
    let space: u64 = buffers.iter().map(|buffer| buffer.length).sum();
    if space == 0 {
        // The argument stays as it is.
        memory.read(call.address, &mut bytes)?;
        return Ok(IoctlReply { output: bytes.to_vec(), ..IoctlReply::default() });
    }
    must_be_offsets(arguments.offset, 0)?;
    if call.inode.file_type() != FileKind::Regular {
        return Err(INVALID);
    }
    let file = call.inode.open()?;
    let found = file.read_encoded_at(arguments.offset, space as usize)?.ok_or(Errno(libc::ENOBUFS))?;
    let mut rest = &found.data[..];
    for buffer in buffers {
        let (now, later) = rest.split_at(rest.len().min(buffer.length as usize));
        memory.write(buffer.address, now)?;
        rest = later;
    }
    let sector_size = call.fs.superblock().raw.sector_size;
    arguments.length = found.length;
    arguments.unencoded_length = found.uncompressed;
    arguments.unencoded_offset = found.offset;
    arguments.compression = number_of_compression(found.compression, sector_size);
    let reply = call.reply(&arguments)?;
    Ok(IoctlReply { result: found.data.len() as i32, ..reply })
}

/// Answers `BTRFS_IOC_ENCODED_WRITE`.
pub(super) fn write(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let caller = BlockedCaller::of(call)?;
    let flags = caller.file_flags()?;
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(Errno(libc::EBADF));
    }
    let arguments = call.argument::<EncodedIo>()?;
    let (compression, lzo_sector) = compression_in(&arguments)?;
    let memory = caller.memory()?;
    let buffers = buffers(&memory, &arguments)?;
    let stored = buffers.iter().map(|buffer| buffer.length).sum::<u64>();
    if stored == 0 {
        return Ok(IoctlReply::default());
    }
    must_be_offsets(arguments.offset, arguments.length)?;
    if call.inode.file_type() != FileKind::Regular {
        return Err(INVALID);
    }
    let file = call.inode.open()?;
    let size = file.size()?;
    let appends = flags & libc::O_APPEND != 0;
    // Where files are opened without the server, nothing has refused this yet.
    if call.inode.metadata().flags().contains(InodeFlags::APPEND) && !appends {
        return Err(Errno(libc::EPERM));
    }
    let offset = if appends { size } else { arguments.offset };
    if arguments.unencoded_length > MAX_UNCOMPRESSED
        || stored > MAX_COMPRESSED as u64
        || stored >= arguments.unencoded_length
    {
        return Err(INVALID);
    }
    let mut data = vec![0; stored as usize];
    let mut rest = &mut data[..];
    for buffer in buffers {
        let (now, later) = rest.split_at_mut(buffer.length as usize);
        memory.read(buffer.address, now)?;
        rest = later;
    }
    let extent = EncodedExtent {
        compression,
        lzo_sector,
        data: &data,
        uncompressed: arguments.unencoded_length,
        offset: arguments.unencoded_offset,
        length: arguments.length,
    };
    if !file.write_encoded_at(&extent, offset)? {
        return Err(INVALID);
    }
    let changed = vec![changed_data(call, &file, size, offset, arguments.length)];
    Ok(IoctlReply { result: stored as i32, changed, ..IoctlReply::default() })
}

/// Returns the change of bytes of the call's file, whose size was `before`.
pub(super) fn changed_data(
    call: &IoctlCall<'_>,
    file: &papilio::File,
    before: u64,
    offset: u64,
    length: u64,
) -> Changed {
    let end = offset.saturating_add(length);
    let last = (end > before).then(|| last_byte(file, end));
    Changed::Data { file: (call.inode.tree(), call.inode.number()), offset, length, last }
}

/// Returns the byte before `end`; 0 if it cannot be read, and then the kernel drops it unseen.
fn last_byte(file: &papilio::File, end: u64) -> u8 {
    let mut byte = [0];
    let _ = file.read_at(&mut byte, end - 1);
    byte[0]
}

/// Checks the numbers of a write, and returns its compression.
fn compression_in(arguments: &EncodedIo) -> Result<(Compression, u32)> {
    let end = arguments.unencoded_offset.checked_add(arguments.length);
    if arguments.flags != 0
        || arguments.reserved.iter().any(|byte| *byte != 0)
        || arguments.encryption != 0
        || end.is_none_or(|end| end > arguments.unencoded_length)
    {
        return Err(INVALID);
    }
    match compression_of_number(arguments.compression) {
        Some((compression, sector)) if compression != Compression::None => Ok((compression, sector)),
        _ => Err(INVALID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let good = EncodedIo { length: 4096, unencoded_length: 8192, compression: 2, ..EncodedIo::default() };
        assert_eq!(compression_in(&good), Ok((Compression::Zstd, 4096)));
        let lzo = EncodedIo { compression: 5, ..good };
        assert_eq!(compression_in(&lzo), Ok((Compression::Lzo, 16384)));
        let mut reserved = good;
        reserved.reserved[63] = 1;
        for bad in [
            EncodedIo { flags: 1, ..good },
            EncodedIo { compression: 0, ..good },
            EncodedIo { compression: 8, ..good },
            EncodedIo { encryption: 1, ..good },
            EncodedIo { unencoded_offset: 4097, ..good },
            EncodedIo { unencoded_offset: u64::MAX, ..good },
            reserved,
        ] {
            assert_eq!(compression_in(&bad), Err(INVALID), "{bad:?}");
        }
    }

    #[test]
    fn offsets_are_those_of_files() {
        assert_eq!(must_be_offsets(1 << 40, 4096), Ok(()));
        assert_eq!(must_be_offsets(i64::MAX as u64, 1), Err(INVALID));
        assert_eq!(must_be_offsets(u64::MAX, 2), Err(INVALID));
    }
}
