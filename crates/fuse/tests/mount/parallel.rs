//! Many threads at once, each in its own directory and all in a shared one.

use crate::server::{Mount, NEEDS, check, make_image};
use fastrand::Rng;
use papilio_oracle::{Scratch, require};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const THREADS: u64 = 8;
const STEPS: usize = 400;

/// The names and contents of one thread's directory.
type Model = BTreeMap<String, Vec<u8>>;

fn own_directory(root: &Path, thread: u64) -> Model {
    let mut random = Rng::with_seed(thread);
    let directory = root.join(format!("own-{thread}"));
    fs::create_dir(&directory).unwrap();
    let mut model = Model::new();
    for _ in 0..STEPS {
        let name = format!("f{}", random.u8(0..40));
        let path = directory.join(&name);
        match random.u8(0..10) {
            0..=3 => {
                let content = vec![random.u8(..); random.usize(0..60_000)];
                fs::write(&path, &content).unwrap();
                model.insert(name, content);
            }
            4 => assert_eq!(fs::remove_file(&path).is_ok(), model.remove(&name).is_some(), "{name}"),
            5 => {
                let other = format!("f{}", random.u8(0..40));
                let renamed = fs::rename(&path, directory.join(&other)).is_ok();
                assert_eq!(renamed, model.contains_key(&name), "{name} to {other}");
                if let Some(content) = model.remove(&name) {
                    model.insert(other, content);
                }
            }
            6 => {
                if model.contains_key(&name) && random.u8(0..4) == 0 {
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                }
            }
            _ => assert_eq!(fs::read(&path).ok(), model.get(&name).cloned(), "{name}"),
        }
    }
    model
}

/// Changes names that other threads change meanwhile. Any result is possible, but not a wrong one.
fn shared_directory(root: &Path, thread: u64) {
    let mut random = Rng::with_seed(thread + 100);
    let directory = root.join("shared");
    for _ in 0..STEPS {
        let (name, other) = (format!("s{}", random.u8(0..10)), format!("s{}", random.u8(0..10)));
        let path = directory.join(&name);
        let result = match random.u8(0..8) {
            0 | 1 => fs::write(&path, [thread as u8; 5000]),
            2 => fs::remove_file(&path),
            3 => fs::rename(&path, directory.join(&other)),
            4 => fs::hard_link(&path, directory.join(&other)),
            5 => {
                fs::read_dir(&directory).and_then(|mut entries| entries.try_for_each(|entry| entry.map(drop)))
            }
            _ => fs::read(&path).map(|content| {
                // Writers of one file may overlap, but each byte comes from one of them.
                assert!(content.len() <= 5000);
                assert!(content.iter().all(|&byte| u64::from(byte) < THREADS));
            }),
        };
        if let Err(error) = result {
            let expected = [libc::ENOENT, libc::EEXIST, libc::ESTALE];
            assert!(expected.contains(&error.raw_os_error().unwrap_or(0)), "{name}: {error}");
        }
    }
}

#[test]
fn many_threads_see_their_own_changes() {
    let Some(_) = require(NEEDS) else { return };
    see_own_changes(&Scratch::new(512 << 20).unwrap(), "commit=1");
}

/// On a disk, where requests wait for the device.
#[test]
fn many_threads_see_their_own_changes_without_the_hosts_cache() {
    let Some(_) = require(NEEDS) else { return };
    see_own_changes(&Scratch::under(&std::env::temp_dir(), 512 << 20).unwrap(), "commit=1,device_io=direct");
}

/// Readers and writers of one file, each with its own blocks, with direct I/O and without.
#[test]
fn direct_and_cached_requests_wait_for_the_device_together() {
    const BLOCKS: u64 = 64;
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::under(&std::env::temp_dir(), 512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "device_io=direct");
    let path = mount.path().join("f");
    fs::write(&path, vec![0; (THREADS * BLOCKS) as usize * 4096]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let path = &path;
            scope.spawn(move || {
                let flags = if thread % 2 == 0 { libc::O_DIRECT } else { 0 };
                let file = fs::File::options().read(true).write(true).custom_flags(flags).open(path).unwrap();
                let mut page = papilio::AlignedBuffer::new(4096, 4096);
                let mut random = Rng::with_seed(thread);
                let mut model = [0; BLOCKS as usize];
                for step in 1..=STEPS as u64 {
                    let block = random.u64(..BLOCKS);
                    let offset = (block * THREADS + thread) * 4096;
                    if random.bool() {
                        let value = step % 251 + 1;
                        page.fill(value as u8);
                        file.write_all_at(&page, offset).unwrap();
                        model[block as usize] = value;
                    } else {
                        file.read_exact_at(&mut page, offset).unwrap();
                        let expected = model[block as usize] as u8;
                        assert!(page.iter().all(|&byte| byte == expected), "{thread}: {block}");
                    }
                }
            });
        }
    });
    mount.unmount();
    check(&image);
}

/// Many readers keep more requests in flight than the queue's thread takes over at, while others
/// change names, and the mount then ends at once.
#[test]
fn names_change_while_many_reads_are_in_flight() {
    const READERS: u64 = 24;
    const PAGES: u64 = 512;
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::under(&std::env::temp_dir(), 512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "device_io=direct,commit=1");
    let path = mount.path().join("f");
    let content: Vec<u8> = (0..PAGES).flat_map(|page| [(page % 251) as u8; 4096]).collect();
    fs::write(&path, &content).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..READERS {
            let path = &path;
            scope.spawn(move || {
                let file = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                let mut page = papilio::AlignedBuffer::new(4096, 4096);
                let mut random = Rng::with_seed(thread);
                for _ in 0..STEPS {
                    let number = random.u64(..PAGES);
                    file.read_exact_at(&mut page, number * 4096).unwrap();
                    assert!(page.iter().all(|&byte| byte == (number % 251) as u8), "page {number}");
                }
            });
        }
        for thread in 0..4 {
            let root = mount.path();
            scope.spawn(move || {
                own_directory(root, thread);
            });
        }
    });
    mount.unmount();
    check(&image);
}

fn see_own_changes(scratch: &Scratch, options: &str) {
    let image = make_image(scratch, 512 << 20);
    let mount = Mount::new(scratch, &image, options);
    let root = mount.path();
    fs::create_dir(root.join("shared")).unwrap();
    let models: Vec<Model> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    shared_directory(root, thread);
                    own_directory(root, thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    mount.unmount();
    check(&image);
    let again = Mount::new(scratch, &image, "ro");
    for (thread, model) in models.iter().enumerate() {
        let directory = again.path().join(format!("own-{thread}"));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), model.len());
        for (name, content) in model {
            assert!(fs::read(directory.join(name)).unwrap() == *content, "{thread}: {name}");
        }
    }
    again.unmount();
}
