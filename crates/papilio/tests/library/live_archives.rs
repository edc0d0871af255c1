//! Disk archives of file systems that are open for writing: each is the last commit, whole, and can
//! be the base of the next, also while other threads go on writing.

use crate::in_memory::{check_all, writable};
use papilio::archive::{
    ArchiveChain, ArchiveOptions, ArchiveReader, ArchiveSource, restore_archive, verify_archive,
};
use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::PhysicalAddress;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZES: [u64; 2] = [300 << 20, 200 << 20];

fn devices() -> Vec<Arc<dyn Device>> {
    SIZES.iter().map(|size| Arc::new(MemoryDevice::new(*size)) as Arc<dyn Device>).collect()
}

/// A file system of two devices, open for writing.
fn source() -> FileSystem {
    let all = devices();
    let options = MkfsOptions::new().data_profile(RaidProfile::Single).metadata_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&all, &options).unwrap();
    FileSystem::from_devices(all, &writable()).unwrap()
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// The content of a file that says which one it is.
fn numbered(round: u64) -> Vec<u8> {
    [&round.to_le_bytes()[..], &noise(round, 300_000)].concat()
}

fn chain(archives: &[&[u8]]) -> Arc<ArchiveChain> {
    let memory = |bytes: &[u8]| -> Arc<dyn Device> {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(bytes, PhysicalAddress(0)).unwrap();
        Arc::new(device)
    };
    let mut rest = archives[1..].iter();
    Arc::new(
        ArchiveChain::open(memory(archives[0]), &mut |_| Ok(rest.next().map(|bytes| memory(bytes)))).unwrap(),
    )
}

/// Archives a file system. `parents` are those that it is based on, the newest first.
fn archive(fs: &FileSystem, parents: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let parent = (!parents.is_empty()).then(|| chain(parents));
    let created = fs.archive(parent, &mut bytes, &ArchiveOptions::new(), |_, _| {}).unwrap();
    assert_eq!((created.damaged_bytes, created.unreadable_bytes), (0, 0));
    let input: Box<dyn Read + Send> = Box::new(Cursor::new(bytes.clone()));
    verify_archive(&mut ArchiveReader::new(input, "live.pbk").unwrap(), 0, &mut |_| {}).unwrap();
    bytes
}

/// Restores archives, the full one first, checks the devices and opens them.
fn restored(archives: &[&[u8]]) -> FileSystem {
    let open = |bytes: &&[u8]| -> ArchiveSource {
        let input: Box<dyn Read + Send> = Box::new(Cursor::new(bytes.to_vec()));
        ArchiveReader::new(input, "live.pbk").unwrap()
    };
    let mut sources: Vec<_> = archives.iter().map(open).collect();
    let all = devices();
    restore_archive(&mut sources, &all, &std::env::temp_dir(), |_| {}).unwrap();
    let report = check_all(all.clone());
    assert!(report.is_clean(), "{:#?}", report.findings);
    FileSystem::from_devices(all, &OpenOptions::new()).unwrap()
}

#[test]
fn an_archive_of_a_writable_file_system_is_a_base() {
    let fs = source();
    let (old, new) = (noise(1, 3 << 20), noise(2, 1 << 20));
    fs.write("/old", &old).unwrap();
    // Not committed: the archive commits.
    let full = archive(&fs, &[]);
    fs.write("/new", &new).unwrap();
    // A log that names blocks which the next commit frees.
    fs.open_file("/new").unwrap().sync_all().unwrap();
    let next = archive(&fs, &[&full]);
    assert!(next.len() < full.len() / 2, "{} of {}", next.len(), full.len());
    // More commits and chunks than the superblock of the open knew.
    for number in 0..6 {
        fs.write(format!("/more {number}"), noise(10 + number, 12 << 20)).unwrap();
        fs.sync().unwrap();
    }
    let last = archive(&fs, &[&next, &full]);

    let first = restored(&[&full]);
    assert!(first.read("/old").unwrap() == old);
    assert!(first.metadata("/new").is_err());
    let second = restored(&[&full, &next]);
    assert!(second.read("/old").unwrap() == old && second.read("/new").unwrap() == new);
    assert!(!second.has_log());
    let third = restored(&[&full, &next, &last]);
    for number in 0..6 {
        assert!(third.read(format!("/more {number}")).unwrap() == noise(10 + number, 12 << 20), "{number}");
    }
    // As it is read without a restore.
    let inside =
        FileSystem::from_devices(chain(&[&last, &next, &full]).devices().unwrap(), &OpenOptions::new());
    assert!(inside.unwrap().read("/new").unwrap() == new);
    fs.close().unwrap();
}

#[test]
fn an_archive_is_one_commit_while_others_write() {
    let fs = source();
    let kept = noise(3, 4 << 20);
    fs.write("/kept", &kept).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let writer = {
        let (fs, ends) = (fs.clone(), Arc::clone(&ends));
        std::thread::spawn(move || {
            let mut rounds = 0_u64;
            while !ends.load(Ordering::SeqCst) {
                // The name has a whole content at every commit.
                fs.write("/changing.new", numbered(rounds)).unwrap();
                fs.open_file("/changing.new").unwrap().sync_all().unwrap();
                fs.rename("/changing.new", "/changing").unwrap();
                fs.sync().unwrap();
                rounds += 1;
            }
            rounds
        })
    };
    let mut archives: Vec<Vec<u8>> = Vec::new();
    for _ in 0..5 {
        let parents: Vec<&[u8]> = archives.iter().rev().map(|bytes| &bytes[..]).collect();
        archives.push(archive(&fs, &parents));
    }
    ends.store(true, Ordering::SeqCst);
    let rounds = writer.join().unwrap();
    assert!(rounds > 3, "{rounds}");
    for count in 1..=archives.len() {
        let chain: Vec<&[u8]> = archives[..count].iter().map(|bytes| &bytes[..]).collect();
        let found = restored(&chain);
        assert!(found.read("/kept").unwrap() == kept, "{count}");
        if let Ok(file) = found.read("/changing") {
            let round = u64::from_le_bytes(file[..8].try_into().unwrap());
            assert!(round < rounds && file == numbered(round), "{count}");
        }
    }
    fs.close().unwrap();
}
