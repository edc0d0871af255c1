//! Requests of a steady state make no heap allocation in the server, over either transport: direct
//! reads and overwrites in place, of a device that answers at once and of one that takes its time.
//!
//! The server runs in this process and counts. `dd` in another process uses the mount. A long run
//! may allocate no more than a short one.

use papilio::{InodeFlags, MkfsOptions, OpenOptions};
use papilio_device::{Access, Device, MemoryDevice};
use papilio_fuse::{MountOptions, Session};
use papilio_oracle::{Need, RingSwitch, Scratch, require};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// An allocator that counts the allocations of all threads.
struct Counting;

/// The allocations so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The allocation whose call stack is kept.
static KEPT: AtomicU64 = AtomicU64::new(u64::MAX);
static STACK: Mutex<Option<Backtrace>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is making a call stack, which allocates.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

fn count_one() {
    if BUSY.try_with(Cell::get).unwrap_or(true) {
        return;
    }
    if COUNT.fetch_add(1, Ordering::Relaxed) == KEPT.load(Ordering::Relaxed) {
        BUSY.set(true);
        *STACK.lock().unwrap() = Some(Backtrace::force_capture());
        BUSY.set(false);
    }
}

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NEEDS: &[Need] = &[Need::Root, Need::Fuse, Need::FuseRing, Need::Command("dd")];
const SIZE: u64 = 320 << 20;
const FILE_BYTES: usize = 32 << 20;
const BLOCK: usize = 4096;
/// Requests of the short run. The long one makes four times as many.
const REQUESTS: usize = 2_000;
/// Allocations of a run that are not a request's: threads that begin, a commit.
const SLACK: u64 = 100;

/// Runs `dd` with `requests` requests, and returns the allocations meanwhile.
fn allocations(arguments: &[String], requests: usize) -> u64 {
    let before = COUNT.load(Ordering::Relaxed);
    KEPT.store(before + u64::from(requests > REQUESTS) * requests as u64 / 2, Ordering::Relaxed);
    let mut command = Command::new("dd");
    command.args(arguments).arg(format!("bs={BLOCK}")).arg(format!("count={requests}"));
    assert!(command.stderr(Stdio::null()).status().unwrap().success(), "dd {arguments:?}");
    KEPT.store(u64::MAX, Ordering::Relaxed);
    COUNT.load(Ordering::Relaxed) - before
}

/// Serves a file system on a device, and counts.
fn served(what: &str, device: Arc<dyn Device>, transport: &str) {
    let scratch = Scratch::new(1 << 20).unwrap();
    let point = scratch.unique("mount");
    std::fs::create_dir(&point).unwrap();
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let open = OpenOptions::new().write(true).commit_interval(None);
    let fs = papilio::FileSystem::from_devices(vec![device], &open).unwrap();
    let file = fs.create_file("/file").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    file.write_all_at(&vec![7; FILE_BYTES], 0).unwrap();
    drop(file);
    fs.sync().unwrap();
    let options = MountOptions::parse(&format!("transport={transport}")).unwrap();
    let session = Session::mount(fs, Path::new("memory"), &point, &options).unwrap();
    let file = point.join("file").display().to_string();
    let reads = [format!("if={file}"), "of=/dev/null".to_owned(), "iflag=direct".to_owned()];
    let writes = [
        "if=/dev/zero".to_owned(),
        format!("of={file}"),
        "oflag=direct".to_owned(),
        "conv=notrunc".to_owned(),
    ];
    for (kind, arguments) in [("reads", &reads[..]), ("writes", &writes[..])] {
        // The first run makes buffers of requests, threads, and the file's list of extents.
        allocations(arguments, 4 * REQUESTS - 1);
        let short = allocations(arguments, REQUESTS);
        let long = allocations(arguments, 4 * REQUESTS);
        println!("{what}, {transport}, {kind}: {short} and {long} allocations");
        let stack = STACK.lock().unwrap().take();
        assert!(long <= short + SLACK, "{what}, {transport}, {kind}: {short}, {long}, here:\n{stack:?}");
    }
    drop(session);
}

/// One after the other: each counts the allocations of the whole process.
#[test]
fn requests_allocate_nothing() {
    let Some(_met) = require(NEEDS) else { return };
    let _switch = RingSwitch::on().unwrap();
    for transport in ["classic", "ring"] {
        served("memory", Arc::new(MemoryDevice::new(SIZE)), transport);
        let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        image.as_file().set_len(SIZE).unwrap();
        let options = papilio_device::OpenOptions::new(Access::ReadWrite).direct(true);
        match options.open(image.path()) {
            Ok(device) => served("direct I/O", Arc::new(device), transport),
            Err(error) => println!("SKIPPED direct I/O: {error}"),
        }
    }
}
