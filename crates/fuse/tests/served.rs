//! A server without a kernel: one that speaks the protocol of an older kernel, and the memory that
//! it needs for each inode that the kernel knows.

use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_fuse::fuzzing::{Served, agree};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An allocator that counts the bytes in use.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by each test: the allocator counts for the whole process.
static ONE: Mutex<()> = Mutex::new(());

fn one_test() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const MKDIR: u32 = 9;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const SETXATTR: u32 = 21;
const GETXATTR: u32 = 22;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const CREATE: u32 = 35;
const READDIRPLUS: u32 = 44;
const RENAME2: u32 = 45;
const COPY_FILE_RANGE: u32 = 47;

const ROOT: u64 = 1;

/// Returns a message as the kernel lays it out: the header, then the parts.
fn message(operation: u32, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let length = 40 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(operation.to_ne_bytes());
    bytes.extend(77_u64.to_ne_bytes());
    bytes.extend(node.to_ne_bytes());
    // User, group and process, and padding.
    bytes.extend([0; 16]);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Returns numbers of 32 bits as bytes. A number of 64 bits is two of them.
fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn long(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Sends a request that must succeed; returns the reply.
fn ask(served: &mut Served, operation: u32, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let answer = served.serve(&message(operation, node, parts)).expect("it has a reply");
    assert_eq!(answer.error, 0, "operation {operation}");
    answer.body.to_vec()
}

fn formatted(size: u64) -> Arc<dyn Device> {
    let device = Arc::new(MemoryDevice::new(size)) as Arc<dyn Device>;
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    device
}

fn open(device: &Arc<dyn Device>) -> FileSystem {
    let options = OpenOptions::new().write(true).node_cache_bytes(32 << 20);
    FileSystem::from_devices(vec![Arc::clone(device)], &options).unwrap()
}

/// Linux 5.4 speaks protocol 7.31. Its offer is shorter than that of newer kernels.
#[test]
fn kernel_with_protocol_7_31_is_served() {
    let _one = one_test();
    // All features up to FUSE_EXPLICIT_INVAL_DATA (bit 25).
    const OFFERED: u32 = (1 << 26) - 1;
    let offer = message(INIT, 0, &[&words(&[7, 31, 131_072, OFFERED])]);
    assert_eq!(offer.len(), 56);
    let agreed = agree(&offer).expect("the server agrees");
    let accepted = word_at(&agreed, 12);
    assert_eq!((word_at(&agreed, 0), accepted & !OFFERED), (7, 0));
    // The writeback cache, listings with attributes, access control lists, long requests.
    for bit in [16, 13, 20, 22] {
        assert_ne!(accepted & 1 << bit, 0, "bit {bit}");
    }
    assert_eq!(word_at(&agreed, 20), 1 << 20, "the longest write");
    assert!(word_at(&agreed, 32) == 0, "features that this kernel does not know");
    assert!(agree(&offer[..52]).is_none() && agree(&message(INIT, 0, &[&words(&[7, 22, 0, 0])])).is_none());

    let device = formatted(256 << 20);
    let mut served = Served::new(open(&device)).unwrap();
    let made = ask(&mut served, MKDIR, ROOT, &[&words(&[0o755, 0o22]), b"directory\0"]);
    let directory = long_at(&made, 0);
    // Flags, mode, umask, and a word that is padding in this version.
    let flags = (libc::O_CREAT | libc::O_RDWR) as u32;
    let created = ask(&mut served, CREATE, directory, &[&words(&[flags, 0o100_644, 0o22, 0]), b"file\0"]);
    let (file, entry) = (long_at(&created, 0), 128);
    assert_eq!(created.len(), entry + 16);
    let data = vec![0x5a_u8; 10_000];
    let write = [&long(0)[..], &long(0), &[data.len() as u32, 0], &long(0), &[flags, 0]].concat();
    assert_eq!(word_at(&ask(&mut served, WRITE, file, &[&words(&write), &data]), 0), 10_000);
    // Without FUSE_SETXATTR_EXT the argument has two words.
    ask(&mut served, SETXATTR, file, &[&words(&[5, 0]), b"user.name\0", b"value"]);
    assert_eq!(ask(&mut served, GETXATTR, file, &[&words(&[100, 0]), b"user.name\0"]), b"value");
    // A kernel that does not leave this to the server changes the mode by itself (FATTR_MODE).
    let mut change = vec![0; 22];
    (change[0], change[17]) = (1, 0o100_600);
    let attributes = ask(&mut served, SETATTR, file, &[&words(&change)]);
    assert_eq!(word_at(&attributes, 16 + 60) & 0o7777, 0o600);
    assert_eq!(served.serve(&message(FLUSH, file, &[&[0; 24]])).unwrap().error, libc::ENOSYS);
    ask(&mut served, FSYNC, file, &[&[0; 16]]);
    let release = [&long(0)[..], &[flags, 0], &long(0)].concat();
    ask(&mut served, RELEASE, file, &[&words(&release)]);

    ask(&mut served, RENAME2, directory, &[&words(&[&long(ROOT)[..], &[1, 0]].concat()), b"file\0moved\0"]);
    let found = ask(&mut served, LOOKUP, ROOT, &[b"moved\0"]);
    assert_eq!((long_at(&found, 0), long_at(&found, 40 + 8)), (file, 10_000));
    assert_eq!(ask(&mut served, OPEN, file, &[&words(&[0, 0])]).len(), 16);
    let read = [&long(0)[..], &long(5000), &[8192, 0], &long(0), &[0, 0]].concat();
    assert_eq!(ask(&mut served, READ, file, &[&words(&read)]), data[5000..]);
    let copy = [&long(0)[..], &long(0), &long(file), &long(0), &long(12_288), &long(4096), &long(0)].concat();
    assert_eq!(word_at(&ask(&mut served, COPY_FILE_RANGE, file, &[&words(&copy)]), 0), 4096);
    let size = long_at(&ask(&mut served, GETATTR, file, &[&[0; 16]]), 16 + 8);
    assert_eq!(size, 12_288 + 4096);
    let handle = long_at(&ask(&mut served, OPENDIR, ROOT, &[&[0; 8]]), 0);
    let list = [&long(handle)[..], &long(0), &[4096, 0], &long(0), &[0, 0]].concat();
    let listed = ask(&mut served, READDIRPLUS, ROOT, &[&words(&list)]);
    assert!(listed.windows(5).any(|name| name == b"moved"));
    assert!(served.serve(&message(FORGET, file, &[&words(&long(3))])).is_none());
    served.close().unwrap();
    let report =
        papilio::check_devices(vec![device], &OpenOptions::new(), &CheckOptions::new().data_csum(true))
            .unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Most bytes of the server for an inode that was only looked up.
const MOST: usize = 400;

/// Looks all names up; returns the nodes.
fn look_up(served: &mut Served, directory: u64, count: u64) -> Vec<u64> {
    let name = |number| format!("a file with a name of usual length {number}\0").into_bytes();
    (0..count).map(|number| long_at(&ask(served, LOOKUP, directory, &[&name(number)]), 0)).collect()
}

fn measure(count: u64, size: u64) {
    let device = formatted(size);
    let fs = open(&device);
    let directory = fs.create_dir("/d").unwrap();
    for number in 0..count {
        let new = papilio::NewInode::new(papilio::NewKind::Regular, 0o644);
        directory.create(format!("a file with a name of usual length {number}").as_bytes(), &new).unwrap();
    }
    drop(directory);
    fs.close().unwrap();
    let mut served = Served::new(open(&device)).unwrap();
    let directory = long_at(&ask(&mut served, LOOKUP, ROOT, &[b"d\0"]), 0);
    // Fills the caches of tree blocks, which have a size of their own.
    for node in look_up(&mut served, directory, count) {
        assert!(served.serve(&message(FORGET, node, &[&words(&long(1))])).is_none());
    }
    let before = BYTES.load(Ordering::Relaxed);
    let nodes = look_up(&mut served, directory, count);
    let used = BYTES.load(Ordering::Relaxed).saturating_sub(before + nodes.capacity() * 8);
    let each = used / count as usize;
    println!("{count} inodes that were looked up: {each} bytes each");
    assert!(each <= MOST, "{each} bytes for each of {count} inodes");
    assert!(each > 50, "{each} bytes: the measurement misses something");
    for node in nodes {
        served.serve(&message(FORGET, node, &[&words(&long(1))]));
    }
    let left = BYTES.load(Ordering::Relaxed).saturating_sub(before) / count as usize;
    assert!(left < MOST / 2, "{left} bytes are left for each forgotten inode");
    served.close().unwrap();
}

/// With `PAPILIO_LONG` also 10^5 and 10^6 inodes.
#[test]
fn inode_that_was_looked_up_takes_little_memory() {
    let _one = one_test();
    measure(20_000, 512 << 20);
    if std::env::var_os("PAPILIO_LONG").is_some() {
        measure(100_000, 1 << 30);
        measure(1_000_000, 4 << 30);
    }
}
