//! A case through a descriptor of the host, on any mount.

use super::case::{BLOCK, Case, Change, Durable, Operation, Outcome, Way, put};
use papilio_ioctl::client::MountedPath;
use rustix::fs::{FallocateFlags, IFlags, OFlags, fallocate, ioctl_getflags, ioctl_setflags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a mapping: every file of a case is smaller.
const MAPPED: usize = 128 * BLOCK;

/// The file of a case, open for writing.
struct Open {
    file: File,
    way: Way,
    /// The start of the mapping.
    mapped: *mut std::ffi::c_void,
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
        Self { file, way: case.way, mapped }
    }

    /// Writes whole blocks at a block's start.
    fn write(&self, data: &[u8], offset: usize) -> io::Result<()> {
        match self.way {
            Way::Mapped => {
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

fn change(root: &Path, case: &Case, file: &File) {
    let top = MountedPath::open(root).unwrap();
    let subvolume = || MountedPath::open(&root.join(case.subvolume())).unwrap();
    match case.change {
        Change::Nothing => {}
        Change::ReadOnly => subvolume().set_subvolume_read_only(true).unwrap(),
        Change::ThereAndBack => {
            subvolume().set_subvolume_read_only(true).unwrap();
            subvolume().set_subvolume_read_only(false).unwrap();
        }
        Change::Deleted => top.delete_subvolume(case.subvolume().as_bytes()).unwrap(),
        Change::Received => subvolume().mark_received([case.number as u8 | 1; 16]).unwrap(),
        Change::Immutable => add_flags(file, IFlags::IMMUTABLE),
        Change::AppendOnly => add_flags(file, IFlags::APPEND),
        Change::Snapshot => {
            let name = format!("s{}", case.number);
            top.create_snapshot(&subvolume(), name.as_bytes(), true).unwrap();
        }
    }
}

/// Performs a case below `root`.
pub fn perform(root: &Path, case: &Case) -> Outcome {
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
    let replacement = random.bytes(3 * BLOCK);
    let other = path.with_file_name("t");
    fs::write(&other, &replacement).unwrap();
    let open = Open::new(&path, case);
    if case.dirty {
        let early = random.bytes(2 * BLOCK);
        open.write(&early, 0).unwrap();
        put(&mut content, 0, &early);
    }
    change(root, case, &open.file);
    let snapshot = content.clone();
    let (before, mut after, mut replaced) = (content.clone(), content, false);
    let result = match case.operation {
        Operation::Allocate => {
            let length = after.len() + 8 * BLOCK;
            let done = fallocate(&open.file, FallocateFlags::empty(), 0, length as u64);
            done.map(|()| after.resize(length, 0)).map_err(io::Error::from)
        }
        Operation::PunchHole => {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let end = after.len().min(BLOCK);
            fallocate(&open.file, hole, 0, BLOCK as u64)
                .map(|()| after[..end].fill(0))
                .map_err(io::Error::from)
        }
        Operation::Truncate => {
            let size = after.len() / 2;
            open.file.set_len(size as u64).map(|()| after.truncate(size))
        }
        Operation::RenameOver => fs::rename(&other, &path).map(|()| replaced = true),
        Operation::Sync => Ok(()),
        Operation::Write | Operation::Append | Operation::Overwrite => {
            let (offset, data) = case.write(&mut random, after.len()).unwrap();
            let done = open.write(&data, offset);
            done.map(|()| put(&mut after, offset, &data))
        }
    };
    let mut outcome =
        Outcome { steps: vec![("operation", errno(&result))], before, after: None, lost: false };
    let durable = match case.durable {
        Durable::Fsync => open.file.sync_all(),
        Durable::FileSystemSync => top.sync(),
        Durable::Close => Ok(()),
    };
    outcome.steps.push(("durable", errno(&durable)));
    outcome.lost = durable.is_err();
    // No other file has an error.
    bystander.write_all_at(&case.bystander_content(), 0).unwrap();
    bystander.sync_all().unwrap();
    // The program reads its own writes, also where the file has no name any more.
    let mut found = vec![0; after.len()];
    if case.way != Way::Direct {
        open.file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == after, "{case:?}: the open file");
    }
    assert_eq!(open.file.metadata().unwrap().len(), after.len() as u64, "{case:?}");
    if case.change == Change::Snapshot {
        let kept = fs::read(root.join(format!("s{}/f", case.number))).unwrap();
        assert!(kept == snapshot, "{case:?}: the snapshot");
    }
    if case.change != Change::Deleted {
        outcome.after = Some(if replaced { replacement } else { after });
    }
    outcome
}

fn errno(result: &io::Result<()>) -> Option<i32> {
    result.as_ref().err().map(|error| error.raw_os_error().expect("an error of the kernel"))
}
