//! Inodes that are kept without being open: their memory, and their life after the last name.

#[path = "support/in_memory.rs"]
mod in_memory;

use in_memory::{close_clean, new_file_system};
use papilio::{FileSystem, KeptInode, NewInode, NewKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An allocator that counts the bytes in use.
struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by each test: the allocator counts for the whole process.
static ONE: Mutex<()> = Mutex::new(());

fn one_test() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn exists(fs: &FileSystem, kept: &KeptInode) -> bool {
    fs.inode_at(kept.tree(), kept.number()).is_ok()
}

/// The table of kept inodes, with the guards, stays below 150 bytes an inode at any number.
#[test]
#[cfg(not(feature = "lock-order"))]
fn a_kept_inode_takes_few_bytes() {
    const FILES: usize = 100_000;
    let _one = one_test();
    let (device, fs) = new_file_system(512 << 20);
    let root = fs.inode("/").unwrap();
    for number in 0..FILES {
        root.create(format!("{number}").as_bytes(), &NewInode::new(NewKind::Regular, 0o644)).unwrap();
    }
    fs.sync().unwrap();
    let mut kept = Vec::with_capacity(FILES);
    let before = BYTES.load(Ordering::Relaxed) - (FILES * size_of::<KeptInode>()) as u64;
    let mut worst = 0.0_f64;
    for entry in root.read_dir().unwrap() {
        kept.push(entry.unwrap().inode().unwrap().keep());
        if kept.len() >= FILES / 10 {
            let bytes = BYTES.load(Ordering::Relaxed).saturating_sub(before);
            worst = worst.max(bytes as f64 / kept.len() as f64);
        }
    }
    assert_eq!(kept.len(), FILES);
    let left = FILES as f64 * 24.0 / (FILES / 10) as f64;
    // The guards of the vector's unused part are counted as well.
    assert!(worst < 150.0 + left, "{worst} bytes a kept inode");
    let bytes = (BYTES.load(Ordering::Relaxed) - before) as f64 / FILES as f64;
    assert!(bytes < 100.0, "{bytes} bytes a kept inode");
    // Files that were used and rest again leave nothing behind.
    for one in kept.iter().step_by(10) {
        let file = fs.inode_at(one.tree(), one.number()).unwrap().open().unwrap();
        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 0);
    }
    let after = (BYTES.load(Ordering::Relaxed) - before) as f64 / FILES as f64;
    assert!(after < bytes + 10.0, "{bytes} bytes before the files were used, {after} after");
    drop(kept);
    drop(root);
    close_clean(fs, &device);
}

#[test]
fn a_kept_inode_outlives_its_names() {
    let _one = one_test();
    let (device, fs) = new_file_system(256 << 20);
    let root = fs.inode("/").unwrap();
    fs.create_file("/file").unwrap().write_all_at(b"content", 0).unwrap();
    let file = fs.inode("/file").unwrap();
    let kept = file.keep();
    let second = kept.clone();
    fs.hard_link("/file", "/link").unwrap();
    fs.remove_file("/file").unwrap();
    fs.remove_file("/link").unwrap();
    // Read, written and truncated through new handles, each of which is the only open one.
    assert_eq!(file.open().unwrap().read_all().unwrap(), b"content");
    file.open().unwrap().write_all_at(b"C", 0).unwrap();
    file.open().unwrap().set_len(4).unwrap();
    assert_eq!(file.open().unwrap().read_all().unwrap(), b"Cont");
    assert_eq!(fs.inode_at(file.tree(), file.number()).unwrap().metadata().nlink(), 0);
    assert!(root.hard_link(&file, b"again").is_err(), "a removed file gets no new name");
    drop(second);
    assert!(exists(&fs, &kept));
    fs.sync().unwrap();
    assert!(exists(&fs, &kept));
    drop(kept);
    assert!(fs.inode_at(file.tree(), file.number()).is_err());

    // An open file that outlives the guard, and a guard that outlives the file.
    fs.create_file("/file").unwrap().write_all_at(b"content", 0).unwrap();
    let inode = fs.inode("/file").unwrap();
    let (kept, open) = (inode.keep(), inode.open().unwrap());
    fs.remove_file("/file").unwrap();
    drop(kept);
    assert_eq!(open.read_all().unwrap(), b"content");
    let kept = inode.keep();
    drop(open);
    assert!(exists(&fs, &kept));
    drop(kept);
    assert!(fs.inode_at(inode.tree(), inode.number()).is_err());

    // A directory and a file that was replaced.
    fs.create_dir("/directory").unwrap();
    let directory = fs.inode("/directory").unwrap();
    let kept = directory.keep();
    fs.remove_dir("/directory").unwrap();
    assert!(exists(&fs, &kept));
    assert_eq!(directory.read_dir().unwrap().count(), 0);
    drop(kept);
    assert!(fs.inode_at(directory.tree(), directory.number()).is_err());
    fs.create_file("/old").unwrap();
    fs.create_file("/new").unwrap();
    let kept = fs.inode("/old").unwrap().keep();
    fs.rename("/new", "/old").unwrap();
    assert!(exists(&fs, &kept));
    drop(kept);
    close_clean(fs, &device);
}

#[test]
fn an_unnamed_file_is_kept_and_gets_a_name() {
    let _one = one_test();
    let (device, fs) = new_file_system(256 << 20);
    let root = fs.inode("/").unwrap();
    let new = NewInode::new(NewKind::Regular, 0o600);
    let file = root.create_unnamed(&new).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let kept = file.inode().keep();
    let inode = file.inode().clone();
    drop(file);
    assert!(exists(&fs, &kept));
    root.hard_link(&inode, b"name").unwrap();
    drop(kept);
    assert_eq!(fs.read("/name").unwrap(), b"content");
    // The handle is dropped after the inode is kept.
    let kept = root.create_unnamed(&new).unwrap().inode().keep();
    assert!(exists(&fs, &kept));
    let (tree, number) = (kept.tree(), kept.number());
    drop(kept);
    assert!(fs.inode_at(tree, number).is_err());
    close_clean(fs, &device);
}

/// A file whose guard was dropped after the file system was closed is deleted by the next mount.
#[test]
fn a_guard_does_not_keep_the_file_system_open() {
    let _one = one_test();
    let (device, fs) = new_file_system(256 << 20);
    fs.create_file("/file").unwrap();
    let kept = fs.inode("/file").unwrap().keep();
    fs.remove_file("/file").unwrap();
    fs.close().unwrap();
    let fs = in_memory::open(&device);
    // The first change of the subvolume deletes its orphans.
    fs.create_file("/other").unwrap();
    assert!(!exists(&fs, &kept));
    drop(kept);
    close_clean(fs, &device);
}

/// Names go while other threads keep and release the inode. It is gone after the last guard, and
/// not before.
#[test]
fn inodes_are_kept_while_their_names_go() {
    let _one = one_test();
    let (device, fs) = new_file_system(256 << 20);
    for turn in 0..1000 {
        let name = format!("/{turn}");
        fs.create_file(&name).unwrap();
        let inode = fs.inode(&name).unwrap();
        let first = (turn % 2 == 0).then(|| inode.keep());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let kept = inode.keep();
                    let seen = fs.inode_at(kept.tree(), kept.number());
                    if seen.is_ok_and(|inode| inode.metadata().nlink() > 0) {
                        // It had a name after it was kept, so it stays.
                        std::thread::yield_now();
                        assert!(exists(&fs, &kept));
                    }
                }
            });
            fs.remove_file(&name).unwrap();
            over.store(true, Ordering::Relaxed);
            keeper.join().unwrap();
        });
        assert_eq!(fs.inode_at(inode.tree(), inode.number()).is_ok(), first.is_some());
        drop(first);
        assert!(fs.inode_at(inode.tree(), inode.number()).is_err(), "turn {turn}");
    }
    close_clean(fs, &device);
}
