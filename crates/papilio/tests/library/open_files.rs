//! Threads open and close files while other threads link and unlink them, so that the last
//! reference to a file goes at a different point each time.

use crate::in_memory;
use crate::in_memory::{close_clean, new_file_system};
use papilio::{ErrorKind, NewInode, NewKind, PathError};
use std::sync::atomic::{AtomicBool, Ordering};

const TIMES: usize = 3000;

#[test]
fn links_come_and_go_while_threads_open_and_close_the_file() {
    let (device, fs) = new_file_system(256 << 20);
    fs.create_file("/file").unwrap().write_all_at(b"content", 0).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        drop(fs.open_file("/file")?);
                    }
                    Ok::<(), papilio::Error>(())
                })
            })
            .collect();
        let linking = scope.spawn(|| {
            for _ in 0..TIMES {
                fs.hard_link("/file", "/link")?;
                fs.remove_file("/link")?;
            }
            Ok::<(), papilio::Error>(())
        });
        let linked = linking.join();
        // Before a failure is reported: without it, the other threads never end.
        over.store(true, Ordering::Relaxed);
        opening.into_iter().for_each(|one| one.join().unwrap().unwrap());
        linked.unwrap().unwrap();
    });
    assert_eq!(fs.open_file("/file").unwrap().read_all().unwrap(), b"content");
    close_clean(fs, &device);
}

/// A file without a name gets its first name while its last handle is closed, or while another
/// thread links and unlinks it. If the link succeeds the file keeps its content, otherwise it is
/// deleted.
#[test]
fn an_unnamed_file_is_linked_while_it_is_closed() {
    let (device, fs) = new_file_system(256 << 20);
    let root = fs.inode("/").unwrap();
    let (mut named, mut gone) = (0, 0);
    for turn in 0..TIMES {
        let file = root.create_unnamed(&NewInode::new(NewKind::Regular, 0o600)).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        let inode = file.inode().clone();
        let name = format!("name {turn}");
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| root.hard_link(&inode, name.as_bytes()));
            let second = scope.spawn(|| {
                let linked = root.hard_link(&inode, b"other");
                if linked.is_ok() {
                    root.remove_file(b"other").unwrap();
                }
                linked
            });
            // Varies when the handle is dropped: about when the links happen, or a little later.
            (0..turn % 64).for_each(|_| std::thread::yield_now());
            drop(file);
            (first.join().unwrap(), second.join().unwrap())
        });
        match (&first, fs.open_file(&name)) {
            (Ok(()), Ok(file)) => {
                named += 1;
                assert_eq!(file.read_all().unwrap(), b"content");
                drop(file);
                root.remove_file(name.as_bytes()).unwrap();
            }
            (Err(_), Err(_)) => gone += 1,
            (linked, found) => panic!("turn {turn}: {linked:?}, {second:?}, {:?}", found.err()),
        }
        // In either order, the inode is gone now.
        let left = fs.inode_at(inode.tree(), inode.number());
        assert!(left.is_err(), "turn {turn}: {first:?}, {second:?}");
    }
    assert!(named > 0 && gone > 0, "{named} files were linked, {gone} were not");
    close_clean(fs, &device);
}

/// A thread opens and writes a file while others remove its name, so that the file is opened again
/// while its deletion runs. The write fails or is deleted with the file, and brings nothing back.
#[test]
fn writes_do_not_bring_a_file_back_that_is_being_deleted() {
    let (device, fs) = new_file_system(256 << 20);
    let over = AtomicBool::new(false);
    let unless_gone = |result: papilio::Result<()>| match result {
        Err(error) if !matches!(error.kind(), ErrorKind::Path(PathError::NotFound | PathError::Exists)) => {
            Err(error)
        }
        _ => Ok(()),
    };
    std::thread::scope(|scope| {
        let removing: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        unless_gone(fs.remove_file("/file"))?;
                    }
                    Ok::<(), papilio::Error>(())
                })
            })
            .collect();
        let writing: Vec<_> = [1, 10_000]
            .into_iter()
            .map(|length| {
                let fs = &fs;
                scope.spawn(move || {
                    let content = vec![7; length];
                    let mut created = 0;
                    while created < TIMES / 2 {
                        let Ok(inode) = fs.create("/file", &NewInode::new(NewKind::Regular, 0o600)) else {
                            continue;
                        };
                        created += 1;
                        let written = inode.open().and_then(|file| {
                            file.write_all_at(&content, 0)?;
                            file.sync_data()
                        });
                        unless_gone(written)?;
                    }
                    Ok::<(), papilio::Error>(())
                })
            })
            .collect();
        let written: Vec<_> = writing.into_iter().map(|one| one.join()).collect();
        over.store(true, Ordering::Relaxed);
        removing.into_iter().for_each(|one| one.join().unwrap().unwrap());
        written.into_iter().for_each(|one| one.unwrap().unwrap());
    });
    unless_gone(fs.remove_file("/file")).unwrap();
    fs.sync().unwrap();
    // The next mount deletes what is left, so the check comes before it.
    in_memory::assert_clean(&in_memory::crashed(&device));
    let used = fs.inode("/").unwrap();
    assert_eq!(used.read_dir().unwrap().count(), 0);
    close_clean(fs, &device);
}
