//! Commands of a stream, applied to a target.
//!
//! Owns [`Interpreter`] and the checks that every target relies on.
//!
//! **Invariants**
//! - A path that reaches a target has no empty name, no `.`, no `..` and no leading slash.
//! - No range exceeds the largest file.
//! - A compressed extent reaches a target only after it was decompressed once.

use super::decode::decode;
use super::target::{CloneRange, ReceiveTarget, SentSubvolume};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::namespace::create::NewKind;
use papilio_format::items::inode::{FileKind, MODE_PERMISSION_MASK};
use papilio_format::send_stream::Command;
use papilio_format::{Generation, Uuid};

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Applies the commands of one subvolume.
pub(crate) struct Interpreter {
    /// The UUID of the subvolume at the sender.
    pub(crate) uuid: Uuid,
    /// Whether compressed extents are always written as plain bytes.
    pub(crate) decompress: bool,
}

/// Returns the path that a command is about.
pub(super) fn path_of(command: &Command) -> &[u8] {
    match command {
        Command::Subvol { path, .. }
        | Command::Snapshot { path, .. }
        | Command::Mkfile { path, .. }
        | Command::Mkdir { path, .. }
        | Command::Mknod { path, .. }
        | Command::Mkfifo { path, .. }
        | Command::Mksock { path, .. }
        | Command::Symlink { path, .. }
        | Command::Rename { from: path, .. }
        | Command::Link { path, .. }
        | Command::Unlink { path }
        | Command::Rmdir { path }
        | Command::SetXattr { path, .. }
        | Command::RemoveXattr { path, .. }
        | Command::Write { path, .. }
        | Command::Clone { path, .. }
        | Command::Truncate { path, .. }
        | Command::Chmod { path, .. }
        | Command::Chown { path, .. }
        | Command::Utimes { path, .. }
        | Command::UpdateExtent { path, .. }
        | Command::Fallocate { path, .. }
        | Command::Fileattr { path, .. } => path,
        Command::EncodedWrite(write) => &write.path,
        Command::End => b"",
    }
}

impl Interpreter {
    /// Applies one command.
    pub(crate) fn apply(&self, target: &mut dyn ReceiveTarget, command: &Command) -> Result<()> {
        match command {
            Command::Mkfile { path, .. } => target.create(named(path)?, NewKind::Regular, 0o600),
            Command::Mkdir { path, .. } => target.create(named(path)?, NewKind::Directory, 0o700),
            Command::Mkfifo { path, mode, .. } => target.create(named(path)?, NewKind::Fifo, bits(*mode)),
            Command::Mksock { path, mode, .. } => target.create(named(path)?, NewKind::Socket, bits(*mode)),
            Command::Mknod { path, rdev, mode, .. } => {
                target.create(named(path)?, device(*rdev, *mode)?, bits(*mode))
            }
            Command::Symlink { path, target: to, .. } => {
                target.create(named(path)?, NewKind::Symlink(to), 0o777)
            }
            Command::Rename { from, to } => target.rename(named(from)?, named(to)?),
            Command::Link { path, existing } => target.link(named(existing)?, named(path)?),
            Command::Unlink { path } => target.remove_file(named(path)?),
            Command::Rmdir { path } => target.remove_dir(named(path)?),
            Command::SetXattr { path, name, value } => target.set_xattr(any(path)?, name, value),
            Command::RemoveXattr { path, name } => target.remove_xattr(any(path)?, name),
            Command::Chmod { path, mode } => target.set_mode(any(path)?, bits(*mode)),
            Command::Chown { path, uid, gid } => target.set_owner(any(path)?, narrow(*uid)?, narrow(*gid)?),
            Command::Utimes { path, atime, mtime, .. } => target.set_times(any(path)?, *atime, *mtime),
            // Neither changes anything that a receiver can set.
            // btrfs-progs leave flags as they are, too: streams have none of new files, and some
            // flags would keep the receiver from changing the file.
            Command::UpdateExtent { .. } | Command::Fileattr { .. } => Ok(()),
            other => self.apply_data(target, other),
        }
    }

    /// Applies a command about the data of a file.
    fn apply_data(&self, target: &mut dyn ReceiveTarget, command: &Command) -> Result<()> {
        match command {
            Command::Write { path, offset, data } => {
                fits(*offset, data.len() as u64)?;
                target.write(named(path)?, *offset, data)
            }
            Command::EncodedWrite(write) => {
                named(&write.path)?;
                fits(write.offset, write.file_length)?;
                let data = decode(write)?;
                if write.compression != 0 && !self.decompress && target.write_encoded(write)? {
                    return Ok(());
                }
                target.write(&write.path, write.offset, &data)
            }
            Command::Truncate { path, size } => {
                fits(*size, 0)?;
                target.truncate(named(path)?, *size)
            }
            Command::Fallocate { path, mode, offset, size } => {
                fits(*offset, *size)?;
                let (path, keep) = (named(path)?, mode & KEEP_SIZE != 0);
                match mode & !KEEP_SIZE {
                    0 => target.allocate(path, *offset, *size, keep),
                    PUNCH_HOLE if keep => target.punch_hole(path, *offset, *size),
                    ZERO_RANGE => target.zero_range(path, *offset, *size, keep),
                    _ => Err(Error::Invalid(format!("fallocate mode {mode:#x} is not supported"))),
                }
            }
            Command::Clone { offset, length, path, clone_uuid, clone_ctransid, clone_path, clone_offset } => {
                fits(*offset, *length)?;
                fits(*clone_offset, *length)?;
                let other = SentSubvolume { uuid: *clone_uuid, ctransid: Generation(*clone_ctransid) };
                let range = CloneRange {
                    subvolume: (*clone_uuid != self.uuid).then_some(other),
                    source: named(clone_path)?,
                    from: *clone_offset,
                    length: *length,
                    to: *offset,
                };
                target.clone_range(named(path)?, &range)
            }
            other => Err(Error::Invalid(format!("{} in the middle of a subvolume", other.kind()))),
        }
    }
}

/// Accepts a path below the root.
fn named(path: &[u8]) -> Result<&[u8]> {
    let wrong = |name: &[u8]| matches!(name, b"" | b"." | b"..");
    if path.split(|byte| *byte == b'/').any(wrong) {
        return Err(Error::path(path, PathError::InvalidName));
    }
    Ok(path)
}

/// Accepts a path below the root, and the root itself.
fn any(path: &[u8]) -> Result<&[u8]> {
    if path.is_empty() { Ok(path) } else { named(path) }
}

/// Accepts one name, as senders give subvolumes.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match named(name) {
        Ok(_) if !name.contains(&b'/') => Ok(()),
        _ => Err(Error::path(name, PathError::InvalidName)),
    }
}

fn bits(mode: u64) -> u32 {
    mode as u32 & MODE_PERMISSION_MASK
}

fn narrow(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Invalid(format!("{number} exceeds 32 bits")))
}

/// Decodes a device number as `new_decode_dev` of the kernel does.
fn device(rdev: u64, mode: u64) -> Result<NewKind<'static>> {
    let rdev = narrow(rdev)?;
    let (major, minor) = ((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
    match FileKind::from_mode(mode as u32) {
        Some(FileKind::CharacterDevice) => Ok(NewKind::CharacterDevice { major, minor }),
        Some(FileKind::BlockDevice) => Ok(NewKind::BlockDevice { major, minor }),
        _ => Err(Error::Invalid(format!("mode {mode:o} is not that of a device"))),
    }
}

/// Refuses ranges that no file can have.
fn fits(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Error::Invalid(format!("{length} bytes at {offset} exceed the largest file"))),
    }
}
