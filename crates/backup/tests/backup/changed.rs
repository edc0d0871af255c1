//! Repositories with changed bytes: whatever reads them ends with an error or a result.
//!
//! Owns [`Repositories`]. The fuzz target `backup_repository` uses this file, too: its bytes choose
//! the object and the changes, as seeded ones do in these tests.
//!
//! Changed manifests and parts get the names of their new content, so that the checks behind the
//! hashes have their turn.

use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_backup::{
    BackupError, CreateOptions, ImageSnapshot, ImageTarget, MemoryStore, ObjectStore, Repository,
    RestoreOptions, VerifyOptions, create, list_keys, restore, stream_chain, verify,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::Arc;

const DESCRIPTION: &str = "papilio-backup.json";
/// Bytes that encode a change.
const CHANGE: usize = 4;
/// The most changes of an input.
const CHANGES: usize = 16;
/// Numbers that fields get.
const NUMBERS: [u64; 8] = [0, 1, 7, 1 << 26, u32::MAX as u64, 1 << 40, i64::MAX as u64, u64::MAX];
/// One of so many inputs is also restored.
const RESTORED: u32 = 8;
/// The largest file that is read: sizes are made up.
const LARGEST: u64 = 1 << 20;

/// A sound repository of two backups, one based on the other.
pub struct Repositories {
    sound: MemoryStore,
    manifests: Vec<String>,
    /// An empty file system, to restore into.
    empty: MemoryDevice,
}

fn shared(store: &Arc<MemoryStore>) -> Arc<dyn ObjectStore> {
    Arc::clone(store) as Arc<dyn ObjectStore>
}

fn open(store: &Arc<MemoryStore>) -> papilio_backup::Result<Repository> {
    Repository::open(shared(store), &mut || Err(BackupError::KeyNeeded("memory".into())))
}

/// Returns the content of an object of a plain repository: 13 bytes of header, then zstd.
fn content(store: &MemoryStore, name: &str) -> Vec<u8> {
    let stored = store.get(name, 1 << 30).expect("the object is there");
    let mut content = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(&stored[13..]).expect("it is compressed with zstd");
    decoder.read_to_end(&mut content).expect("the frame is complete");
    content
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn place(hash: &str) -> String {
    format!("data/{}/{hash}", &hash[..2])
}

/// Stores content under its right name. Returns its hash, and its bytes as stored.
fn store_content(store: &MemoryStore, folder: &str, content: &[u8]) -> (String, u64) {
    let hash = hash(content);
    let mut stored = b"PAPBKUP1\0".to_vec();
    stored.extend((content.len() as u32).to_le_bytes());
    stored.extend(zstd::stream::encode_all(content, 1).expect("memory takes it"));
    let name = if folder == "data" { place(&hash) } else { format!("{folder}/{hash}") };
    store.put(&name, &stored).expect("memory takes it");
    (hash, stored.len() as u64)
}

/// Applies changes to bytes.
fn change(bytes: &mut Vec<u8>, changes: &[u8]) {
    for change in changes.chunks_exact(CHANGE).take(CHANGES) {
        let &[low, high, kind, value] = change else { continue };
        if bytes.is_empty() {
            return;
        }
        let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len();
        match kind % 6 {
            0 => bytes[at] = value,
            1 => bytes[at] ^= 1 << (value % 8),
            2 => bytes.truncate(at + 1),
            3 => {
                let piece: Vec<u8> = bytes[at..].iter().copied().take(usize::from(value)).collect();
                bytes.splice(at..at, piece);
            }
            4 => {
                let end = (at + usize::from(value)).min(bytes.len());
                bytes.drain(at..end);
            }
            // A number in text stays one.
            _ => {
                if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                    *digit = b'0' + value % 10;
                }
            }
        }
    }
}

impl Repositories {
    /// Makes the repository.
    ///
    /// # Panics
    /// If the library cannot.
    #[allow(clippy::new_without_default, reason = "it takes a while")]
    pub fn new() -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
        papilio::mkfs_device(&device, &MkfsOptions::new()).expect("mkfs");
        let fs = FileSystem::from_devices(vec![device], &OpenOptions::new().write(true)).expect("open");
        let tree = fs.create_subvolume("/s").expect("subvolume").tree();
        fs.create_dir("/s/d").expect("directory");
        for number in 0..6_u8 {
            let bytes: Vec<u8> = (0..5000_u32).map(|at| ((at * u32::from(number + 3)) >> 3) as u8).collect();
            fs.write(format!("/s/d/file {number}"), bytes).expect("write");
        }
        fs.symlink("d/file 1", "/s/link").expect("link");
        fs.set_xattr("/s/d", b"user.name", b"value").expect("attribute");
        let store = Arc::new(MemoryStore::new());
        let made = Repository::init(shared(&store), None).expect("init");
        for name in ["one", "two"] {
            fs.hard_link("/s/d/file 2", format!("/s/{name}")).expect("link");
            fs.open_file("/s/d/file 3").expect("open").write_all_at(name.as_bytes(), 1000).expect("write");
            let root = fs.inode("/").expect("root");
            let id = root.create_snapshot(tree, name.as_bytes(), true).expect("snapshot").tree();
            let lock = made.lock("test", false).expect("lock");
            let mut observer = ();
            let mut source = ImageSnapshot::new(&fs, id, name.into(), &mut observer).expect("snapshot");
            let options = CreateOptions::new().time(Some(1)).part_bytes(8 << 10);
            create(&made, &lock, &mut source, &options).expect("backup");
            lock.release().expect("release");
        }
        let backups = made.backups().expect("backups");
        let empty = Arc::new(MemoryDevice::new(128 << 20));
        papilio::mkfs_device(&(Arc::clone(&empty) as Arc<dyn Device>), &MkfsOptions::new()).expect("mkfs");
        Self {
            sound: MemoryStore::clone(&store),
            manifests: backups.all().iter().map(papilio_backup::Backup::object).collect(),
            empty: empty.snapshot(),
        }
    }

    /// Reads the repository after changes that `input` chooses. Returns whether it is still sound.
    pub fn read(&self, input: &[u8]) -> bool {
        let [choice, which, changes @ ..] = input else { return true };
        let store = Arc::new(MemoryStore::clone(&self.sound));
        let manifest = &self.manifests[usize::from(*which) % self.manifests.len()];
        match choice % 5 {
            0 => {
                let mut bytes = content(&store, manifest);
                change(&mut bytes, changes);
                store.delete(manifest).expect("memory deletes it");
                store_content(&store, "backups", &bytes);
            }
            1 => self.change_part(&store, manifest, usize::from(*which / 2), changes),
            2 => {
                let all = store.list("").expect("memory lists it");
                let name = &all[usize::from(*which) % all.len()].0;
                let mut bytes = store.get(name, 1 << 30).expect("it is there");
                change(&mut bytes, changes);
                store.put(name, &bytes).expect("memory takes it");
            }
            3 => {
                let text = String::from_utf8(store.get(DESCRIPTION, 1 << 16).expect("it is there"));
                let mut line =
                    text.expect("it is text").lines().next().unwrap_or_default().as_bytes().to_vec();
                change(&mut line, changes);
                let sum = hash(&line);
                line.extend_from_slice(format!("\n{sum}\n").as_bytes());
                store.put(DESCRIPTION, &line).expect("memory takes it");
            }
            _ => {
                let mut value: Value =
                    serde_json::from_slice(&content(&store, manifest)).expect("it is JSON");
                change_numbers(&mut value, changes);
                store.delete(manifest).expect("memory deletes it");
                store_content(&store, "backups", value.to_string().as_bytes());
            }
        }
        let sum = input.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        self.judge(&store, sum.is_multiple_of(RESTORED)).is_ok()
    }

    /// Changes a part of a stream or an outline, and names it in the manifest.
    fn change_part(&self, store: &MemoryStore, manifest: &str, which: usize, changes: &[u8]) {
        let mut value: Value = serde_json::from_slice(&content(store, manifest)).expect("it is JSON");
        let field = if which.is_multiple_of(3) { "stream" } else { "outline" };
        let count = value[field].as_array().map_or(1, Vec::len);
        let index = which / 3 % count;
        let name = value[field][index][0].as_str().expect("a hash").to_owned();
        let mut bytes = content(store, &place(&name));
        let before = bytes.len() as u64;
        change(&mut bytes, changes);
        let (name, stored) = store_content(store, "data", &bytes);
        value[field][index] = json!([name, bytes.len(), stored]);
        let all = format!("{field}_bytes");
        value[&all] = (value[&all].as_u64().unwrap_or_default() - before + bytes.len() as u64).into();
        store.delete(manifest).expect("memory deletes it");
        store_content(store, "backups", value.to_string().as_bytes());
    }

    /// Reads all of a repository.
    fn judge(&self, store: &Arc<MemoryStore>, restores: bool) -> papilio_backup::Result<()> {
        let keys = list_keys(&**store);
        let repository = open(store)?;
        keys?;
        let backups = repository.backups()?;
        let found = verify(&repository, &VerifyOptions::default())?;
        let mut result = match found.faults.is_empty() {
            true => Ok(()),
            false => Err(BackupError::Invalid(found.faults[0].fault.clone())),
        };
        for backup in backups.all() {
            result = result.and(self.files(&repository, &backups, backup));
            if restores {
                let device: Arc<dyn Device> = Arc::new(self.empty.snapshot());
                let fs = FileSystem::from_devices(vec![device], &OpenOptions::new().write(true))?;
                let mut target = ImageTarget::new(&fs, b"/")?;
                let options = RestoreOptions::new();
                let restored = restore(&repository, &backups, backup, &mut target, &options, &mut ());
                result = result.and(restored.map(drop));
            }
        }
        result
    }

    fn files(
        &self,
        repository: &Repository,
        backups: &papilio_backup::Backups,
        backup: &papilio_backup::Backup,
    ) -> papilio_backup::Result<()> {
        let chain = stream_chain(repository, backups, backup)?;
        let last = chain.parts().len() - 1;
        let mut paths = Vec::new();
        chain.for_each_entry(last, b"", |entry| {
            if entry.size < LARGEST {
                paths.push(entry.path);
            }
            Ok::<_, BackupError>(())
        })?;
        let mut result = Ok(());
        for path in paths {
            match chain.copy_file(last, &path, &mut Vec::new()) {
                // It is no file.
                Ok(_) | Err(papilio::stream::StreamError::Other(papilio::Error::Path { .. })) => {}
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }
}

/// Replaces numbers anywhere in a manifest.
fn change_numbers(value: &mut Value, changes: &[u8]) {
    let count = count_numbers(value);
    for change in changes.chunks_exact(2).take(CHANGES) {
        let mut left = usize::from(change[0]) % count.max(1);
        replace_number(value, &mut left, NUMBERS[usize::from(change[1]) % NUMBERS.len()]);
    }
}

fn count_numbers(value: &Value) -> usize {
    match value {
        Value::Number(_) => 1,
        Value::Array(items) => items.iter().map(count_numbers).sum(),
        Value::Object(fields) => fields.values().map(count_numbers).sum(),
        _ => 0,
    }
}

/// Replaces the number before which there are `left` others. Returns whether it was here.
fn replace_number(value: &mut Value, left: &mut usize, number: u64) -> bool {
    match value {
        Value::Number(_) if *left == 0 => {
            *value = number.into();
            true
        }
        Value::Number(_) => {
            *left -= 1;
            false
        }
        Value::Array(items) => items.iter_mut().any(|item| replace_number(item, left, number)),
        Value::Object(fields) => fields.values_mut().any(|field| replace_number(field, left, number)),
        _ => false,
    }
}
