//! A case through a descriptor of the host, on any mount.

use super::case::{BLOCK, Case, Change, Durable, Operation, Outcome, Random, Way, put};
use super::disk::Disk;
use papilio::QgroupId;
use papilio_ioctl::client::MountedPath;
use rustix::fs::{FallocateFlags, IFlags, OFlags, fallocate, ioctl_getflags, ioctl_setflags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a mapping: every file of a case is smaller.
const MAPPED: usize = 128 * BLOCK;
/// The file that takes all space.
const FILL: &str = "fill";

/// The file of a case, open for writing.
struct Open {
    file: File,
    way: Way,
    /// The start of the mapping.
    mapped: *mut std::ffi::c_void,
    disk: Option<Disk>,
}

impl Open {
    fn new(path: &Path, case: &Case) -> Self {
        let mut options = File::options();
        options.read(true).write(true);
        if case.way == Way::Direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let file = options.open(path).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = match case.way {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            Way::Mapped => unsafe {
                mmap(std::ptr::null_mut(), MAPPED, access, MapFlags::SHARED, &file, 0).unwrap()
            },
            _ => std::ptr::null_mut(),
        };
        let disk = (case.way == Way::Nbd).then(|| Disk::new(path));
        Self { file, way: case.way, mapped, disk }
    }

    /// Makes durable what was written in this way.
    fn sync(&self) -> io::Result<()> {
        match &self.disk {
            Some(disk) => disk.flush(),
            None => self.file.sync_all(),
        }
    }

    /// Closes a descriptor of the file, which reports errors as the last one does.
    fn close_one(&self) -> io::Result<()> {
        let other = self.file.try_clone()?.into_raw_fd();
        // SAFETY: the descriptor was made for this, and nothing else has it.
        match unsafe { libc::close(other) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes whole blocks at a block's start.
    fn write(&self, data: &[u8], offset: usize) -> io::Result<()> {
        match (self.way, &self.disk) {
            (_, Some(disk)) => disk.write(data, offset as u64),
            (Way::Mapped, None) => {
                // A mapping cannot make the file longer.
                let size = self.file.metadata()?.len() as usize;
                if size < offset + data.len() {
                    self.file.set_len((offset + data.len()) as u64)?;
                }
                assert!(offset + data.len() <= MAPPED);
                // SAFETY: the range lies in the mapping and in the file.
                unsafe {
                    let to = self.mapped.cast::<u8>().add(offset);
                    std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
                    msync(self.mapped, MAPPED, MsyncFlags::SYNC)?;
                }
                Ok(())
            }
            _ => {
                let mut space = vec![0; data.len() + BLOCK];
                let start = space.as_ptr().align_offset(BLOCK);
                let aligned = &mut space[start..start + data.len()];
                aligned.copy_from_slice(data);
                self.file.write_all_at(aligned, offset as u64)
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.mapped.is_null() {
            // SAFETY: the mapping was made by `new`, and no reference into it is left.
            unsafe { munmap(self.mapped, MAPPED).unwrap() };
        }
    }
}

fn add_flags(file: &File, flags: IFlags) {
    ioctl_setflags(file, ioctl_getflags(file).unwrap() | flags).unwrap();
}

/// Fills what is left, so that a block finds no space.
fn fill(root: &Path) {
    let file = File::create(root.join(FILL)).unwrap();
    let (mut at, mut step) = (0, 256 << 20);
    while step >= BLOCK as u64 {
        match fallocate(&file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    file.sync_all().unwrap();
}

/// Ends a want of space, as far as a case made one.
fn end_scarcity(root: &Path, case: &Case, outcome: &Outcome) {
    let top = MountedPath::open(root).unwrap();
    match case.change {
        Change::DiskFull => {
            fs::remove_file(root.join(FILL)).unwrap();
        }
        Change::LimitReached => top.disable_quotas().unwrap(),
        _ => return,
    }
    // It names a file whose program was told of a loss, once.
    let synced = top.sync();
    assert!(synced.is_ok() || outcome.lost, "{case:?}: {synced:?} after {:?}", outcome.steps);
    top.sync().unwrap();
}

fn change(root: &Path, case: &Case, file: &File, lose_device: impl FnOnce()) {
    let top = MountedPath::open(root).unwrap();
    let subvolume = || MountedPath::open(&root.join(case.subvolume())).unwrap();
    match case.change {
        Change::Nothing => {}
        Change::ReadOnly => subvolume().set_subvolume_read_only(true).unwrap(),
        Change::ThereAndBack => {
            subvolume().set_subvolume_read_only(true).unwrap();
            subvolume().set_subvolume_read_only(false).unwrap();
        }
        Change::DiskFull => fill(root),
        Change::LimitReached => {
            top.enable_quotas(false).unwrap();
            top.wait_for_quota_rescan().unwrap();
            let id = QgroupId::new(0, subvolume().subvolume_id().unwrap().0).unwrap();
            top.limit_qgroup(Some(id), Some(BLOCK as u64), false).unwrap();
        }
        Change::DeviceMissing => lose_device(),
        Change::Deleted => {
            let deleted = top.delete_subvolume(case.subvolume().as_bytes());
            deleted.unwrap_or_else(|error| panic!("{case:?}: deleting: {error}"));
        }
        Change::Received => subvolume().mark_received([case.number as u8 | 1; 16]).unwrap(),
        Change::Immutable => add_flags(file, IFlags::IMMUTABLE),
        Change::AppendOnly => add_flags(file, IFlags::APPEND),
        Change::Snapshot => {
            let name = format!("s{}", case.number);
            top.create_snapshot(&subvolume(), name.as_bytes(), true).unwrap();
        }
    }
}

/// Performs a case below `root`. `lose_device` takes a device away.
pub fn perform(root: &Path, case: &Case, lose_device: impl FnOnce()) -> Outcome {
    let mut random = case.random();
    let top = MountedPath::open(root).unwrap();
    top.create_subvolume(case.subvolume().as_bytes()).unwrap();
    let path = root.join(&case.path()[1..]);
    let bystander = File::create(root.join(&case.bystander()[1..])).unwrap();
    let created = File::create_new(&path).unwrap();
    if case.nocow {
        add_flags(&created, IFlags::NOCOW);
    }
    let mut content = case.initial(&mut random);
    created.write_all_at(&content, 0).unwrap();
    drop(created);
    let initial = content.clone();
    let replacement = random.bytes(3 * BLOCK);
    let other = path.with_file_name("t");
    fs::write(&other, &replacement).unwrap();
    let open = Open::new(&path, case);
    if case.dirty {
        let early = random.bytes(2 * BLOCK);
        open.write(&early, 0).unwrap();
        put(&mut content, 0, &early);
    }
    change(root, case, &open.file, lose_device);
    let snapshot = content.clone();
    let (before, mut after, mut attempted) = (content.clone(), content.clone(), content);
    let mut replaced = false;
    let result = match case.operation {
        Operation::RenameOver => fs::rename(&other, &path).map(|()| replaced = true),
        _ => operate(&open, case, &mut random, &mut after, &mut attempted),
    };
    if attempted.len() < after.len() {
        attempted.resize(after.len(), 0);
    }
    let allowed = [initial, before, attempted];
    let mut outcome =
        Outcome { steps: vec![("operation", errno(&result))], allowed, after: None, lost: false };
    let durable = match case.durable {
        Durable::Fsync => open.sync(),
        Durable::FileSystemSync => top.sync(),
        Durable::Close => Ok(()),
    };
    outcome.steps.push(("durable", errno(&durable)));
    let closed = open.close_one();
    outcome.steps.push(("close", errno(&closed)));
    outcome.lost = durable.is_err() || closed.is_err() || case.is_scarce() && result.is_err();
    end_scarcity(root, case, &outcome);
    // No other file has an error.
    bystander.write_all_at(&case.bystander_content(), 0).unwrap();
    bystander.sync_all().unwrap();
    // The program reads its own writes, also where the file has no name any more.
    let mut found = vec![0; after.len()];
    if case.way != Way::Direct && !outcome.lost {
        open.file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == after, "{case:?}: the open file");
    }
    if !outcome.lost {
        assert_eq!(open.file.metadata().unwrap().len(), after.len() as u64, "{case:?}");
    }
    if case.change == Change::Snapshot {
        let kept = fs::read(root.join(format!("s{}/f", case.number))).unwrap();
        assert!(kept == snapshot, "{case:?}: the snapshot");
    }
    if case.change != Change::Deleted {
        outcome.after = Some(if replaced { replacement } else { after });
    }
    outcome
}

/// Performs the operation on the file. Changes `after` as far as it was acknowledged, and
/// `attempted` in any case.
fn operate(
    open: &Open,
    case: &Case,
    random: &mut Random,
    after: &mut Vec<u8>,
    attempted: &mut Vec<u8>,
) -> io::Result<()> {
    match case.operation {
        Operation::Allocate => {
            let length = after.len() + 8 * BLOCK;
            fallocate(&open.file, FallocateFlags::empty(), 0, length as u64)?;
            after.resize(length, 0);
        }
        Operation::PunchHole => {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let end = after.len().min(BLOCK);
            fallocate(&open.file, hole, 0, BLOCK as u64)?;
            after[..end].fill(0);
        }
        Operation::Truncate => {
            let size = after.len() / 2;
            attempted.truncate(size);
            open.file.set_len(size as u64)?;
            after.truncate(size);
        }
        Operation::RenameOver | Operation::Sync => {}
        Operation::Write | Operation::Append | Operation::Overwrite => {
            let (offset, data) = case.write(random, after.len()).unwrap();
            put(attempted, offset, &data);
            open.write(&data, offset)?;
            put(after, offset, &data);
        }
    }
    Ok(())
}

fn errno(result: &io::Result<()>) -> Option<i32> {
    result.as_ref().err().map(|error| match (error.raw_os_error(), error.kind()) {
        (Some(number), _) => number,
        // A sync that names a file.
        (None, io::ErrorKind::StorageFull) => libc::ENOSPC,
        (None, io::ErrorKind::QuotaExceeded) => libc::EDQUOT,
        (None, kind) => panic!("{kind:?}: {error}"),
    })
}
