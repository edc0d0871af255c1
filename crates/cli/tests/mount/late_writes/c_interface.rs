//! Cases through the C interface: every step is a function of it.

use super::case::{BLOCK, Case, Change, Durable, Operation, Outcome, put};
use crate::common::succeed_text as succeed;
use crate::world::{MOUNT, World};
use papilio::format::items::inode::InodeFlags;
use papilio::{FileSystem, OpenOptions};
use papilio_capi::*;
use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::ptr::null_mut;

type Status = Result<(), i32>;

fn text(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn status(result: i64) -> Status {
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}

/// An open file system.
struct Fs(*mut papilio_fs);

/// An open file.
struct File(*mut papilio_file);

// SAFETY, for all of the calls below: texts end with NUL, buffers have the sizes that are given,
// and results are stored in variables of their types, as the texts of the functions ask.
impl Fs {
    fn open(devices: &[&Path]) -> Self {
        let (mut options, mut fs) = (null_mut(), null_mut());
        let paths: Vec<_> = devices.iter().map(|path| text(path.to_str().unwrap())).collect();
        // SAFETY: see above.
        unsafe {
            assert_eq!(papilio_options_new(&mut options), 0);
            assert_eq!(papilio_options_set_write(options, true), 0);
            for path in &paths[1..] {
                assert_eq!(papilio_options_add_device(options, path.as_ptr()), 0);
            }
            assert_eq!(papilio_open(paths[0].as_ptr(), options, &mut fs), 0);
            papilio_options_free(options);
        }
        Self(fs)
    }

    fn file(&self, path: &str, flags: u32) -> File {
        let (path, mut file) = (text(path), null_mut());
        // SAFETY: see above.
        assert_eq!(unsafe { papilio_file_open(self.0, path.as_ptr(), flags, 0o600, &mut file) }, 0);
        File(file)
    }

    fn add_flags(&self, path: &str, nocow: bool, flags: InodeFlags) {
        let kept = if nocow { InodeFlags::NODATACOW } else { InodeFlags::empty() };
        let path = text(path);
        // SAFETY: see above.
        let set = unsafe { papilio_set_inode_flags(self.0, path.as_ptr(), (kept | flags).bits(), 0) };
        assert_eq!(set, 0);
    }

    fn sync(&self) -> Status {
        status(papilio_sync(self.0).into())
    }

    fn change(&self, case: &Case, lose_device: impl FnOnce()) {
        let subvolume = format!("/{}", case.subvolume());
        let (path, snapshot) = (text(&subvolume), text(&format!("/s{}", case.number)));
        // SAFETY: see above.
        let read_only = |on| unsafe { papilio_subvolume_set_read_only(self.0, path.as_ptr(), on) };
        let changed = match case.change {
            Change::Nothing | Change::LimitReached => 0,
            Change::ReadOnly => read_only(true),
            Change::ThereAndBack => read_only(true).min(read_only(false)),
            // SAFETY: see above.
            Change::Deleted => unsafe { papilio_subvolume_delete(self.0, path.as_ptr()) },
            // SAFETY: see above.
            Change::Received => unsafe {
                papilio_subvolume_set_received(self.0, path.as_ptr(), [7; 16].as_ptr(), 3, 1, 0)
            },
            Change::Immutable | Change::AppendOnly => {
                let immutable = case.change == Change::Immutable;
                let flag = if immutable { InodeFlags::IMMUTABLE } else { InodeFlags::APPEND };
                self.add_flags(&case.path(), case.nocow, flag);
                0
            }
            // SAFETY: see above.
            Change::Snapshot => unsafe {
                papilio_snapshot(self.0, path.as_ptr(), snapshot.as_ptr(), PAPILIO_SNAPSHOT_READ_ONLY)
            },
            Change::DiskFull => {
                self.fill();
                0
            }
            Change::DeviceMissing => {
                lose_device();
                0
            }
        };
        assert_eq!(changed, 0, "{case:?}");
    }

    fn fill(&self) {
        let file = self.file("/fill", PAPILIO_CREATE);
        let (mut at, mut step) = (0, 256 << 20);
        while step >= BLOCK as u64 {
            match status(papilio_fallocate(file.0, 0, at, step).into()) {
                Ok(()) => at += step,
                Err(error) => {
                    assert_eq!(error, libc::ENOSPC);
                    step /= 2;
                }
            }
        }
    }

    fn close(self) {
        assert_eq!(papilio_close(self.0), 0);
    }
}

impl File {
    /// Writes all of `data`, in several calls where one stores a part.
    fn write(&self, data: &[u8], offset: usize) -> Status {
        let mut done = 0;
        while done < data.len() {
            let (rest, at) = (&data[done..], (offset + done) as u64);
            // SAFETY: see `Fs`.
            let stored = unsafe { papilio_pwrite(self.0, rest.as_ptr().cast(), rest.len(), at) };
            status(stored)?;
            done += stored as usize;
        }
        Ok(())
    }

    fn read(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length + 1];
        // SAFETY: see `Fs`.
        let read = unsafe { papilio_pread(self.0, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        bytes.truncate(usize::try_from(read).unwrap());
        bytes
    }
}

impl Drop for File {
    fn drop(&mut self) {
        assert!(papilio_file_close(self.0) == 0 || std::thread::panicking());
    }
}

/// Performs cases on an image.
pub fn batch(cases: &[Case]) {
    let Some(world) = World::new(MOUNT) else { return };
    let (alone, together): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.is_alone());
    let fs = Fs::open(&[&world.image()]);
    let outcomes: Vec<_> = together.iter().map(|case| perform(&fs, case, || {})).collect();
    assert_eq!(papilio_subvolumes_clean(fs.0), 0);
    fs.close();
    succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    let fs = FileSystem::open_with(world.image(), &OpenOptions::new()).unwrap();
    for (case, outcome) in together.iter().zip(&outcomes) {
        verify(&fs, case, outcome);
    }
    alone.iter().for_each(|case| without_a_device(case));
}

fn verify(fs: &FileSystem, case: &Case, outcome: &Outcome) {
    let found = fs.read(case.path()).ok();
    outcome.verify(found.as_deref(), &format!("{case:?}: {:?}", outcome.steps));
    assert!(fs.read(case.bystander()).unwrap() == case.bystander_content(), "{case:?}");
}

/// Performs a case on a mirror whose second device is a file in a mount. Its server is killed.
fn without_a_device(case: &Case) {
    let (Some(world), Some(helper)) = (World::new(MOUNT), World::new(MOUNT)) else { return };
    helper.mount(&[]);
    let (image, second) = (world.image(), helper.at("second.img"));
    fs::File::create(&second).unwrap().set_len(256 << 20).unwrap();
    succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", image.to_str().unwrap(), &second]);
    let fs = Fs::open(&[&image, Path::new(&second)]);
    let outcome = perform(&fs, case, || helper.kill_server());
    assert_eq!(outcome.steps, [("operation", None), ("durable", None)], "{case:?}");
    fs.close();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().degraded(true)).unwrap();
    verify(&fs, case, &outcome);
}

fn perform(fs: &Fs, case: &Case, lose_device: impl FnOnce()) -> Outcome {
    let mut random = case.random();
    let subvolume = text(&format!("/{}", case.subvolume()));
    // SAFETY: see `Fs`.
    assert_eq!(unsafe { papilio_subvolume_create(fs.0, subvolume.as_ptr()) }, 0);
    let bystander = fs.file(&case.bystander(), PAPILIO_CREATE);
    let file = fs.file(&case.path(), PAPILIO_CREATE);
    if case.nocow {
        fs.add_flags(&case.path(), true, InodeFlags::empty());
    }
    let mut content = case.initial(&mut random);
    file.write(&content, 0).unwrap();
    let (initial, replacement) = (content.clone(), random.bytes(3 * BLOCK));
    let other = format!("/{}/t", case.subvolume());
    fs.file(&other, PAPILIO_CREATE).write(&replacement, 0).unwrap();
    if case.dirty {
        let early = random.bytes(2 * BLOCK);
        file.write(&early, 0).unwrap();
        put(&mut content, 0, &early);
    }
    fs.change(case, lose_device);
    let (before, mut after, mut replaced) = (content.clone(), content, false);
    let mut attempted = after.clone();
    let result = match case.operation {
        Operation::Allocate => {
            let length = after.len() + 8 * BLOCK;
            status(papilio_fallocate(file.0, 0, 0, length as u64).into()).map(|()| after.resize(length, 0))
        }
        Operation::PunchHole => {
            let (end, mode) = (after.len().min(BLOCK), PAPILIO_PUNCH_HOLE | PAPILIO_KEEP_SIZE);
            let punched = papilio_fallocate(file.0, mode, 0, BLOCK as u64);
            status(punched.into()).map(|()| after[..end].fill(0))
        }
        Operation::Truncate => {
            let size = after.len() / 2;
            status(papilio_ftruncate(file.0, size as u64).into()).map(|()| after.truncate(size))
        }
        Operation::RenameOver => {
            let (from, to) = (text(&other), text(&case.path()));
            // SAFETY: see `Fs`.
            let renamed = unsafe { papilio_rename(fs.0, from.as_ptr(), to.as_ptr(), 0) };
            status(renamed.into()).map(|()| replaced = true)
        }
        Operation::Sync => Ok(()),
        Operation::Write | Operation::Append | Operation::Overwrite => {
            let (offset, data) = case.write(&mut random, after.len()).unwrap();
            put(&mut attempted, offset, &data);
            file.write(&data, offset).map(|()| put(&mut after, offset, &data))
        }
    };
    if attempted.len() < after.len() {
        attempted.resize(after.len(), 0);
    }
    let durable = match case.durable {
        Durable::Fsync => status(papilio_fsync(file.0).into()),
        Durable::FileSystemSync => fs.sync(),
        Durable::Close => Ok(()),
    };
    // Accepted data has its space.
    assert_eq!(durable, Ok(()), "{case:?}");
    if case.change == Change::DiskFull {
        let path = text("/fill");
        // SAFETY: see `Fs`.
        assert_eq!(unsafe { papilio_unlink(fs.0, path.as_ptr()) }, 0);
        fs.sync().unwrap();
    }
    bystander.write(&case.bystander_content(), 0).unwrap();
    assert_eq!(papilio_fsync(bystander.0), 0);
    let lost = case.is_scarce() && result.is_err();
    assert!(lost || file.read(after.len()) == after, "{case:?}: the open file");
    let after = (case.change != Change::Deleted).then_some(if replaced { replacement } else { after });
    let steps = vec![("operation", result.err()), ("durable", durable.err())];
    Outcome { steps, allowed: [initial, before, attempted], after, lost }
}
