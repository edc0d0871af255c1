//! Random operations: [`Generator`].
//!
//! Owns the weights. The same seed on the same sequence of states gives the same operations. Most
//! operations target existing files; some target missing ones, because refusals must be right too.

use crate::model::{Entry, Model, NodeKind, Place, Quotas, ROOT};
use crate::operation::{FileAt, Fill, NewFile, Operation, Text};
use fastrand::Rng;
use papilio::{FileKind, RenameMode, XattrSet};

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Number of inodes above which more are deleted than created.
    pub inodes: usize,
    /// Bytes of a file above which it is truncated.
    pub file_bytes: u64,
    /// Number of different ordinary names per directory; a small number reuses them often.
    pub names: u32,
    /// Maximum number of files open at a time.
    pub slots: u8,
    /// Average number of operations per sync; 0 for no syncs.
    pub sync_every: u32,
    /// Average number of operations per fsync, mostly of a file; 0 for no fsyncs.
    pub fsync_every: u32,
    /// Whether names are created, removed and moved as often as data changes.
    pub moves: bool,
    /// Average number of operations per balance of one block group; 0 for none.
    pub balance_every: u32,
    /// Average number of operations between remounts; 0 for no remounts.
    pub remount_every: u32,
    /// Whether subvolumes and snapshots are created and deleted.
    pub subvolumes: bool,
    /// Whether quotas are turned on and off, and subvolumes get limits.
    pub limits: bool,
    /// Whether programs get capabilities, which a kernel removes at each write.
    pub capabilities: bool,
    /// Whether files get space allocated past their end. Without NO_HOLES, kernels (6.18) lose the
    /// size of a file that is written over such space after a mount.
    pub allocate_past_end: bool,
    /// Whether files may be overwritten in place (NODATACOW). Bytes written to one between two
    /// commits may be there after a power loss.
    pub in_place: bool,
    /// Whether symbolic links may lead out of the base directory.
    pub wide_links: bool,
}

impl Default for Scope {
    fn default() -> Self {
        Self {
            inodes: 150,
            file_bytes: 2 << 20,
            names: 60,
            slots: 4,
            sync_every: 40,
            fsync_every: 0,
            moves: false,
            balance_every: 0,
            remount_every: 250,
            subvolumes: false,
            limits: false,
            capabilities: true,
            allocate_past_end: true,
            in_place: true,
            wide_links: true,
        }
    }
}

/// Draws operations.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Rng,
    scope: Scope,
}

impl Generator {
    /// Creates a generator for a seed.
    pub fn new(seed: u64, scope: Scope) -> Self {
        Self { random: Rng::with_seed(seed), scope }
    }

    fn one_in(&mut self, number: u32) -> bool {
        number > 0 && self.random.u32(..number) == 0
    }

    /// Draws the next operation for the current state of `model`.
    pub fn next(&mut self, model: &Model) -> Operation {
        if self.one_in(self.scope.sync_every) {
            return Operation::Sync;
        }
        if self.one_in(self.scope.balance_every) {
            return Operation::Balance { kind: self.random.u8(..3) };
        }
        if self.one_in(self.scope.balance_every) {
            return match self.random.bool() {
                true => Operation::DefragmentShared { compression: self.random.u8(..5) },
                false => Operation::Dedupe,
            };
        }
        if self.one_in(self.scope.remount_every) {
            return Operation::Remount;
        }
        if self.one_in(self.scope.fsync_every) {
            return match self.random.u8(..6) {
                0..4 => Operation::Fsync { file: self.fsynced(model) },
                4 => Operation::FsyncInode { path: self.directory(model) },
                _ => Operation::FsyncInode { path: self.any(model) },
            };
        }
        let full = model.len() > self.scope.inodes;
        match self.random.u32(..100) {
            0..18 if full => self.removal(model),
            0..18 => self.creation(model),
            18..34 if self.scope.moves => self.rename(model),
            34..40 if self.scope.moves => self.link(model),
            40..46 if self.scope.moves => self.removal(model),
            46..50 if self.scope.moves && !full => self.creation(model),
            18..62 => self.data(model),
            62..70 => self.rename(model),
            70..74 => self.link(model),
            74..80 => self.removal(model),
            80..92 => self.attributes(model),
            92..94 if self.scope.limits => self.quota(model),
            92..96 if self.scope.subvolumes => self.subvolume(model),
            _ => self.slot(model),
        }
    }

    /// Returns a random existing path that leads through real directories.
    fn existing(&mut self, model: &Model, stop: impl Fn(&NodeKind) -> bool) -> Text {
        let (mut path, mut place) = (Vec::new(), Model::root());
        for _ in 0..8 {
            let Some(entries) = model.node(place).entries().filter(|entries| !entries.is_empty()) else {
                break;
            };
            let mut chosen = None;
            // Several draws increase the chance of a match.
            for _ in 0..4 {
                let (name, entry) = entries
                    .iter()
                    .nth(self.random.usize(..entries.len()))
                    .expect("the index is below the number of entries");
                let Some(target) = model.target(place, *entry) else { continue };
                let stops = stop(&model.node(target).kind);
                chosen = Some((name, target, stops));
                if stops {
                    break;
                }
            }
            let Some((name, target, stops)) = chosen else { break };
            path.push(b'/');
            path.extend_from_slice(name);
            place = target;
            if stops && self.random.u8(..4) != 0 {
                return Text(path);
            }
        }
        if path.is_empty() { self.fresh_in(b"") } else { Text(path) }
    }

    fn any(&mut self, model: &Model) -> Text {
        self.existing(model, |_| true)
    }

    /// Returns a random directory, possibly the root.
    fn directory(&mut self, model: &Model) -> Text {
        let (mut path, mut place) = (Vec::new(), Model::root());
        while self.random.u8(..3) != 0 {
            let Some(entries) = model.node(place).entries().filter(|entries| !entries.is_empty()) else {
                break;
            };
            let (name, entry) = entries
                .iter()
                .nth(self.random.usize(..entries.len()))
                .expect("the index is below the number of entries");
            let Some(target) = model.target(place, *entry) else { break };
            let kind = &model.node(target).kind;
            let link = matches!(kind, NodeKind::Symlink(_)) && self.random.u8(..4) == 0;
            if !matches!(kind, NodeKind::Directory(_)) && !link && self.random.u8(..40) != 0 {
                continue;
            }
            path.push(b'/');
            path.extend_from_slice(name);
            place = target;
            if link {
                break;
            }
        }
        Text(path)
    }

    fn name(&mut self) -> Vec<u8> {
        match self.random.u8(..40) {
            0 => vec![b'a' + self.random.u8(..26); self.random.usize(200..=255)],
            1 => b"x".repeat(256),
            2 => (0..self.random.usize(1..20))
                .map(|_| *self.random.choice(b"\x01\xff\xc3\x28 \n*%").expect("the choices are not empty"))
                .collect(),
            _ => format!("n{}", self.random.u32(..self.scope.names)).into_bytes(),
        }
    }

    fn fresh_in(&mut self, directory: &[u8]) -> Text {
        let mut path = directory.to_vec();
        path.push(b'/');
        path.extend(self.name());
        Text(path)
    }

    fn fresh(&mut self, model: &Model) -> Text {
        let directory = self.directory(model);
        self.fresh_in(&directory)
    }

    fn mode(&mut self) -> u32 {
        if self.one_in(4) { self.random.u32(..0o10000) } else { 0o644 }
    }

    fn creation(&mut self, model: &Model) -> Operation {
        let path = self.fresh(model);
        let (mode, owner) = (self.mode(), (self.random.u32(..3), self.random.u32(..3)));
        let new = match self.random.u8(..20) {
            0..11 => NewFile::Regular,
            11..16 => NewFile::Directory,
            16..18 => NewFile::Symlink(self.link_target(model)),
            _ => {
                let kind = *self
                    .random
                    .choice(&[
                        FileKind::Fifo,
                        FileKind::Socket,
                        FileKind::CharacterDevice,
                        FileKind::BlockDevice,
                    ])
                    .expect("the choices are not empty");
                let numbered = matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice);
                let mut number = |limit| if numbered { self.random.u32(..limit) } else { 0 };
                NewFile::Special(kind, number(1 << 12), number(1 << 20))
            }
        };
        let mode = if new == NewFile::Directory { mode | 0o700 } else { mode };
        Operation::Create { path, mode, owner, new }
    }

    fn link_target(&mut self, model: &Model) -> Vec<u8> {
        match self.random.u8(..6) {
            0 => vec![b'l'; self.random.usize(1..3000)],
            1 if self.scope.wide_links => self.any(model).0,
            2 if self.scope.wide_links => b"../n1".to_vec(),
            3 => b"n1/n2".to_vec(),
            _ => self.name(),
        }
    }

    fn is_file(kind: &NodeKind) -> bool {
        matches!(kind, NodeKind::File(_))
    }

    fn file(&mut self, model: &Model) -> FileAt {
        let open: Vec<u8> = model.slots().map(|(slot, _)| slot).collect();
        if !open.is_empty() && self.one_in(3) {
            return FileAt::Open(open[self.random.usize(..open.len())]);
        }
        FileAt::Path(self.existing(model, Self::is_file).0)
    }

    /// Returns a file for an fsync: mostly an open one, whose changes are known.
    fn fsynced(&mut self, model: &Model) -> FileAt {
        let open: Vec<u8> = model.slots().map(|(slot, _)| slot).collect();
        match open.is_empty() || self.one_in(4) {
            true => FileAt::Path(self.existing(model, Self::is_file).0),
            false => FileAt::Open(open[self.random.usize(..open.len())]),
        }
    }

    fn size_of(model: &Model, file: &FileAt) -> u64 {
        model.file(file).map_or(0, |place: Place| model.content(place).size())
    }

    /// Draws an offset: mostly within the file, often at a sector boundary.
    fn offset(&mut self, size: u64) -> u64 {
        let offset = match self.random.u8(..12) {
            0 => 0,
            1..3 => size,
            3 => self.random.u64(..self.scope.file_bytes.max(1)),
            4 => self.random.u64(..10_000),
            _ => self.random.u64(..=size.min(self.scope.file_bytes)),
        };
        if self.random.bool() { offset - offset % 4096 } else { offset }
    }

    fn length(&mut self) -> usize {
        let most = (self.scope.file_bytes as usize).max(8);
        match self.random.u8(..40) {
            0..12 => self.random.usize(..3000),
            12..18 => 4096 * self.random.usize(1..8),
            18..32 => self.random.usize(..30_000),
            32..36 => self.random.usize(..200_000),
            36..38 => 4096 * self.random.usize(1..100),
            // Some lengths are large, so that files fill the device.
            _ => self.random.usize(..most / 2),
        }
        .min(most)
    }

    fn fill(&mut self) -> Fill {
        // Some content repeats, so that there is data to share.
        let seed = match self.random.u8(..24) {
            0..2 => 0,
            2..7 => self.random.u64(1..6),
            _ => self.random.u64(..),
        };
        Fill { length: self.length(), seed }
    }

    fn data(&mut self, model: &Model) -> Operation {
        let file = self.file(model);
        let size = Self::size_of(model, &file);
        if size > self.scope.file_bytes {
            let size = self.random.u64(..self.scope.file_bytes);
            return Operation::Truncate { file, size };
        }
        match self.random.u8(..46) {
            0..14 => {
                let (offset, fill) = (self.offset(size), self.fill());
                Operation::Write { file, offset, fill }
            }
            14..18 => Operation::Append { file, fill: self.fill() },
            18..22 => {
                let size = self.offset(size);
                Operation::Truncate { file, size }
            }
            22..25 => {
                let (offset, length) = (self.offset(size), self.length() as u64);
                Operation::PunchHole { file, offset, length }
            }
            25..28 => {
                let (offset, length) = (self.offset(size), self.length() as u64);
                let keep_size = self.random.bool() && self.scope.allocate_past_end;
                Operation::Allocate { file, offset, length, keep_size }
            }
            28..33 => self.clone_range(model, file),
            33..35 => {
                let (offset, length) = (self.offset(size), self.length() as u64 * 8);
                let compress = [None, None, Some(true), Some(false)][self.random.usize(..4)];
                Operation::Defragment { file, offset, length, compress }
            }
            _ => {
                let (offset, length) = (self.offset(size), self.length());
                Operation::Read { file, offset, length }
            }
        }
    }

    fn clone_range(&mut self, model: &Model, target: FileAt) -> Operation {
        let source = if self.one_in(3) { target.clone() } else { self.file(model) };
        let size = Self::size_of(model, &source);
        let own = Self::size_of(model, &target);
        let (mut from, mut to) = (self.offset(size), self.offset(own));
        let mut length = self.random.u64(..=size.saturating_sub(from).max(1));
        if !self.one_in(8) {
            let sector = model.sector();
            from -= from % sector;
            to -= to % sector;
            match self.random.u8(..3) {
                0 => length = 0,
                1 => length -= length % sector,
                _ => length = size.saturating_sub(from),
            }
        }
        Operation::CloneRange { source, from, length, target, to }
    }

    fn rename(&mut self, model: &Model) -> Operation {
        let from = self.any(model);
        let mode = match self.random.u8(..8) {
            0..2 => RenameMode::NoReplace,
            2..4 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let taken = if mode == RenameMode::Exchange { 6 } else { 2 };
        let to = if self.random.u8(..8) < taken { self.any(model) } else { self.fresh(model) };
        Operation::Rename { from, to, mode }
    }

    fn link(&mut self, model: &Model) -> Operation {
        let path = self.fresh(model);
        let open: Vec<(u8, Place)> = model.slots().collect();
        if !open.is_empty() && self.one_in(3) {
            let (slot, place) = open[self.random.usize(..open.len())];
            if !model.is_deleted(place.subvolume) {
                return Operation::LinkOpen { slot, path };
            }
        }
        Operation::Link {
            existing: self.existing(model, |kind| !matches!(kind, NodeKind::Directory(_))),
            path,
        }
    }

    fn removal(&mut self, model: &Model) -> Operation {
        if self.one_in(4) {
            let empty = |kind: &NodeKind| matches!(kind, NodeKind::Directory(entries) if entries.is_empty());
            let path = self.existing(model, empty);
            return Self::unless_open(model, &path).unwrap_or(Operation::RemoveDirectory { path });
        }
        Operation::Unlink { path: self.existing(model, |kind| !matches!(kind, NodeKind::Directory(_))) }
    }

    fn attributes(&mut self, model: &Model) -> Operation {
        let path = self.any(model);
        match self.random.u8(..12) {
            0..2 => Operation::SetMode { path, mode: self.random.u32(..0o10000) },
            2..4 => {
                let (uid, gid) = (self.random.u32(..5), self.random.u32(..5));
                let both = self.random.bool();
                Operation::SetOwner { path, uid: Some(uid), gid: both.then_some(gid) }
            }
            4 => Operation::SetTimes { path, seconds: i64::from(self.random.i32(..)) },
            5..9 => {
                let length = if self.one_in(6) { self.random.usize(..3000) } else { self.random.usize(..60) };
                let value = (0..length).map(|_| self.random.u8(..)).collect();
                let how = match self.random.u8(..4) {
                    0 => XattrSet::Create,
                    1 => XattrSet::Replace,
                    _ => XattrSet::Any,
                };
                Operation::SetXattr { path, name: self.xattr_name(), value, how }
            }
            9..11 => Operation::RemoveXattr { path, name: self.xattr_name() },
            _ => {
                let compress = self.random.bool();
                let nodatacow = !compress && self.one_in(2) && self.scope.in_place;
                Operation::SetFlags { path, nodatacow, compress }
            }
        }
    }

    fn xattr_name(&mut self) -> Text {
        let prefix =
            *self.random.choice(&["user", "trusted", "security"]).expect("the choices are not empty");
        if self.scope.capabilities && self.one_in(20) {
            return Text(b"security.capability".to_vec());
        }
        Text(format!("{prefix}.{}", self.random.u32(..6)).into_bytes())
    }

    fn subvolume(&mut self, model: &Model) -> Operation {
        let known = subvolume_paths(model);
        let source = known[self.random.usize(..known.len())].clone();
        match self.random.u8(..12) {
            8..12 if !source.is_empty() => {
                // Half of them in time become writable again.
                let read_only = self.random.bool();
                Operation::SetReadOnly { path: source, read_only }
            }
            0..2 if known.len() < 8 => Operation::CreateSubvolume { path: self.fresh(model) },
            2..5 if known.len() < 8 => {
                let read_only = self.one_in(3);
                let source = if source.is_empty() { Text(b"/".to_vec()) } else { source };
                Operation::Snapshot { source, path: self.fresh(model), read_only }
            }
            _ if known.len() > 1 && !source.is_empty() => Operation::DeleteSubvolume { path: source },
            _ => Operation::CreateSubvolume { path: self.fresh(model) },
        }
    }

    fn quota(&mut self, model: &Model) -> Operation {
        let Some(quotas) = model.quotas() else {
            let quotas = if self.one_in(3) { Quotas::Simple } else { Quotas::Full };
            return Operation::EnableQuotas { quotas };
        };
        match self.random.u8(..16) {
            0 => Operation::DisableQuotas,
            1 => Operation::EnableQuotas { quotas: Quotas::Full },
            2..5 if quotas == Quotas::Full || self.one_in(4) => Operation::RescanQuotas,
            _ => {
                let known = subvolume_paths(model);
                let path = known[self.random.usize(..known.len())].clone();
                let path = if path.is_empty() { Text(b"/".to_vec()) } else { path };
                // Below what the subvolume has, near it, and far above.
                let most = self.scope.file_bytes * 8;
                let bytes = match self.random.u8(..6) {
                    0 => None,
                    1 => Some(self.random.u64(..65_536)),
                    _ => Some(self.random.u64(..most)),
                };
                Operation::Limit { path, bytes, exclusive: self.one_in(3) }
            }
        }
    }

    /// Returns an operation that closes an open file of the subvolume at `path`, if there is one.
    fn unless_open(model: &Model, path: &[u8]) -> Option<Operation> {
        let place = model.resolve(path, false).ok().filter(|place| place.node == ROOT)?;
        let (slot, _) = model.slots().find(|(_, open)| open.subvolume == place.subvolume)?;
        Some(Operation::Close { slot })
    }

    fn slot(&mut self, model: &Model) -> Operation {
        let open: Vec<u8> = model.slots().map(|(slot, _)| slot).collect();
        let free = (0..self.scope.slots).find(|slot| !open.contains(slot));
        match free {
            Some(slot) if open.is_empty() || self.random.bool() => {
                if self.one_in(5) {
                    return Operation::CreateUnnamed { slot, directory: self.directory(model) };
                }
                Operation::Open { slot, path: self.existing(model, Self::is_file) }
            }
            _ if !open.is_empty() => Operation::Close { slot: open[self.random.usize(..open.len())] },
            _ => Operation::Sync,
        }
    }
}

/// Returns the paths of all subvolumes; the first one's path is empty.
fn subvolume_paths(model: &Model) -> Vec<Text> {
    let mut paths = vec![Text(Vec::new())];
    let mut pending = vec![(Vec::new(), Model::root())];
    while let Some((path, place)) = pending.pop() {
        for (name, entry) in model.node(place).entries().into_iter().flatten() {
            let Some(target) = model.target(place, *entry) else { continue };
            let below = [&path[..], b"/", name].concat();
            if matches!(entry, Entry::Subvolume(_)) {
                paths.push(Text(below.clone()));
            }
            if model.node(target).entries().is_some() {
                pending.push((below, target));
            }
        }
    }
    paths
}
