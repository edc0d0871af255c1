//! The kernel checks random operations. After Papilio's turn, `btrfs check` must be clean and the
//! kernel's view must match the model. Then the kernel runs random operations against the same
//! model, and Papilio continues on the result. The kernel also mounts states after a power loss.
//!
//! `PAPILIO_ROUNDS` sets the number of turns, `PAPILIO_KERNEL_STATES` that of states after a power
//! loss, `PAPILIO_SEED` the first seed.

use papilio::{CompressionChoice, FileKind, MkfsFeature, RenameMode, XattrSet};
use papilio_device::{Device, MemoryDevice};
use papilio_format::ChecksumType;
use papilio_format::items::file_extent::Compression;
use papilio_oracle::source::Content;
use papilio_oracle::{
    CompareOptions, HostTree, ImageSet, Kind, Metadata, Need, Scratch, Source, Time, compare, require,
};
use papilio_simulator::crash::{InFlight, Recorded, Survival};
use papilio_simulator::model::{Node, NodeKind};
use papilio_simulator::{Configuration, FileAt, Generator, Model, NewFile, Operation, Scope, Session};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, Uid, XattrFlags};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// The model as a source, for comparison with a mount.
struct Expected<'a>(&'a Model);

impl<'a> Expected<'a> {
    /// Returns the inode at `path`, or `None` for the stub of a subvolume, the only entry without a
    /// target.
    fn resolve_node(&self, path: &Path) -> Option<&'a Node> {
        Some(self.0.node(self.0.resolve(path.as_os_str().as_bytes(), false).ok()?))
    }

    fn node(&self, path: &Path) -> io::Result<&'a Node> {
        self.resolve_node(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

struct Bytes<'a>(&'a papilio_simulator::model::Content);

impl Content for Bytes<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.read(buffer, offset))
    }
}

impl Source for Expected<'_> {
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let Some(node) = self.resolve_node(path) else { return Ok(Vec::new()) };
        let entries = node.entries().expect("the inode is a directory");
        Ok(entries.keys().map(|name| OsString::from_vec(name.clone())).collect())
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let mut empty = Node::empty_directory(0o755);
        if let (None, Some(parent)) = (self.resolve_node(path), path.parent()) {
            // A stub has its directory's owner.
            let parent = self.node(parent)?;
            (empty.uid, empty.gid) = (parent.uid, parent.gid);
        }
        let node = self.resolve_node(path).unwrap_or(&empty);
        let (kind, rdev) = match &node.kind {
            NodeKind::File(_) => (Kind::File, (0, 0)),
            NodeKind::Directory(_) => (Kind::Directory, (0, 0)),
            NodeKind::Symlink(_) => (Kind::Symlink, (0, 0)),
            NodeKind::Special(FileKind::Fifo, ..) => (Kind::Fifo, (0, 0)),
            NodeKind::Special(FileKind::Socket, ..) => (Kind::Socket, (0, 0)),
            NodeKind::Special(FileKind::BlockDevice, major, minor) => (Kind::BlockDevice, (*major, *minor)),
            NodeKind::Special(_, major, minor) => (Kind::CharacterDevice, (*major, *minor)),
        };
        let none = Time::default();
        Ok(Metadata {
            kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            rdev,
            nlink: node.nlink.into(),
            size: node.size(),
            ino: 0,
            subvolume: None,
            flags: None,
            mtime: none,
            ctime: none,
            atime: none,
            btime: none,
        })
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let Some(Node { xattrs, .. }) = self.resolve_node(path) else { return Ok(Vec::new()) };
        Ok(xattrs.iter().map(|(name, value)| (OsString::from_vec(name.clone()), value.clone())).collect())
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        match &self.node(path)?.kind {
            NodeKind::Symlink(target) => Ok(OsString::from_vec(target.clone())),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>> {
        Ok(Box::new(Bytes(self.node(path)?.content().expect("the inode is a regular file"))))
    }
}

/// The kernel's view without the attributes that Btrfs manages itself.
struct Shown(HostTree);

impl Source for Shown {
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.0.read_directory(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.0.metadata(path)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let mut xattrs = self.0.xattrs(path)?;
        xattrs.retain(|(name, _)| !name.as_bytes().starts_with(b"btrfs."));
        Ok(xattrs)
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        self.0.read_link(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>> {
        self.0.open(path)
    }
}

/// Checks an image with the kernel: it must be clean and match the model.
fn check_image(label: &str, images: &ImageSet, model: &Model) {
    images.btrfs_check().unwrap_or_else(|error| panic!("{label}: {error}"));
    let mounted = images.mount_read_only().unwrap_or_else(|error| panic!("{label}: {error}"));
    let options = CompareOptions { mtime: false, ..CompareOptions::COPY };
    let report = compare(&Shown(HostTree::new(mounted.path())), &Expected(model), &options);
    assert!(report.is_equal(), "{label}: {report}");
}

/// Runs an operation through the kernel; returns `None` for one that could disturb the machine.
fn run_on_kernel(root: &Path, operation: &Operation, model: &Model) -> Option<rustix::io::Result<()>> {
    let at = |path: &[u8]| -> PathBuf {
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        root.join(std::ffi::OsStr::from_bytes(relative))
    };
    let open = |file: &FileAt| match file {
        FileAt::Path(path) => {
            let place = model.resolve(path, true).ok()?;
            model.node(place).content()?;
            std::fs::File::options().read(true).write(true).open(at(path)).ok()
        }
        FileAt::Open(_) => None,
    };
    let done = |result: io::Result<()>| {
        result.map_err(|error| rustix::io::Errno::from_io_error(&error).expect("the error has an errno"))
    };
    Some(match operation {
        Operation::Create { path, new, .. } => create(&at(path), new),
        Operation::Write { file, offset, fill } => done(open(file)?.write_all_at(&fill.bytes(), *offset)),
        Operation::Append { file, fill } => {
            let file = open(file)?;
            let end = file.metadata().expect("the file is open").len();
            done(file.write_all_at(&fill.bytes(), end))
        }
        Operation::Truncate { file, size } => done(open(file)?.set_len(*size)),
        Operation::PunchHole { file, offset, length } if *length > 0 => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(open(file)?, flags, *offset, *length)
        }
        Operation::Allocate { file, offset, length, keep_size } if *length > 0 => {
            let flags = if *keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
            rustix::fs::fallocate(open(file)?, flags, *offset, *length)
        }
        Operation::CloneRange { source, from, length, target, to } => {
            let (source, target) = (open(source)?, open(target)?);
            done(papilio_oracle::sys::clone_range(&source, *from, *length, &target, *to))
        }
        Operation::Rename { from, to, mode } => {
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
            };
            rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags)
        }
        Operation::Link { existing, path } => {
            rustix::fs::linkat(CWD, at(existing), CWD, at(path), AtFlags::empty())
        }
        Operation::Unlink { path } => rustix::fs::unlink(at(path)),
        Operation::RemoveDirectory { path } => rustix::fs::rmdir(at(path)),
        Operation::SetMode { path, mode } => rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode)),
        Operation::SetOwner { path, uid, gid } => lchown(&at(path), *uid, *gid),
        Operation::SetXattr { path, name, value, how } if !name.starts_with(b"security.") => {
            let flags = match how {
                XattrSet::Create => XattrFlags::CREATE,
                XattrSet::Replace => XattrFlags::REPLACE,
                XattrSet::Any => XattrFlags::empty(),
            };
            rustix::fs::lsetxattr(at(path), &name[..], value, flags)
        }
        Operation::RemoveXattr { path, name } if !name.starts_with(b"security.") => {
            rustix::fs::lremovexattr(at(path), &name[..])
        }
        _ => return None,
    })
}

fn lchown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

fn create(path: &Path, new: &NewFile) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(0o600);
    let (kind, device) = match new {
        NewFile::Symlink(target) => return rustix::fs::symlink(std::ffi::OsStr::from_bytes(target), path),
        NewFile::Directory => return rustix::fs::mkdir(path, mode),
        NewFile::Regular => (FileType::RegularFile, 0),
        NewFile::Special(kind, major, minor) => {
            let kind = match kind {
                FileKind::Fifo => FileType::Fifo,
                FileKind::Socket => FileType::Socket,
                FileKind::BlockDevice => FileType::BlockDevice,
                _ => FileType::CharacterDevice,
            };
            (kind, rustix::fs::makedev(*major, *minor))
        }
    };
    rustix::fs::mknodat(CWD, path, kind, mode, device)
}

/// Runs operations through the kernel; returns how many were run.
fn kernel_turn(
    label: &str,
    root: &Path,
    model: &mut Model,
    generator: &mut Generator,
    operations: u64,
) -> u64 {
    let mut done = 0;
    for _ in 0..operations {
        let operation = generator.next(model);
        let Some(answer) = run_on_kernel(root, &operation, model) else { continue };
        let before = model.clone();
        let expected = operation.apply(model);
        assert_eq!(
            answer.is_ok(),
            expected.is_ok(),
            "{label}: {operation:?}: the kernel answered {answer:?}, the model {expected:?}"
        );
        if expected.is_err() {
            *model = before;
        } else if let Operation::Create { path, .. } = &operation {
            // Set the requested owner and mode, independent of the umask.
            let node = model.node(model.resolve(path, false).expect("the inode was just created"));
            let path = root.join(std::ffi::OsStr::from_bytes(&path[1..]));
            lchown(&path, Some(node.uid), Some(node.gid)).expect("chown");
            if !matches!(node.kind, NodeKind::Symlink(_)) {
                rustix::fs::chmod(&path, Mode::from_raw_mode(node.mode)).expect("chmod");
            }
        }
        done += 1;
    }
    done
}

#[test]
fn kernel_and_papilio_take_turns() {
    let Some(_met) = require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let rounds = setting("PAPILIO_ROUNDS", 2);
    let scope = Scope {
        wide_links: false,
        capabilities: false,
        file_bytes: 300_000,
        remount_every: 100,
        ..Scope::default()
    };
    let configurations = [
        Configuration::new("default"),
        Configuration::new("mixed, explicit holes")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true).feature(MkfsFeature::NoHoles, false)),
        Configuration::new("node 4096, xxhash, zstd")
            .mkfs(|mkfs| mkfs.node_size(4096).checksum(ChecksumType::XxHash64))
            .open(|open| open.compress(CompressionChoice::new(Compression::Zstd))),
        Configuration::new("no free space tree, lzo")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::FreeSpaceTree, false))
            .open(|open| open.compress(CompressionChoice::new(Compression::Lzo))),
    ];
    for (number, configuration) in configurations.iter().enumerate() {
        let seed = setting("PAPILIO_SEED", 1) + 100 * number as u64;
        let scope = Scope { allocate_past_end: !configuration.name.contains("explicit holes"), ..scope };
        let scratch = Scratch::new(configuration.size).expect("create a scratch folder for an image");
        let (mut model, mut device) = (Model::new(), configuration.make().expect("mkfs"));
        let (mut own, mut kernels) = (0, 0);
        for round in 0..rounds {
            let label = format!("{}, seed {seed}, round {round}", configuration.name);
            let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
            let mut session = Session::resume(devices, configuration.open.clone(), model).expect("open");
            session.verify().unwrap_or_else(|failure| panic!("{label}: {failure}"));
            let mut generator = Generator::new(seed + 2 * round, Scope { subvolumes: true, ..scope });
            session.run(&mut generator, 250).unwrap_or_else(|failure| panic!("{label}: {failure}"));
            if round % 2 == 0 {
                session.fs().clean_subvolumes().unwrap_or_else(|error| panic!("{label}: {error}"));
            }
            session.close().unwrap_or_else(|failure| panic!("{label}: {failure}"));
            own += session.counts().operations;
            model = session.model().clone();
            let image = scratch.unique("image");
            device.write_image(&image).expect("write the image");
            let images = ImageSet::open(&scratch, vec![image.clone()]);
            check_image(&label, &images, &model);
            let mounted = images.mount().unwrap_or_else(|error| panic!("{label}: {error}"));
            let mut generator = Generator::new(seed + 2 * round + 1, Scope { slots: 0, ..scope });
            kernels += kernel_turn(&label, mounted.path(), &mut model, &mut generator, 250);
            mounted.unmount().unwrap_or_else(|error| panic!("{label}: {error}"));
            check_image(&format!("{label}, after the kernel"), &images, &model);
            device = Arc::new(MemoryDevice::from_image(&image).expect("read the image"));
            std::fs::remove_file(&image).expect("remove the image");
        }
        println!("{}: {own} operations of Papilio, {kernels} of the kernel", configuration.name);
    }
}

#[test]
fn kernel_mounts_state_after_power_loss() {
    let Some(_met) = require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let scope = Scope {
        wide_links: false,
        capabilities: false,
        inodes: 40,
        file_bytes: 150_000,
        sync_every: 9,
        balance_every: 40,
        remount_every: 60,
        in_place: false,
        ..Scope::default()
    };
    let (wanted, first) = (setting("PAPILIO_KERNEL_STATES", 12), setting("PAPILIO_SEED", 1));
    let shapes = [
        Configuration::new("default"),
        Configuration::new("node 4096, xxhash, explicit holes").mkfs(|mkfs| {
            mkfs.node_size(4096).checksum(ChecksumType::XxHash64).feature(MkfsFeature::NoHoles, false)
        }),
        Configuration::new("mixed, zstd")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true))
            .open(|open| open.compress(CompressionChoice::new(Compression::Zstd))),
        Configuration::new("no free space tree").mkfs(|mkfs| mkfs.feature(MkfsFeature::FreeSpaceTree, false)),
    ];
    // In a short run, each shape gets its share.
    let share = wanted.div_ceil(shapes.len() as u64).min(40);
    let (mut states, mut torn, mut round) = (0, 0, 0);
    while states < wanted {
        let configuration = &shapes[round as usize % shapes.len()];
        let seed = first + round;
        // See `Scope::allocate_past_end` for the kernel's behaviour without NO_HOLES.
        let scope = Scope { allocate_past_end: !configuration.name.contains("explicit holes"), ..scope };
        let mut recorded =
            Recorded::new(configuration, scope, seed, 150).expect("a run without crashes succeeds");
        let scratch = Scratch::new(configuration.size).expect("create a scratch folder for an image");
        let stride = (recorded.len() as u64 / share).max(1) as usize;
        for position in (round as usize % stride..=recorded.len()).step_by(stride) {
            recorded.advance(position);
            let mix = seed.wrapping_mul(0x9e37_79b9).wrapping_add(position as u64);
            let (survival, mut in_flight) = match states % 4 {
                0 => (Survival::Everything, InFlight::Torn),
                1 => (Survival::Durable, InFlight::Nothing),
                2 => (Survival::Some(mix), InFlight::Torn),
                _ => (Survival::Some(mix), InFlight::Nothing),
            };
            if recorded.writes_superblock() {
                // The kernel mounts no file system whose first superblock is torn.
                in_flight = InFlight::Nothing;
            }
            let device = recorded.device(survival, in_flight);
            let label = format!("{}, seed {seed}, event {position}, {survival:?}", configuration.name);
            let model = recorded.found(&device).unwrap_or_else(|failure| panic!("{label}: {failure}"));
            let image = scratch.unique("image");
            device.write_image(&image).expect("write the image");
            check_image(&label, &ImageSet::open(&scratch, vec![image.clone()]), model);
            std::fs::remove_file(&image).expect("remove the image");
            states += 1;
            torn += u64::from(in_flight == InFlight::Torn);
        }
        round += 1;
    }
    println!("{states} states of {round} runs, {torn} with a torn write");
}
