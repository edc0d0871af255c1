//! A file system in memory with snapshots, a repository, and comparison.

use papilio::device::{Device, MemoryDevice};
use papilio::format::TreeId;
use papilio::{FileKind, FileSystem, MkfsOptions, OpenOptions};
use papilio_backup::{
    Backup, BackupError, CreateOptions, Created, ImageSnapshot, ImageTarget, MemoryStore, ObjectStore,
    Repository, RestoreOptions, Restored, Result, create, restore,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Makes a file system of some MiB in memory.
pub fn file_system(mib: u64) -> FileSystem {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20));
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    FileSystem::from_devices(vec![device], &OpenOptions::new().write(true)).unwrap()
}

/// A file system whose subvolume `/s` changes.
pub struct Source {
    pub fs: FileSystem,
    tree: TreeId,
    random: fastrand::Rng,
    files: Vec<String>,
    made: u32,
}

impl Source {
    pub fn new(seed: u64) -> Self {
        let fs = file_system(512);
        let tree = fs.create_subvolume("/s").unwrap().tree();
        for directory in ["/s/a", "/s/b", "/s/a/c"] {
            fs.create_dir(directory).unwrap();
        }
        let mut this = Self { fs, tree, random: fastrand::Rng::with_seed(seed), files: Vec::new(), made: 0 };
        (0..12).for_each(|_| this.make_file());
        this
    }

    fn place(&mut self) -> String {
        self.made += 1;
        let directory = ["/s", "/s/a", "/s/b", "/s/a/c"][self.random.usize(..4)];
        format!("{directory}/file {}", self.made)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.random.usize(..most);
        // Half of it compresses.
        (0..length).map(|at| if at / 512 % 2 == 0 { self.random.u8(..) } else { b'x' }).collect()
    }

    fn make_file(&mut self) {
        let (path, content) = (self.place(), self.bytes(60_000));
        self.fs.write(&path[..], content).unwrap();
        self.files.push(path);
    }

    /// Changes data, names, attributes, holes; shares and links.
    pub fn change(&mut self, steps: usize) {
        for _ in 0..steps {
            let at = self.random.usize(..self.files.len());
            let path = self.files[at].clone();
            match self.random.u8(..9) {
                0 => self.make_file(),
                1 if self.files.len() > 4 => {
                    self.fs.remove_file(&path[..]).unwrap();
                    self.files.remove(at);
                }
                2 => {
                    let to = self.place();
                    self.fs.rename(&path[..], &to[..]).unwrap();
                    self.files[at] = to;
                }
                3 => {
                    let value = self.bytes(100);
                    self.fs.set_xattr(&path[..], b"user.value", &value).unwrap();
                }
                4 => {
                    let to = self.place();
                    self.fs.hard_link(&path[..], &to[..]).unwrap();
                    self.files.push(to);
                }
                5 => {
                    let (to, from) = (self.place(), self.fs.inode(&path[..]).unwrap().open().unwrap());
                    let copy = self.fs.create_file(&to[..]).unwrap();
                    copy.clone_range(&from, 0, 0, 0).unwrap();
                    self.files.push(to);
                }
                6 => {
                    let file = self.fs.inode(&path[..]).unwrap().open().unwrap();
                    file.punch_hole(4096, 8192).unwrap();
                }
                7 => self.fs.set_permissions(&path[..], 0o600 + self.random.u32(..64)).unwrap(),
                _ => {
                    let (offset, bytes) = (self.random.u64(..50_000), self.bytes(20_000));
                    let file = self.fs.inode(&path[..]).unwrap().open().unwrap();
                    file.write_all_at(&bytes, offset).unwrap();
                }
            }
        }
    }

    /// Makes the read-only snapshot `/NAME`.
    pub fn snapshot(&self, name: &str) -> TreeId {
        let root = self.fs.inode("/").unwrap();
        root.create_snapshot(self.tree, name.as_bytes(), true).unwrap().tree()
    }

    /// Changes the subvolume, makes a snapshot and backs it up.
    pub fn backup(&mut self, repository: &Repository, name: &str, time: i64) -> Created {
        self.change(8);
        let id = self.snapshot(name);
        backup(repository, &self.fs, id, time).unwrap()
    }
}

/// The options of backups: small parts, so that one has several objects.
pub fn options(time: i64) -> CreateOptions {
    CreateOptions::new().time(Some(time)).part_bytes(64 << 10)
}

pub fn backup(repository: &Repository, fs: &FileSystem, id: TreeId, time: i64) -> Result<Created> {
    let lock = repository.lock("papilio backup create", false)?;
    let mut observer = ();
    let mut source = ImageSnapshot::new(fs, id, "memory".into(), &mut observer)?;
    let created = create(repository, &lock, &mut source, &options(time));
    // A run that stops does not release it.
    match created {
        Ok(created) => lock.release().map(|()| created),
        Err(error) => Err(error),
    }
}

pub fn no_key() -> Result<papilio_backup::Secret> {
    Err(BackupError::KeyNeeded("test".into()))
}

pub fn open(store: Arc<dyn ObjectStore>) -> Result<Repository> {
    Repository::open(store, &mut no_key)
}

/// Makes a plain repository in memory.
pub fn repository() -> (Arc<MemoryStore>, Repository) {
    let store = Arc::new(MemoryStore::new());
    let made = Repository::init(Arc::clone(&store) as Arc<dyn ObjectStore>, None).unwrap();
    (store, made)
}

/// Restores into a file system, by the start of the id or the name.
pub fn restore_into(repository: &Repository, backup: &str, fs: &FileSystem) -> Result<Restored> {
    let backups = repository.backups()?;
    let backup = backups.find(backup)?;
    let mut target = ImageTarget::new(fs, b"/")?;
    restore(repository, &backups, backup, &mut target, &RestoreOptions::new(), &mut ())
}

/// Restores a backup into a new file system, and compares it with the snapshot of its name.
pub fn restore_and_compare(repository: &Repository, backup: &Backup, source: &FileSystem) {
    let fs = file_system(512);
    restore_into(repository, &backup.id, &fs).unwrap();
    let name = format!("/{}", backup.manifest.name);
    assert_same(source, &fs, &name);
    let made = fs.subvolumes().unwrap();
    let made: Vec<_> = made.iter().filter(|one| !one.is_being_deleted() && one.parent.is_some()).collect();
    assert_eq!(made.len(), 1, "only the snapshot is left");
    assert!(made[0].is_read_only());
    assert_eq!(made[0].received_uuid, backup.manifest.snapshot.uuid);
}

type Facts = (FileKind, u32, [u32; 2], u32, papilio::Timespec, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

fn facts(fs: &FileSystem, path: &str) -> BTreeMap<Vec<u8>, Facts> {
    let mut found = BTreeMap::new();
    for entry in fs.walk(path).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.inode.metadata();
        let content = match metadata.file_type() {
            FileKind::Regular => entry.inode.open().unwrap().read_all().unwrap(),
            FileKind::Symlink => entry.inode.read_link().unwrap(),
            _ => Vec::new(),
        };
        let xattrs = entry.inode.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value));
        // The time of the root is that of its last entry, which a receiver may set later.
        let mtime = if entry.path.is_empty() { papilio::Timespec::default() } else { metadata.mtime() };
        let owner = [metadata.uid(), metadata.gid()];
        let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
        let facts =
            (metadata.file_type(), metadata.permissions(), owner, links, mtime, content, xattrs.collect());
        found.insert(entry.path.clone(), facts);
    }
    found
}

/// Compares a tree in two file systems: kinds, modes, owners, links, times, contents, attributes.
pub fn assert_same(left: &FileSystem, right: &FileSystem, path: &str) {
    let (left, right) = (facts(left, path), facts(right, path));
    assert!(left.len() > 5, "{path}: only {} entries", left.len());
    assert!(left.keys().eq(right.keys()), "{path}: other names");
    for (name, facts) in &left {
        assert!(*facts == right[name], "{path}/{}", String::from_utf8_lossy(name));
    }
}

/// A store that stops: all requests after a number of them fail, as if the process was killed.
#[derive(Debug)]
pub struct StoppingStore {
    pub inner: Arc<MemoryStore>,
    /// Requests that are still answered.
    left: AtomicI64,
    /// Whether the request at which it stops takes effect.
    last_counts: bool,
    pub requests: AtomicU64,
}

impl StoppingStore {
    pub fn new(inner: Arc<MemoryStore>, answered: i64, last_counts: bool) -> Self {
        Self { inner, left: AtomicI64::new(answered), last_counts, requests: AtomicU64::new(0) }
    }

    fn ask<R>(&self, request: impl FnOnce(&MemoryStore) -> io::Result<R>) -> io::Result<R> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            1.. => request(&self.inner),
            left => {
                if left == 0 && self.last_counts {
                    let _ = request(&self.inner);
                }
                Err(io::Error::other("the store has stopped"))
            }
        }
    }
}

impl ObjectStore for StoppingStore {
    fn place(&self) -> String {
        "stopping".into()
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        self.ask(|inner| inner.get(name, most))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.ask(|inner| inner.put(name, bytes))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.ask(|inner| inner.create(name, bytes))
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.ask(|inner| inner.list(prefix))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.ask(|inner| inner.delete(name))
    }
}
