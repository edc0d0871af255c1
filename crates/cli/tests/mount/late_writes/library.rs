//! Cases through the library: [`papilio::File`] and [`papilio::IoQueue`], with and without a page
//! cache.

use super::case::{BLOCK, Case, Change, Durable, Operation, Outcome, Way, put};
use papilio::device::{Device, MemoryDevice};
use papilio::format::items::inode::InodeFlags;
use papilio::format::{Generation, Uuid};
use papilio::{
    CheckOptions, File, FileSystem, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions, Received,
    Timespec, check_devices, mkfs_device,
};
use std::sync::Arc;

/// Performs cases on one file system, closes it, and compares.
pub fn batch(cases: &[Case], cached: bool) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 30));
    mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let cache = if cached { 16 << 20 } else { 0 };
    let options = OpenOptions::new().write(true).cache_bytes(cache);
    let open = |options: &OpenOptions| FileSystem::from_devices(vec![Arc::clone(&device)], options).unwrap();
    let fs = open(&options);
    let outcomes: Vec<_> = cases.iter().map(|case| perform(&fs, case)).collect();
    fs.sync().unwrap();
    fs.clean_subvolumes().unwrap();
    fs.close().unwrap();
    let report = check_devices(vec![Arc::clone(&device)], &OpenOptions::new(), &CheckOptions::new());
    let report = report.unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let fs = open(&OpenOptions::new());
    for (case, outcome) in cases.iter().zip(&outcomes) {
        let found = fs.read(case.path()).ok();
        outcome.verify(found.as_deref(), &format!("{case:?}: {:?}", outcome.steps));
        assert!(fs.read(case.bystander()).unwrap() == case.bystander_content(), "{case:?}");
    }
    assert!(fs.subvolumes().unwrap().iter().all(|one| !one.is_being_deleted()));
}

fn write(case: &Case, file: &Arc<File>, data: &[u8], offset: usize) -> papilio::Result<()> {
    if case.way == Way::Library {
        return file.write_all_at(data, offset as u64);
    }
    let mut queue = IoQueue::new(4);
    let operation = IoOperation::Write { buffer: data.to_vec(), offset: offset as u64 };
    let request = IoRequest { file: Arc::clone(file), operation, token: 1 };
    assert!(queue.submit(request).is_ok());
    let mut done = Vec::new();
    queue.wait(1, &mut done);
    done.pop().unwrap().result.map(drop)
}

fn change(fs: &FileSystem, case: &Case, file: &File) {
    let path = format!("/{}", case.subvolume());
    match case.change {
        Change::Nothing => {}
        Change::ReadOnly => fs.set_subvolume_read_only(&path, true).unwrap(),
        Change::ThereAndBack => {
            fs.set_subvolume_read_only(&path, true).unwrap();
            fs.set_subvolume_read_only(&path, false).unwrap();
        }
        Change::Deleted => fs.delete_subvolume(&path).unwrap(),
        Change::Received => {
            let send_time = Timespec { seconds: 1, nanoseconds: 0 };
            let received = Received { uuid: Uuid::from_bytes([7; 16]), sent: Generation(3), send_time };
            fs.set_received(&path, &received).map(drop).unwrap();
        }
        Change::Immutable => add_flags(file, InodeFlags::IMMUTABLE),
        Change::AppendOnly => add_flags(file, InodeFlags::APPEND),
        Change::Snapshot => drop(fs.snapshot(&path, format!("/s{}", case.number), true).unwrap()),
    }
}

fn add_flags(file: &File, flags: InodeFlags) {
    let kept = file.metadata().unwrap().flags() & InodeFlags::NODATACOW;
    file.inode().set_flags(kept | flags).unwrap();
}

/// The error that the kernel's rules give the operation; the library has no descriptors that were
/// opened before a flag, so an immutable file refuses all changes.
fn expected(case: &Case) -> Option<i32> {
    let refused = |error: rustix::io::Errno| Some(error.raw_os_error());
    let is_write = matches!(case.operation, Operation::Write | Operation::Append | Operation::Overwrite);
    match (case.change, case.operation) {
        (_, Operation::Sync) => None,
        (Change::ReadOnly, _) if !is_write => refused(rustix::io::Errno::ROFS),
        (Change::Deleted, Operation::RenameOver) => refused(rustix::io::Errno::NOENT),
        (Change::Immutable, _) | (Change::AppendOnly, Operation::RenameOver) => {
            refused(rustix::io::Errno::PERM)
        }
        _ => None,
    }
}

fn perform(fs: &FileSystem, case: &Case) -> Outcome {
    let mut random = case.random();
    drop(fs.create_subvolume(format!("/{}", case.subvolume())).unwrap());
    let bystander = fs.create_file(case.bystander()).unwrap();
    let created = fs.create_file(case.path()).unwrap();
    if case.nocow {
        add_flags(&created, InodeFlags::NODATACOW);
    }
    drop(created);
    let file = Arc::new(fs.open_file(case.path()).unwrap());
    let mut content = case.initial(&mut random);
    file.write_all_at(&content, 0).unwrap();
    let replacement = random.bytes(3 * BLOCK);
    let other = format!("/{}/t", case.subvolume());
    fs.create_file(&other).unwrap().write_all_at(&replacement, 0).unwrap();
    if case.dirty {
        let early = random.bytes(2 * BLOCK);
        write(case, &file, &early, 0).unwrap();
        put(&mut content, 0, &early);
    }
    change(fs, case, &file);
    let (before, mut after, mut replaced) = (content.clone(), content, false);
    let result = match case.operation {
        Operation::Allocate => {
            let length = after.len() + 8 * BLOCK;
            file.allocate(0, length as u64, false).map(|()| after.resize(length, 0))
        }
        Operation::PunchHole => {
            let end = after.len().min(BLOCK);
            file.punch_hole(0, BLOCK as u64).map(|()| after[..end].fill(0))
        }
        Operation::Truncate => {
            let size = after.len() / 2;
            file.set_len(size as u64).map(|()| after.truncate(size))
        }
        Operation::RenameOver => fs.rename(&other, case.path()).map(|()| replaced = true),
        Operation::Sync => Ok(()),
        Operation::Write | Operation::Append | Operation::Overwrite => {
            let (offset, data) = case.write(&mut random, after.len()).unwrap();
            write(case, &file, &data, offset).map(|()| put(&mut after, offset, &data))
        }
    };
    let error = result.err().map(|error| error.errno());
    assert_eq!(error, expected(case), "{case:?}");
    match case.durable {
        Durable::Fsync => file.sync_all().unwrap(),
        Durable::FileSystemSync => fs.sync().unwrap(),
        Durable::Close => {}
    }
    bystander.write_all_at(&case.bystander_content(), 0).unwrap();
    bystander.sync_all().unwrap();
    assert!(file.read_all().unwrap() == after, "{case:?}: the open file");
    drop(file);
    let after = (case.change != Change::Deleted).then_some(if replaced { replacement } else { after });
    Outcome { steps: vec![("operation", error)], before, after, lost: false }
}
