//! Chains that are restored and compared, and files that are taken out of them.

use crate::world::{Source, assert_same, file_system, repository, restore_and_compare, restore_into};
use papilio::ReceiveObserver;
use papilio_backup::{
    BackupError, ImageSnapshot, ImageTarget, MemoryStore, ObjectStore, Repository, RestoreOptions,
    VerifyOptions, create, restore, stream_chain, verify,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn every_backup_of_a_chain_is_restored_as_it_was() {
    let (_, repository) = repository();
    let mut source = Source::new(1);
    for (day, name) in ["mon", "tue", "wed", "thu"].into_iter().enumerate() {
        let created = source.backup(&repository, name, day as i64);
        assert_eq!(created.backup.manifest.base.is_some(), day > 0, "{name}");
        assert!(!created.existed && created.new_objects >= 2);
    }
    let backups = repository.backups().unwrap();
    assert!(backups.all()[0].manifest.stream.len() > 3, "the stream has several parts");
    assert!(backups.all()[0].manifest.series == backups.all()[3].manifest.series);
    for backup in backups.all() {
        restore_and_compare(&repository, backup, &source.fs);
    }
    assert_eq!(verify(&repository, &VerifyOptions::default()).unwrap().faults, []);
    // A second backup of a snapshot is the first one.
    let id = source.fs.inode("/wed").unwrap().tree();
    assert!(crate::world::backup(&repository, &source.fs, id, 9).unwrap().existed);
    assert_eq!(repository.backups().unwrap().all().len(), 4);
    let found = |text: &str| backups.find(text).map(|found| found.manifest.name.clone());
    assert_eq!(found("latest").unwrap(), "thu");
    assert_eq!(found("wed").unwrap(), "wed");
    assert_eq!(found(&backups.all()[1].id[..8]).unwrap(), "tue");
    assert!(matches!(found("000").unwrap_err(), BackupError::NoBackup(_)));
}

#[test]
fn a_target_that_has_the_base_gets_the_rest() {
    let (_, repository) = repository();
    let mut source = Source::new(2);
    for (day, name) in ["one", "two", "three"].into_iter().enumerate() {
        source.backup(&repository, name, day as i64);
    }
    let fs = file_system(512);
    assert_eq!(restore_into(&repository, "two", &fs).unwrap().received, 2);
    let rest = restore_into(&repository, "three", &fs).unwrap();
    assert_eq!((rest.received, rest.found), (1, 2));
    assert_same(&source.fs, &fs, "/three");
    assert_eq!(restore_into(&repository, "three", &fs).unwrap().received, 0);
    // The restored subvolume goes on as a source: the next backup is incremental.
    let (restored, root) = (fs.inode("/three").unwrap().tree(), fs.inode("/").unwrap());
    let work = root.create_snapshot(restored, b"work", false).unwrap().tree();
    fs.write("/work/new", b"after the restore").unwrap();
    let next = root.create_snapshot(work, b"four", true).unwrap().tree();
    let created = crate::world::backup(&repository, &fs, next, 4).unwrap();
    assert_eq!(
        created.backup.manifest.base.map(|base| base.uuid),
        repository.backups().unwrap().find("three").ok().map(|three| three.manifest.snapshot.uuid)
    );
    restore_and_compare(&repository, &created.backup, &fs);
    // Anything else with the name is left alone.
    let other = file_system(512);
    other.create_dir("/two").unwrap();
    let error = restore_into(&repository, "two", &other).unwrap_err().to_string();
    assert!(error.contains("the name exists already"), "{error}");
    let backups = repository.backups().unwrap();
    let mut target = ImageTarget::new(&other, b"/").unwrap();
    let options = RestoreOptions::new().name(Some(b"again".to_vec())).keep_chain(true);
    let two = backups.find("two").unwrap();
    restore(&repository, &backups, two, &mut target, &options, &mut ()).unwrap();
    let kept = other.subvolumes().unwrap();
    assert_eq!(kept.iter().filter(|one| one.name == b"one" && one.is_read_only()).count(), 1);
}

#[test]
fn a_writable_subvolume_is_refused_and_nothing_is_stored() {
    let (store, repository) = repository();
    let source = Source::new(3);
    let before = store.list("").unwrap().len();
    let id = source.fs.inode("/s").unwrap().tree();
    let error = crate::world::backup(&repository, &source.fs, id, 1).unwrap_err();
    assert_eq!(error.to_string(), "memory: the subvolume is not read-only, which a backup needs");
    assert_eq!(store.list("").unwrap().len(), before);
}

#[test]
fn a_full_target_fails_and_loses_nothing() {
    let (_, repository) = repository();
    let mut source = Source::new(4);
    let big: Vec<u8> = (0..90 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    source.fs.write("/s/big", &big).unwrap();
    source.backup(&repository, "big", 1);
    let small = file_system(110);
    let error = restore_into(&repository, "big", &small).unwrap_err().to_string();
    assert!(error.contains("no space left"), "{error}");
    assert!(small.subvolumes().unwrap().iter().all(|one| one.received_uuid.is_nil()));
    restore_and_compare(&repository, repository.backups().unwrap().find("big").unwrap(), &source.fs);
}

/// A store that counts the objects that are read.
#[derive(Debug)]
struct Counting(Arc<MemoryStore>, AtomicU64);

impl ObjectStore for Counting {
    fn place(&self) -> String {
        "counting".into()
    }
    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        self.1.fetch_add(u64::from(name.starts_with("data/")), Ordering::Relaxed);
        self.0.get(name, most)
    }
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.put(name, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.create(name, bytes)
    }
    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.0.list(prefix)
    }
    fn delete(&self, name: &str) -> io::Result<()> {
        self.0.delete(name)
    }
}

#[test]
fn one_file_is_read_from_few_objects() {
    let (store, made) = repository();
    let mut source = Source::new(5);
    for (day, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    let counting = Arc::new(Counting(store, AtomicU64::new(0)));
    let repository = crate::world::open(Arc::clone(&counting) as Arc<dyn ObjectStore>).unwrap();
    let backups = repository.backups().unwrap();
    let outlines: usize = backups.all().iter().map(|one| one.manifest.outline.len()).sum();
    let streams: usize = backups.all().iter().map(|one| one.manifest.stream.len()).sum();
    let mut compared = 0;
    for backup in backups.all() {
        let chain = stream_chain(&repository, &backups, backup).unwrap();
        let part = chain.parts().len() - 1;
        let mut paths = Vec::new();
        chain
            .for_each_entry(part, b"", |entry| {
                if entry.kind == papilio::FileKind::Regular {
                    paths.push(entry.path);
                }
                Ok::<_, papilio::stream::StreamError>(())
            })
            .unwrap();
        for path in paths {
            let mut content = Vec::new();
            let before = counting.1.load(Ordering::Relaxed);
            chain.copy_file(part, &path, &mut content).unwrap();
            let read = counting.1.load(Ordering::Relaxed) - before;
            let whole = format!("/{}/{}", backup.manifest.name, String::from_utf8(path).unwrap());
            assert!(content == source.fs.read(&whole[..]).unwrap(), "{whole}");
            assert!(read < streams as u64, "{whole}: {read} of {streams} objects");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared} files");
    // A small file of the newest backup: the outlines, and hardly more.
    counting.1.store(0, Ordering::Relaxed);
    let last = backups.find("d").unwrap();
    let chain = stream_chain(&repository, &backups, last).unwrap();
    let before = counting.1.load(Ordering::Relaxed);
    assert_eq!(before, outlines as u64);
    let mut small: Option<(u64, Vec<u8>)> = None;
    chain
        .for_each_entry(3, b"", |entry| {
            let is_smaller = small.as_ref().is_none_or(|(size, _)| entry.size < *size);
            if entry.kind == papilio::FileKind::Regular && entry.data > 0 && is_smaller {
                small = Some((entry.size, entry.path));
            }
            Ok::<_, papilio::stream::StreamError>(())
        })
        .unwrap();
    chain.copy_file(3, &small.unwrap().1, &mut Vec::new()).unwrap();
    assert!(counting.1.load(Ordering::Relaxed) - before <= 4, "of {streams} objects");
}

/// The restore of a chain that was interrupted goes on.
#[test]
fn an_interrupted_restore_goes_on() {
    struct Count(u32);
    impl ReceiveObserver for Count {
        fn begins(&mut self, _name: &[u8], _snapshot: bool) {
            self.0 += 1;
        }
        fn progress(&mut self, _bytes: u64) {}
        fn failed(&mut self, _error: &papilio::Error) {}
    }
    let (store, made) = repository();
    let mut source = Source::new(6);
    for (day, name) in ["a", "b", "c"].into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    let backups = made.backups().unwrap();
    let last = backups.find("c").unwrap();
    let fs = file_system(512);
    let mut begun = 0;
    for answered in (1..60).step_by(3) {
        let stopping = Arc::new(crate::world::StoppingStore::new(Arc::clone(&store), answered, false));
        let mut target = ImageTarget::new(&fs, b"/").unwrap();
        let mut count = Count(0);
        let done = crate::world::open(stopping).and_then(|repository| {
            restore(&repository, &backups, last, &mut target, &RestoreOptions::new(), &mut count)
        });
        begun += count.0;
        if done.is_ok() {
            break;
        }
    }
    assert!(begun > 3, "it was interrupted");
    assert_same(&source.fs, &fs, "/c");
    let left = fs.subvolumes().unwrap();
    assert_eq!(left.iter().filter(|one| !one.is_being_deleted() && one.parent.is_some()).count(), 1);
}

#[test]
fn snapshots_of_other_subvolumes_have_series_of_their_own() {
    let (_, repository) = repository();
    let mut source = Source::new(7);
    source.backup(&repository, "first", 1);
    let other = source.fs.create_subvolume("/other").unwrap().tree();
    source.fs.write("/other/file", b"text").unwrap();
    let id = source.fs.inode("/").unwrap().create_snapshot(other, b"apart", true).unwrap().tree();
    let created = crate::world::backup(&repository, &source.fs, id, 2).unwrap();
    assert_eq!(created.backup.manifest.base, None);
    let backups = repository.backups().unwrap();
    assert_ne!(backups.all()[0].manifest.series, backups.all()[1].manifest.series);
    // A full one where the user wants it.
    source.change(3);
    let (id, mut observer) = (source.snapshot("second"), ());
    let lock = repository.lock("test", false).unwrap();
    let mut snapshot = ImageSnapshot::new(&source.fs, id, "x".into(), &mut observer).unwrap();
    let full = create(&repository, &lock, &mut snapshot, &crate::world::options(3).full(true)).unwrap();
    assert_eq!(full.backup.manifest.base, None);
    restore_and_compare(&repository, &full.backup, &source.fs);
}

#[test]
fn places_that_are_not_empty_are_refused() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    assert!(matches!(crate::world::open(Arc::clone(&store)).unwrap_err(), BackupError::NoRepository(_)));
    store.put("letter.txt", b"dear").unwrap();
    let error = Repository::init(Arc::clone(&store), None).unwrap_err().to_string();
    assert!(error.contains("letter.txt is there"), "{error}");
    store.delete("letter.txt").unwrap();
    Repository::init(Arc::clone(&store), None).unwrap();
    let error = Repository::init(store, None).unwrap_err().to_string();
    assert!(error.contains("a repository is there already"), "{error}");
}
