//! Cases through the library: [`papilio::File`] and [`papilio::IoQueue`], with and without a page
//! cache, and a client of the NFS server.

use super::case::{BLOCK, Case, Change, Durable, Operation, Outcome, Way, put};
use super::nfs_client::Raw;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use papilio::device::{Device, MemoryDevice};
use papilio::format::items::inode::InodeFlags;
use papilio::format::{Generation, Uuid};
use papilio::{
    CheckOptions, Error, ErrorKind, File, FileSystem, IoOperation, IoQueue, IoRequest, MkfsOptions,
    OpenOptions, QgroupId, RaidProfile, Received, Timespec, check_devices, mkfs_device, mkfs_devices,
};
use papilio_device::FaultDevice;
use papilio_nfs::{Export, Server, Squash};
use std::sync::Arc;

/// Performs cases on one file system, closes it, and compares.
pub fn batch(cases: &[Case], cached: bool) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 30));
    mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let cache = if cached { 16 << 20 } else { 0 };
    let options = OpenOptions::new().write(true).cache_bytes(cache);
    let open = |options: &OpenOptions| FileSystem::from_devices(vec![Arc::clone(&device)], options).unwrap();
    let fs = open(&options);
    let outcomes: Vec<_> = cases.iter().map(|case| perform(&fs, case, || {})).collect();
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

/// Performs a case on a mirror of two devices, of which the second fails. The first one alone then
/// has everything.
pub fn without_a_device(case: &Case) {
    let first: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let second = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(256 << 20))));
    let devices = vec![Arc::clone(&first), Arc::<FaultDevice>::clone(&second)];
    let profile = RaidProfile::Raid1;
    mkfs_devices(&devices, &MkfsOptions::new().data_profile(profile).metadata_profile(profile)).unwrap();
    let cache = if case.number.is_multiple_of(2) { 16 << 20 } else { 0 };
    let fs = FileSystem::from_devices(devices, &OpenOptions::new().write(true).cache_bytes(cache)).unwrap();
    let outcome = perform(&fs, case, || second.fail_all());
    fs.sync().unwrap();
    fs.close().unwrap();
    let fs = FileSystem::from_devices(vec![first], &OpenOptions::new().degraded(true)).unwrap();
    let found = fs.read(case.path()).ok();
    outcome.verify(found.as_deref(), &format!("one device: {case:?}"));
    assert!(fs.read(case.bystander()).unwrap() == case.bystander_content(), "{case:?}");
}

/// A way to write the file of a case.
enum Writer {
    Library,
    Queue,
    Nfs { client: Raw, handle: nfs_fh3, _server: Server },
}

impl Writer {
    fn new(fs: &FileSystem, case: &Case) -> Self {
        match case.way {
            Way::Queue => Self::Queue,
            Way::Nfs => {
                let export = Export::new(fs.clone(), b"/", false).unwrap();
                let export = export.squash(Squash::default().root(false));
                let server = Server::start("127.0.0.1:0", export).unwrap();
                let client = Raw::connect(server.address(), 0, 0, &[]);
                let subvolume = client.lookup(&client.root(), &case.subvolume()).unwrap();
                let handle = client.lookup(&subvolume, "f").unwrap();
                Self::Nfs { client, handle, _server: server }
            }
            _ => Self::Library,
        }
    }

    /// Returns the error as a number.
    /// Writes all of `data`, in several calls where one stores a part.
    fn write(&self, file: &Arc<File>, data: &[u8], offset: usize) -> Result<(), i32> {
        let mut done = 0;
        while done < data.len() {
            done += self.write_some(file, &data[done..], offset + done)?;
        }
        Ok(())
    }

    fn write_some(&self, file: &Arc<File>, data: &[u8], offset: usize) -> Result<usize, i32> {
        let errno = |error: Error| error.errno();
        match self {
            Self::Library => file.write_at(data, offset as u64).map_err(errno),
            Self::Queue => {
                let mut queue = IoQueue::new(4);
                let operation = IoOperation::Write { buffer: data.to_vec(), offset: offset as u64 };
                let request = IoRequest { file: Arc::clone(file), operation, token: 1 };
                assert!(queue.submit(request).is_ok());
                let mut done = Vec::new();
                queue.wait(1, &mut done);
                done.pop().unwrap().result.map_err(errno)
            }
            Self::Nfs { client, handle, .. } => {
                client.write_some(handle, offset as u64, data).map_err(number)
            }
        }
    }

    fn sync(&self, file: &File) -> Result<(), i32> {
        match self {
            Self::Nfs { client, handle, .. } => client.commit(handle).map_err(number),
            _ => file.sync_all().map_err(|error| error.errno()),
        }
    }
}

/// The protocol's numbers below 10,000 are those of Linux, but for a few.
fn number(status: nfsstat3) -> i32 {
    match status {
        nfsstat3::NFS3ERR_DQUOT => libc::EDQUOT,
        nfsstat3::NFS3ERR_STALE => libc::ESTALE,
        other => other as i32,
    }
}

/// Takes all free space, in a file.
fn fill(fs: &FileSystem) {
    let file = fs.create_file("/fill").unwrap();
    let (mut at, mut step) = (0, 256 << 20);
    while step >= BLOCK as u64 {
        match file.allocate(at, step, false) {
            Ok(()) => at += step,
            Err(error) if error.kind() == ErrorKind::NoSpace => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
}

fn end_scarcity(fs: &FileSystem, case: &Case) {
    match case.change {
        Change::DiskFull => {
            fs.remove_file("/fill").unwrap();
            fs.sync().unwrap();
        }
        Change::LimitReached => fs.disable_quotas().unwrap(),
        _ => {}
    }
}

fn change(fs: &FileSystem, case: &Case, file: &File, lose_device: impl FnOnce()) {
    let path = format!("/{}", case.subvolume());
    match case.change {
        Change::Nothing => {}
        Change::ReadOnly => fs.set_subvolume_read_only(&path, true).unwrap(),
        Change::ThereAndBack => {
            fs.set_subvolume_read_only(&path, true).unwrap();
            fs.set_subvolume_read_only(&path, false).unwrap();
        }
        Change::DiskFull => fill(fs),
        Change::LimitReached => {
            fs.enable_quotas().unwrap();
            fs.rescan_quotas(|_| {}).unwrap();
            let id = QgroupId::new(0, file.inode().tree().0).unwrap();
            fs.limit_qgroup(id, Some(BLOCK as u64), false).unwrap();
        }
        Change::DeviceMissing => lose_device(),
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
        // A request names a file, not an open one.
        (Change::ReadOnly, _) if !is_write || case.way == Way::Nfs => refused(rustix::io::Errno::ROFS),
        (Change::Deleted, Operation::RenameOver) => refused(rustix::io::Errno::NOENT),
        (Change::Immutable, _) | (Change::AppendOnly, Operation::RenameOver) => {
            refused(rustix::io::Errno::PERM)
        }
        _ => None,
    }
}

fn perform(fs: &FileSystem, case: &Case, lose_device: impl FnOnce()) -> Outcome {
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
    let (initial, writer) = (content.clone(), Writer::new(fs, case));
    let replacement = random.bytes(3 * BLOCK);
    let other = format!("/{}/t", case.subvolume());
    fs.create_file(&other).unwrap().write_all_at(&replacement, 0).unwrap();
    if case.dirty {
        let early = random.bytes(2 * BLOCK);
        writer.write(&file, &early, 0).unwrap();
        put(&mut content, 0, &early);
    }
    change(fs, case, &file, lose_device);
    let (before, mut after, mut replaced) = (content.clone(), content, false);
    let (errno, mut attempted) = (|error: Error| error.errno(), after.clone());
    let result = match case.operation {
        Operation::Allocate => {
            let length = after.len() + 8 * BLOCK;
            file.allocate(0, length as u64, false).map(|()| after.resize(length, 0)).map_err(errno)
        }
        Operation::PunchHole => {
            let end = after.len().min(BLOCK);
            file.punch_hole(0, BLOCK as u64).map(|()| after[..end].fill(0)).map_err(errno)
        }
        Operation::Truncate => {
            let size = after.len() / 2;
            file.set_len(size as u64).map(|()| after.truncate(size)).map_err(errno)
        }
        Operation::RenameOver => fs.rename(&other, case.path()).map(|()| replaced = true).map_err(errno),
        Operation::Sync => Ok(()),
        Operation::Write | Operation::Append | Operation::Overwrite => {
            let (offset, data) = case.write(&mut random, after.len()).unwrap();
            put(&mut attempted, offset, &data);
            writer.write(&file, &data, offset).map(|()| put(&mut after, offset, &data))
        }
    };
    let error = result.err();
    if !case.is_scarce() {
        assert_eq!(error, expected(case), "{case:?}");
    }
    if attempted.len() < after.len() {
        attempted.resize(after.len(), 0);
    }
    // Accepted data has its space.
    let durable = match case.durable {
        Durable::Fsync => writer.sync(&file),
        Durable::FileSystemSync => fs.sync().map_err(errno),
        Durable::Close => Ok(()),
    };
    // A client has nothing but the handle of a file that is gone.
    let is_gone = case.change == Change::Deleted && case.way == Way::Nfs;
    assert!(durable.is_ok() || is_gone, "{case:?}: {durable:?}");
    end_scarcity(fs, case);
    bystander.write_all_at(&case.bystander_content(), 0).unwrap();
    bystander.sync_all().unwrap();
    let lost = case.is_scarce() && error.is_some();
    assert!(lost || file.read_all().unwrap() == after, "{case:?}: the open file");
    drop(file);
    let after = (case.change != Change::Deleted).then_some(if replaced { replacement } else { after });
    Outcome { steps: vec![("operation", error)], allowed: [initial, before, attempted], after, lost }
}
