//! A file system and its model, side by side: [`Session`].
//!
//! Owns the open file system, its open files, and the comparison of each answer.
//!
//! **Invariant:** after each operation that did not fail the run, the file system and the model
//! agree. An operation that runs out of space leaves no trace, unless it changes data in steps.
//! Then each sector is either old or new, and the model adopts the actual content.

use crate::model::{Content, Limits, Model, Place, Quotas, Refusal};
use crate::operation::{FileAt, Fill, NewFile, Operation, Reply};
use crate::promised_space::is_promised;
use crate::random::Generator;
use crate::verify;
use papilio::format::features::IncompatFeatures;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{
    BalanceFilter, BalanceOptions, ChecksumDedupe, Compression, CompressionChoice, DedupeError,
    DedupeObserver, DefragmentOptions, Error, ErrorKind, File, FileKind, FileSystem, InodeFlags, NewInode,
    NewKind, OpenOptions, QgroupId, QuotaError, SetTime, SharedDefragmentOptions, StayReason, Timespec,
};
use papilio_device::Device;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;

/// Number of recent operations in a failure report.
const HISTORY_LENGTH: usize = 12;

/// Bytes that an operation may take beside its data, for metadata.
const SLACK: u64 = 2 << 20;

/// Counts of a run's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations run.
    pub operations: u64,
    /// Operations that both sides refused.
    pub refused: u64,
    /// Operations that ran out of space.
    pub no_space: u64,
    /// Operations that a limit of a qgroup refused.
    pub over_limit: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.refused += other.refused;
        self.no_space += other.no_space;
        self.over_limit += other.over_limit;
        self.syncs += other.syncs;
    }
}

/// The outcome of a step that did not fail the run.
#[derive(Debug)]
pub enum Outcome {
    /// Both sides did it.
    Done,
    /// Both sides refused it.
    Refused,
    /// There was no space.
    NoSpace,
    /// A limit of a qgroup refused it.
    OverLimit,
    /// The file system failed because a device failed.
    Failed(Error),
}

/// A file system and its model.
#[derive(Debug)]
pub struct Session {
    devices: Vec<Arc<dyn Device>>,
    options: OpenOptions,
    fs: Option<FileSystem>,
    base: Vec<u8>,
    files: BTreeMap<u8, File>,
    model: Model,
    last: VecDeque<String>,
    counts: Counts,
    /// Whether a snapshot was made.
    snapshots: bool,
}

impl Session {
    /// Opens an empty file system.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> papilio::Result<Self> {
        Self::resume(devices, options, Model::new())
    }

    /// Opens a file system whose model is known.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn resume(
        devices: Vec<Arc<dyn Device>>,
        options: OpenOptions,
        mut model: Model,
    ) -> papilio::Result<Self> {
        model.close_all();
        // A device after a crash may have a torn copy. The model then knows the size already.
        if let Some(bytes) = sector_size(&devices) {
            model.set_sector(bytes.into());
        }
        let fs = FileSystem::from_devices(devices.clone(), &options)?;
        Ok(Self { devices, options, model, ..Self::shared(fs, b"") })
    }

    /// Uses an empty directory of an open file system that others use too, and never closes that.
    pub fn shared(fs: FileSystem, base: &[u8]) -> Self {
        Self {
            devices: Vec::new(),
            options: OpenOptions::new(),
            fs: Some(fs),
            base: base.to_vec(),
            files: BTreeMap::new(),
            model: Model::new(),
            last: VecDeque::new(),
            counts: Counts::default(),
            snapshots: false,
        }
    }

    /// Returns the current model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the model, for a caller that also changes the file system in other ways.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Returns the file system.
    ///
    /// # Panics
    /// After [`Session::close`] or a failed remount.
    pub fn fs(&self) -> &FileSystem {
        self.fs.as_ref().expect("the file system is open")
    }

    /// Returns the inode that an operation just created, if any, and its number.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn created_inode(&self, operation: &Operation) -> papilio::Result<Option<(Place, u64)>> {
        Ok(match operation {
            Operation::Create { path, .. } => {
                let place = self.model.resolve(path, false).expect("the inode was just created");
                Some((place, self.fs().inode_nofollow(self.path(path))?.number().0))
            }
            Operation::CreateUnnamed { slot, .. } => {
                let place = self.model.file(&FileAt::Open(*slot)).expect("the inode was just created");
                Some((place, self.files[slot].inode().number().0))
            }
            _ => None,
        })
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Draws and runs `operations` operations.
    ///
    /// # Errors
    /// The first mismatch, with the preceding operations.
    pub fn run(&mut self, generator: &mut Generator, operations: u64) -> Result<(), String> {
        for _ in 0..operations {
            let operation = generator.next(&self.model);
            if let Outcome::Failed(error) = self.step(&operation)? {
                return Err(self.failure_report(&operation, &format!("failed: {error}")));
            }
        }
        Ok(())
    }

    /// Runs one operation on both sides.
    ///
    /// # Errors
    /// An answer that differs from the model's.
    pub fn step(&mut self, operation: &Operation) -> Result<Outcome, String> {
        if self.last.len() == HISTORY_LENGTH {
            self.last.pop_front();
        }
        self.last.push_back(shortened(operation));
        self.counts.operations += 1;
        self.snapshots |= matches!(operation, Operation::Snapshot { .. });
        let answer = self.carry_out(operation);
        let kind = match &answer {
            Ok(_) => None,
            Err(error) => Some(error.kind()),
        };
        let outcome = match (answer, kind) {
            (Ok(reply), _) => {
                let expected = operation.apply(&mut self.model);
                self.check_reply(operation, &reply, expected)?;
                self.counts.syncs += u64::from(*operation == Operation::Sync);
                Outcome::Done
            }
            (Err(error), Some(ErrorKind::NoSpace)) => {
                self.counts.no_space += 1;
                self.check_promise(operation, &error)?;
                self.adopt(operation, true)?;
                Outcome::NoSpace
            }
            (Err(error), Some(ErrorKind::Quota(QuotaError::Exceeded { .. }))) => {
                self.counts.over_limit += 1;
                self.check_limit(operation, &error)?;
                self.adopt(operation, true)?;
                Outcome::OverLimit
            }
            (Err(error), Some(ErrorKind::Path(_) | ErrorKind::Invalid | ErrorKind::Quota(_))) => {
                let refusal = match error.kind() {
                    ErrorKind::Path(kind) => Refusal::Path(kind),
                    ErrorKind::Quota(kind) => Refusal::Quota(kind),
                    _ => Refusal::Invalid,
                };
                let before = self.model.clone();
                match operation.apply(&mut self.model) {
                    Err(expected) if expected == refusal || expected == Refusal::Stub => {}
                    other => {
                        self.model = before;
                        let other = other.map(|_| "success");
                        return Err(self
                            .failure_report(operation, &format!("returned {error:?}, expected {other:?}")));
                    }
                }
                self.counts.refused += 1;
                Outcome::Refused
            }
            (Err(error), _) => {
                let goes_on = self.fs.as_ref().is_some_and(|fs| fs.failure().is_none());
                if goes_on && error.kind() != ErrorKind::ReadOnly {
                    self.adopt(operation, false)?;
                }
                Outcome::Failed(error)
            }
        };
        Ok(outcome)
    }

    fn check_reply(
        &self,
        operation: &Operation,
        reply: &Reply,
        expected: Result<Reply, Refusal>,
    ) -> Result<(), String> {
        let expected = match expected {
            Ok(expected) => expected,
            Err(refusal) => {
                return Err(self.failure_report(operation, &format!("succeeded, expected {refusal:?}")));
            }
        };
        if *reply == expected {
            return Ok(());
        }
        let (got, wanted) = (reply.as_deref().unwrap_or_default(), expected.as_deref().unwrap_or_default());
        Err(self.failure_report(operation, &verify::difference(got, wanted)))
    }

    /// After a change that ran out of space, or a device failure, adopts the actual content if
    /// possible.
    /// After want of space (`scarce`), a write has left a prefix of its data.
    fn adopt(&mut self, operation: &Operation, scarce: bool) -> Result<(), String> {
        // The file system reserves space first, so an operation that must be refused may run out of
        // space instead.
        let Some(target) = operation.data_target() else { return Ok(()) };
        let Ok(place) = self.model.file(target) else { return Ok(()) };
        let before = self.model.content(place).clone();
        let mut after = self.model.clone();
        if operation.apply(&mut after).is_err() {
            return Ok(());
        }
        let after = after.content(place).clone();
        let found = self.open_file(target).and_then(|file| file.read_all());
        let found = match found {
            // The device failed permanently: nothing more will become durable.
            Err(error) if error.kind() == ErrorKind::Io => return Ok(()),
            found => found.map_err(|error| self.failure_report(operation, &format!("read back: {error}")))?,
        };
        let is_write = matches!(operation, Operation::Write { .. } | Operation::Append { .. });
        let content = match operation {
            Operation::Write { offset, fill, .. } => prefix_content(&before, *offset, fill, &found),
            Operation::Append { fill, .. } => prefix_content(&before, before.size(), fill, &found),
            _ => verify::mixed_content(&before, &after, &found),
        };
        let content = match content {
            // A device that failed may have kept any of the sectors.
            Err(_) if is_write && !scarce => verify::mixed_content(&before, &after, &found),
            content => content,
        };
        let content = content.map_err(|reason| {
            self.failure_report(operation, &format!("ran out of space and left {reason}"))
        })?;
        self.model.set_content(place, content);
        Ok(())
    }

    /// Refuses "no space" for data where the file has all space that a write needs.
    fn check_promise(&self, operation: &Operation, error: &Error) -> Result<(), String> {
        let (Operation::Write { file, offset, fill }, Error::NoSpace { what: "data" }) = (operation, error)
        else {
            return Ok(());
        };
        let range = *offset..*offset + fill.bytes().len() as u64;
        // An extent older than a snapshot counts as shared, even if the snapshot is gone.
        let promised = !self.snapshots
            && self.open_file(file).and_then(|file| is_promised(self.fs(), &file, &range)).unwrap_or(false);
        match promised {
            true => Err(self.failure_report(operation, "found no space although it was promised")),
            false => Ok(()),
        }
    }

    /// Refuses EDQUOT for an operation that takes no space, in a subvolume without a limit, or far
    /// below the limit.
    fn check_limit(&self, operation: &Operation, error: &Error) -> Result<(), String> {
        let refused = |what: &str| Err(self.failure_report(operation, &format!("{error}, {what}")));
        if !operation.takes_space() {
            return refused("but it takes no space");
        }
        let Some(target) = operation.data_target() else {
            return match self.model.is_limited() {
                true => Ok(()),
                false => refused("but no subvolume has a limit"),
            };
        };
        let Ok(place) = self.model.file(target) else { return Ok(()) };
        let Limits { referenced, exclusive } = self.model.limits(place);
        if referenced.or(exclusive).is_none() {
            return refused("but the subvolume of the file has no limit");
        }
        let report = |error: Error| self.failure_report(operation, &error.to_string());
        self.fs().sync().map_err(report)?;
        let tree = self.open_file(target).map_err(report)?.inode().tree();
        let groups = self.fs().qgroups().map_err(report)?;
        let Some(group) = groups.iter().find(|group| group.id.0 == tree.0) else { return Ok(()) };
        let length = match operation {
            Operation::Write { fill, .. } | Operation::Append { fill, .. } => fill.length as u64,
            Operation::Allocate { length, .. } => *length,
            _ => return Ok(()),
        };
        let needed = length + SLACK;
        let has_room = |limit: Option<u64>, used: u64| limit.is_none_or(|limit| used + needed <= limit);
        match has_room(referenced, group.referenced) && has_room(exclusive, group.exclusive) {
            true => refused(&format!("but {} and {} bytes are used", group.referenced, group.exclusive)),
            false => Ok(()),
        }
    }

    fn failure_report(&self, operation: &Operation, what: &str) -> String {
        let mut text = format!(
            "operation {}: {}: {what}\nthe last operations were:",
            self.counts.operations,
            shortened(operation)
        );
        for last in &self.last {
            let _ = write!(text, "\n    {last}");
        }
        text
    }

    /// Compares everything through the open file system.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify(&self) -> Result<(), String> {
        verify::compare(self.fs(), &self.base, &self.model)
            .map_err(|difference| format!("after {} operations: {difference}", self.counts.operations))
    }

    /// Closes the file system, checks it, reopens it and compares it with the model.
    ///
    /// # Errors
    /// A failure to close, a difference, or a finding of the check.
    pub fn close(&mut self) -> Result<(), String> {
        self.files.clear();
        self.model.close_all();
        let fs = self.fs.take().expect("the file system is open");
        fs.close().map_err(|error| format!("closing: {error}"))?;
        verify::check(&self.devices)?;
        verify::compare_devices(&self.devices, &self.model)
    }

    /// Reopens the file system after [`Session::close`].
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reopen(&mut self) -> papilio::Result<()> {
        self.fs = Some(FileSystem::from_devices(self.devices.clone(), &self.options)?);
        Ok(())
    }

    /// Drops the file system without checks.
    pub fn abandon(&mut self) {
        self.files.clear();
        self.fs = None;
    }

    fn path(&self, path: &[u8]) -> Vec<u8> {
        [&self.base[..], path].concat()
    }

    fn open_file(&self, file: &FileAt) -> papilio::Result<File> {
        match file {
            FileAt::Open(slot) => Ok(self.files[slot].clone()),
            FileAt::Path(path) => self.fs().open_file(self.path(path)),
        }
    }

    fn carry_out(&mut self, operation: &Operation) -> papilio::Result<Reply> {
        match operation {
            Operation::CreateUnnamed { slot, directory } => {
                let directory = self.fs().inode(self.path(directory))?;
                let file = directory.create_unnamed(&NewInode::new(NewKind::Regular, 0o600))?;
                file.begin_writing()?;
                self.files.insert(*slot, file);
            }
            Operation::Open { slot, path } => {
                let file = self.fs().open_file(self.path(path))?;
                // For reading only, where the subvolume is read-only.
                let _ = file.begin_writing();
                self.files.insert(*slot, file);
            }
            Operation::Close { slot } => drop(self.files.remove(slot)),
            Operation::Read { file, offset, length } => {
                let mut buffer = vec![0xa5; *length];
                let read = self.open_file(file)?.read_at(&mut buffer, *offset)?;
                buffer.truncate(read);
                return Ok(Some(buffer));
            }
            Operation::LinkOpen { slot, path } => {
                let path = self.path(path);
                let (directory, name) = self.fs().parent(&path)?;
                directory.hard_link(self.files[slot].inode(), name)?;
            }
            Operation::Fsync { file } => self.open_file(file)?.sync_all()?,
            Operation::FsyncInode { path } => self.fs().inode_nofollow(self.path(path))?.sync_all()?,
            Operation::Sync => self.fs().sync()?,
            Operation::Balance { kind } => self.balance(*kind)?,
            Operation::DefragmentShared { compression } => self.defragment_shared(*compression)?,
            Operation::Dedupe => self.dedupe()?,
            Operation::Remount => {
                self.files.clear();
                if let Some(fs) = self.fs.take_if(|_| !self.devices.is_empty()) {
                    fs.close()?;
                    self.reopen()?;
                }
            }
            _ => match operation.data_target() {
                Some(target) => self.change_data(operation, target)?,
                None => self.change_names(operation)?,
            },
        }
        Ok(None)
    }

    fn balance(&self, kind: u8) -> papilio::Result<()> {
        let fs = self.fs();
        fs.sync()?;
        let one = |of: u8| (kind == of).then(|| BalanceFilter { limit: Some(1), ..BalanceFilter::default() });
        let mut options = BalanceOptions { data: one(0), metadata: one(1), system: one(2), force: true };
        if fs.superblock().raw.incompat_flags.contains(IncompatFeatures::MIXED_GROUPS) {
            // Data and metadata share block groups, and need the same filters.
            options.metadata.clone_from(&options.data);
        }
        let moved = match fs.stored_balance()? {
            Some(_) => fs.resume_balance(|_| true),
            None => fs.balance(&options, |_| true),
        };
        match moved {
            // Extents that were moved stay where they are, and nothing is lost.
            Ok(_) | Err(papilio::Error::NoSpace { .. }) => fs.sync(),
            Err(error) => Err(error),
        }
    }

    fn dedupe(&self) -> papilio::Result<()> {
        /// Keeps the first failure.
        #[derive(Default)]
        struct FirstFailure(Option<DedupeError>);
        impl DedupeObserver for FirstFailure {
            fn failed(&mut self, error: DedupeError) {
                self.0.get_or_insert(error);
            }
        }
        let mut failure = FirstFailure::default();
        // Little memory, so that a part goes to temporary files.
        let dedupe = ChecksumDedupe::new().shortest_run(4096).memory_bytes(4096);
        let result = dedupe.run(self.fs(), None, &mut failure);
        match result.err().or(failure.0) {
            None => Ok(()),
            Some(DedupeError::Library(error)) => match *error {
                // Extents that were shared stay so, and nothing is lost.
                papilio::Error::NoSpace { .. } => Ok(()),
                papilio::Error::Quota(QuotaError::Exceeded { .. }) => Ok(()),
                error => Err(error),
            },
            Some(error) => panic!("dedupe: {error}"),
        }
    }

    fn defragment_shared(&self, compression: u8) -> papilio::Result<()> {
        let fs = self.fs();
        fs.sync()?;
        let mut files = Vec::new();
        for entry in fs.walk("/")? {
            let inode = entry?.inode;
            if inode.file_type() == FileKind::Regular {
                files.push(inode);
            }
        }
        let compression = match compression {
            0 => None,
            1 => Some(CompressionChoice::new(Compression::Zlib)),
            2 => Some(CompressionChoice::new(Compression::Lzo)),
            3 => Some(CompressionChoice::new(Compression::Zstd)),
            _ => Some(CompressionChoice::NONE),
        };
        let options = SharedDefragmentOptions { compression, ..SharedDefragmentOptions::default() };
        match fs.defragment_shared(&files, 0..u64::MAX, &options, |_| true) {
            Ok(report) => {
                let damaged = report.staying.iter().find(|one| matches!(one.reason, StayReason::Damaged(_)));
                assert_eq!(damaged, None, "nothing is damaged");
                Ok(())
            }
            // Batches that were merged stay, and nothing is lost.
            Err(papilio::Error::NoSpace { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn change_data(&self, operation: &Operation, target: &FileAt) -> papilio::Result<()> {
        let source = match operation {
            Operation::CloneRange { source, .. } => Some(self.open_file(source)?),
            _ => None,
        };
        let file = self.open_file(target)?;
        match operation {
            Operation::Write { offset, fill, .. } => file.write_all_at(&fill.bytes(), *offset),
            Operation::Append { fill, .. } => {
                file.size().and_then(|size| file.write_all_at(&fill.bytes(), size))
            }
            Operation::Truncate { size, .. } => file.set_len(*size),
            Operation::PunchHole { offset, length, .. } => file.punch_hole(*offset, *length),
            Operation::Defragment { offset, length, compress, .. } => {
                let compression = compress.map(|compress| match compress {
                    true => CompressionChoice::new(Compression::Zstd),
                    false => CompressionChoice::NONE,
                });
                let options = DefragmentOptions { compression, ..DefragmentOptions::default() };
                file.defragment(*offset..offset + length, &options, |_| true).map(drop)
            }
            Operation::Allocate { offset, length, keep_size, .. } => {
                file.allocate(*offset, *length, *keep_size)
            }
            Operation::CloneRange { from, length, to, .. } => {
                file.clone_range(source.as_ref().expect("a clone has a source"), *from, *length, *to)
            }
            _ => unreachable!("not a change of data: {operation:?}"),
        }
    }

    fn change_names(&self, operation: &Operation) -> papilio::Result<()> {
        let fs = self.fs();
        if operation.changes_quotas() {
            // They commit what is in the trees. Overwritten data may still be in memory then, so
            // that the commit would have a state that the model does not know.
            fs.sync()?;
        }
        match operation {
            Operation::Create { path, mode, owner: (uid, gid), new } => {
                let kind = match new {
                    NewFile::Regular => NewKind::Regular,
                    NewFile::Directory => NewKind::Directory,
                    NewFile::Symlink(target) => NewKind::Symlink(target),
                    NewFile::Special(kind, major, minor) => special(*kind, *major, *minor),
                };
                fs.create(self.path(path), &NewInode::new(kind, *mode).owner(*uid, *gid)).map(drop)
            }
            Operation::Rename { from, to, mode } => fs.rename_with(self.path(from), self.path(to), *mode),
            Operation::Link { existing, path } => fs.hard_link(self.path(existing), self.path(path)),
            Operation::Unlink { path } => fs.remove_file(self.path(path)),
            Operation::RemoveDirectory { path } => fs.remove_dir(self.path(path)),
            Operation::SetMode { path, mode } => fs.set_permissions(self.path(path), *mode),
            Operation::SetOwner { path, uid, gid } => fs.lchown(self.path(path), *uid, *gid),
            Operation::SetTimes { path, seconds } => {
                let time = SetTime::At(Timespec { seconds: *seconds, nanoseconds: 7 });
                fs.set_times_nofollow(self.path(path), Some(time), Some(time))
            }
            Operation::SetXattr { path, name, value, how } => {
                fs.inode_nofollow(self.path(path))?.set_xattr(name, value, *how)
            }
            Operation::RemoveXattr { path, name } => fs.inode_nofollow(self.path(path))?.remove_xattr(name),
            Operation::SetFlags { path, nodatacow, compress } => {
                let mut flags = InodeFlags::empty();
                flags.set(InodeFlags::NODATACOW, *nodatacow);
                flags.set(InodeFlags::COMPRESS, *compress);
                fs.inode_nofollow(self.path(path))?.set_flags(flags)
            }
            Operation::CreateSubvolume { path } => fs.create_subvolume(self.path(path)).map(drop),
            Operation::Snapshot { source, path, read_only } => {
                fs.snapshot(self.path(source), self.path(path), *read_only).map(drop)
            }
            Operation::DeleteSubvolume { path } => fs.delete_subvolume(self.path(path)),
            Operation::SetReadOnly { path, read_only } => {
                fs.set_subvolume_read_only(self.path(path), *read_only)?;
                // Any change by a handle makes it one that writes, so all do so now.
                self.files.values().for_each(|file| drop(file.begin_writing()));
                Ok(())
            }
            Operation::EnableQuotas { quotas: Quotas::Full } => fs.enable_quotas(),
            Operation::EnableQuotas { quotas: Quotas::Simple } => fs.enable_simple_quotas(),
            Operation::DisableQuotas => fs.disable_quotas(),
            Operation::RescanQuotas => fs.rescan_quotas(|_| {}),
            Operation::Limit { path, bytes, exclusive } => {
                let tree = fs.inode_nofollow(self.path(path))?.tree();
                let id = QgroupId::new(0, tree.0).expect("the ids of subvolumes are small");
                fs.limit_qgroup(id, *bytes, *exclusive)
            }
            _ => unreachable!("not a change of names: {operation:?}"),
        }
    }
}

fn special(kind: papilio::FileKind, major: u32, minor: u32) -> NewKind<'static> {
    match kind {
        papilio::FileKind::Fifo => NewKind::Fifo,
        papilio::FileKind::Socket => NewKind::Socket,
        papilio::FileKind::CharacterDevice => NewKind::CharacterDevice { major, minor },
        papilio::FileKind::BlockDevice => NewKind::BlockDevice { major, minor },
        other => unreachable!("{other:?} has content"),
    }
}

/// Formats an operation, truncating long values.
fn shortened(operation: &Operation) -> String {
    let text = format!("{operation:?}");
    match text.char_indices().nth(160) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

/// Builds the content left by a write of `fill` at `offset` that stopped: the first bytes of it are
/// there, up to the end of a sector, and no others.
fn prefix_content(before: &Content, offset: u64, fill: &Fill, found: &[u8]) -> Result<Content, String> {
    let data = fill.bytes();
    let there = found.get(offset as usize..).unwrap_or_default();
    let alike = there.iter().zip(&data).take_while(|(found, wrote)| found == wrote).count();
    let end = offset + alike as u64;
    let stored = if alike == data.len() { alike as u64 } else { (end - end % 4096).saturating_sub(offset) };
    let mut content = before.clone();
    if stored > 0 {
        content.write(offset, &data[..stored as usize]);
    }
    let expected = content.bytes(0, content.size());
    match found == expected {
        true => Ok(content),
        false => Err(format!(
            "no prefix of the write at {offset}, with {stored} bytes of it: {}",
            verify::difference(found, &expected)
        )),
    }
}

/// Reads the sector size of a file system from the first superblock of its first device, unless
/// that is bad.
fn sector_size(devices: &[Arc<dyn Device>]) -> Option<u32> {
    let (mut bytes, place) = (vec![0; SUPERBLOCK_SIZE], superblock_offset(0));
    devices.first()?.read_at(&mut bytes, place).ok()?;
    Some(Superblock::parse(&bytes, place).ok()?.raw.sector_size)
}
