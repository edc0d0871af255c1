//! One operation on a file system: [`Operation`].
//!
//! An operation contains everything it needs, so its `Debug` text is enough to repeat it.

use crate::model::{Model, Quotas, Refusal, Verdict};
use papilio::{FileKind, RenameMode, XattrSet};

/// The kind of inode to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewFile {
    /// An empty file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A pipe, socket or device file, with its device number.
    Special(FileKind, u32, u32),
}

/// The file whose data an operation accesses.
#[derive(Clone, PartialEq, Eq)]
pub enum FileAt {
    /// An open file, by slot.
    Open(u8),
    /// A file by path.
    Path(Vec<u8>),
}

impl std::fmt::Debug for FileAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileAt::Open(slot) => write!(f, "open {slot}"),
            FileAt::Path(path) => write!(f, "\"{}\"", path.escape_ascii()),
        }
    }
}

/// A path or name, shown as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes to write, described by a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Number of bytes.
    pub length: usize,
    /// Selects the bytes: 0 for zeros; other even seeds compress well, odd ones do not.
    pub seed: u64,
}

impl Fill {
    /// Generates the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        let mut random = fastrand::Rng::with_seed(self.seed);
        match self.seed {
            0 => {}
            seed if seed.is_multiple_of(2) => {
                let words: Vec<[u8; 8]> = (0..16).map(|_| random.u64(..).to_le_bytes()).collect();
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&words[random.usize(..words.len())][..chunk.len()]);
                }
            }
            _ => random.fill(&mut bytes),
        }
        bytes
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the corresponding calls.
pub enum Operation {
    Create {
        path: Text,
        mode: u32,
        owner: (u32, u32),
        new: NewFile,
    },
    CreateUnnamed {
        slot: u8,
        directory: Text,
    },
    Open {
        slot: u8,
        path: Text,
    },
    Close {
        slot: u8,
    },
    Write {
        file: FileAt,
        offset: u64,
        fill: Fill,
    },
    Append {
        file: FileAt,
        fill: Fill,
    },
    Truncate {
        file: FileAt,
        size: u64,
    },
    PunchHole {
        file: FileAt,
        offset: u64,
        length: u64,
    },
    Allocate {
        file: FileAt,
        offset: u64,
        length: u64,
        keep_size: bool,
    },
    /// Writes extents anew, compressed if `compress` is true. The content stays.
    Defragment {
        file: FileAt,
        offset: u64,
        length: u64,
        compress: Option<bool>,
    },
    CloneRange {
        source: FileAt,
        from: u64,
        length: u64,
        target: FileAt,
        to: u64,
    },
    Read {
        file: FileAt,
        offset: u64,
        length: usize,
    },
    Rename {
        from: Text,
        to: Text,
        mode: RenameMode,
    },
    Link {
        existing: Text,
        path: Text,
    },
    LinkOpen {
        slot: u8,
        path: Text,
    },
    Unlink {
        path: Text,
    },
    RemoveDirectory {
        path: Text,
    },
    SetMode {
        path: Text,
        mode: u32,
    },
    SetOwner {
        path: Text,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    SetTimes {
        path: Text,
        seconds: i64,
    },
    SetXattr {
        path: Text,
        name: Text,
        value: Vec<u8>,
        how: XattrSet,
    },
    RemoveXattr {
        path: Text,
        name: Text,
    },
    SetFlags {
        path: Text,
        nodatacow: bool,
        compress: bool,
    },
    CreateSubvolume {
        path: Text,
    },
    Snapshot {
        source: Text,
        path: Text,
        read_only: bool,
    },
    DeleteSubvolume {
        path: Text,
    },
    /// Files of the subvolume may be open for writing.
    SetReadOnly {
        path: Text,
        read_only: bool,
    },
    EnableQuotas {
        quotas: Quotas,
    },
    DisableQuotas,
    RescanQuotas,
    /// Limits the bytes that a subvolume references, or references exclusively.
    Limit {
        path: Text,
        bytes: Option<u64>,
        exclusive: bool,
    },
    Fsync {
        file: FileAt,
    },
    FsyncInode {
        path: Text,
    },
    Sync,
    /// Makes everything durable, then moves one block group: 0 of data, 1 of metadata, 2 of chunks.
    Balance {
        kind: u8,
    },
    /// Makes everything durable, then merges the extents of all files without unsharing them.
    DefragmentShared {
        /// 0 leaves extents stored as they are; 1, 2 and 3 compress with zlib, LZO and zstd, 4
        /// gives compression up.
        compression: u8,
    },
    /// Makes everything durable, then shares equal data of all files, found by its checksums.
    Dedupe,
    Remount,
}

/// The result of an operation besides success.
pub type Reply = Option<Vec<u8>>;

impl Operation {
    /// Returns the file whose data the operation changes in steps; running out of space may leave
    /// some steps done.
    pub fn data_target(&self) -> Option<&FileAt> {
        match self {
            Operation::Write { file, .. }
            | Operation::Append { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::PunchHole { file, .. }
            | Operation::Defragment { file, .. }
            | Operation::Allocate { file, .. } => Some(file),
            Operation::CloneRange { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Returns whether the operation changes the state of quotas.
    pub fn changes_quotas(&self) -> bool {
        matches!(
            self,
            Operation::EnableQuotas { .. }
                | Operation::DisableQuotas
                | Operation::RescanQuotas
                | Operation::Limit { .. }
        )
    }

    /// Returns whether the operation may end with EDQUOT where a subvolume has a limit.
    pub fn takes_space(&self) -> bool {
        let takes_none = matches!(
            self,
            Operation::Open { .. }
                | Operation::Close { .. }
                | Operation::Read { .. }
                | Operation::Unlink { .. }
                | Operation::RemoveDirectory { .. }
                | Operation::DeleteSubvolume { .. }
                | Operation::Fsync { .. }
                | Operation::FsyncInode { .. }
                | Operation::Sync
                | Operation::Balance { .. }
                | Operation::DefragmentShared { .. }
                | Operation::Dedupe
                | Operation::Remount
        );
        !takes_none && !self.changes_quotas()
    }

    /// Applies the operation to the model.
    ///
    /// # Errors
    /// The refusal that the file system must return too.
    pub fn apply(&self, model: &mut Model) -> Verdict<Reply> {
        match self {
            Operation::Create { path, mode, owner, new } => {
                model.create(path, *mode, *owner, new).map(drop)?;
            }
            Operation::CreateUnnamed { slot, directory } => model.create_unnamed(*slot, directory)?,
            Operation::Open { slot, path } => model.open(*slot, path)?,
            Operation::Close { slot } => model.close(*slot),
            Operation::Read { file, offset, length } => {
                let place = model.file(file)?;
                return Ok(Some(model.content(place).bytes(*offset, *length as u64)));
            }
            Operation::Rename { from, to, mode } => model.rename(from, to, *mode)?,
            Operation::Link { existing, path } => model.link(existing, path)?,
            Operation::LinkOpen { slot, path } => model.link_open(*slot, path)?,
            Operation::Unlink { path } => model.remove(path, false)?,
            Operation::RemoveDirectory { path } => model.remove(path, true)?,
            Operation::SetMode { path, mode } => model.set_mode(path, *mode)?,
            Operation::SetOwner { path, uid, gid } => model.set_owner(path, *uid, *gid)?,
            Operation::SetTimes { path, .. } => model.set_times(path)?,
            Operation::SetXattr { path, name, value, how } => model.set_xattr(path, name, value, *how)?,
            Operation::RemoveXattr { path, name } => model.remove_xattr(path, name)?,
            Operation::SetFlags { path, nodatacow, compress } => {
                model.set_flags(path, *nodatacow, *compress)?;
            }
            Operation::CreateSubvolume { path } => model.create_subvolume(path)?,
            Operation::Snapshot { source, path, read_only } => model.snapshot(source, path, *read_only)?,
            Operation::DeleteSubvolume { path } => model.delete_subvolume(path)?,
            Operation::SetReadOnly { path, read_only } => model.set_read_only(path, *read_only)?,
            Operation::EnableQuotas { quotas } => model.enable_quotas(*quotas),
            Operation::DisableQuotas => model.disable_quotas(),
            Operation::RescanQuotas => model.rescan_quotas()?,
            Operation::Limit { path, bytes, exclusive } => model.limit(path, *bytes, *exclusive)?,
            Operation::Fsync { file } => model.file(file).map(drop)?,
            Operation::FsyncInode { path } => model.resolve(path, false).map(drop)?,
            Operation::Sync
            | Operation::Balance { .. }
            | Operation::DefragmentShared { .. }
            | Operation::Dedupe => {}
            Operation::Remount => model.close_all(),
            _ => self.apply_to_data(model)?,
        }
        Ok(None)
    }

    fn apply_to_data(&self, model: &mut Model) -> Result<(), Refusal> {
        match self {
            // Writing nothing succeeds, even on a file that refuses changes.
            Operation::Write { file, fill, .. } | Operation::Append { file, fill } if fill.length == 0 => {
                model.file(file).map(drop)
            }
            Operation::Write { file, offset, fill } => {
                model.write(file, |content| content.write(*offset, &fill.bytes()))
            }
            Operation::Append { file, fill } => {
                model.write(file, |content| content.write(content.size(), &fill.bytes()))
            }
            Operation::Truncate { file, size } => model.edit(file, |content| content.set_size(*size)),
            Operation::PunchHole { file, offset, length } => {
                model.edit(file, |content| content.zero(*offset, offset + length))
            }
            Operation::Defragment { file, .. } => model.edit(file, |_| {}),
            Operation::Allocate { file, offset, length, keep_size } => model.edit(file, |content| {
                if !keep_size && *length > 0 {
                    content.grow_to(offset + length);
                }
            }),
            Operation::CloneRange { source, from, length, target, to } => {
                model.clone_range(source, *from, *length, target, *to)
            }
            _ => unreachable!("not a change of data: {self:?}"),
        }
    }
}
