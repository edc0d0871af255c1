//! Encrypted devices: the bytes of their objects, wrong keys, damage of every kind of object,
//! changes of keys, clones, and the cache on disk.

use crate::memory::{delete_device, objects, options, runtime, segments};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use papilio_device::{Access, Device, OpenErrorKind, PhysicalAddress, RemoteCache, RemoteOptions};
use papilio_store::{
    Derivation, Secret, StoreDevice, StoreUrl, add_store_key, change_store_key, clone_store,
    create_checkpoint, encrypt_store, list_checkpoints, remove_store_key, store_info, store_keys,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
const MIB: usize = 1 << 20;
const MARKER: &[u8] = b"a secret line of a file";
/// Cheap: a test opens many devices.
pub(crate) const COST: Derivation = Derivation { memory_kib: 64, passes: 1, lanes: 1 };

pub(crate) fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn place(memory: &Arc<InMemory>, name: &str) -> StoreUrl {
    StoreUrl::in_store("memory", Arc::clone(memory) as Arc<dyn ObjectStore>, name)
}

fn url(memory: &Arc<InMemory>, name: &str) -> StoreUrl {
    place(memory, name).with_secret(secret("right"))
}

fn create(memory: &Arc<InMemory>, name: &str) -> StoreDevice {
    encrypt_store(&place(memory, name), &secret("right"), COST).unwrap();
    StoreDevice::create(&url(memory, name), SIZE, &options()).unwrap()
}

fn open(url: &StoreUrl, access: Access) -> Result<StoreDevice, OpenErrorKind> {
    StoreDevice::open(url, access, &options())
}

/// Content that is easy to find where it is not encrypted.
fn marked(length: usize, seed: u8) -> Vec<u8> {
    let line = [MARKER, &[b' ', b'a' + seed, b'\n']].concat();
    line.iter().copied().cycle().take(length).collect()
}

fn write(device: &dyn Device, offset: usize, bytes: &[u8]) {
    device.write_at(bytes, PhysicalAddress(offset as u64)).unwrap();
}

fn read(device: &dyn Device, offset: usize, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0xee; length];
    device.read_at(&mut bytes, PhysicalAddress(offset as u64)).map(|()| bytes)
}

fn stored(memory: &InMemory, path: &Path) -> Vec<u8> {
    runtime().block_on(async { memory.get(path).await.unwrap().bytes().await.unwrap() }).to_vec()
}

fn store(memory: &InMemory, path: &Path, bytes: Vec<u8>) {
    runtime().block_on(memory.put(path, bytes.into())).unwrap();
}

/// Returns the kind of an object: the folder below the device's prefix, or its name.
fn kind(device: &str, path: &Path) -> String {
    let name = path.as_ref().strip_prefix(&format!("{device}/")).unwrap();
    name.split('/').next().unwrap().to_owned()
}

fn shows(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn objects_show_neither_content_nor_names() {
    let memory = Arc::new(InMemory::new());
    let device = create(&memory, "device");
    write(&device, 0, &marked(4 * MIB, 0));
    write(&device, 20 * MIB, &marked(4096, 1));
    device.flush().unwrap();
    // Parts of the log go once they are compacted.
    let early = memory.fork();
    drop(device);
    let device_url = url(&memory, "device");
    create_checkpoint(&device_url, Some("a-secret-checkpoint"), None).unwrap();
    clone_store(&device_url, &url(&memory, "secret-clone")).unwrap();
    let clone = open(&url(&memory, "secret-clone"), Access::ReadWrite).unwrap();
    write(&clone, 30 * MIB, &marked(2 * MIB, 2));
    drop(clone);
    let mut kinds = BTreeMap::<String, usize>::new();
    for store in [&early, &*memory] {
        for (device, path) in ["device", "secret-clone"]
            .into_iter()
            .flat_map(|device| objects(store, device).into_iter().map(move |path| (device, path)))
        {
            let bytes = stored(store, &path);
            let texts: [&[u8]; 6] =
                [MARKER, b"papilio-device", b"PAPSEG", b"a-secret-checkpoint", b"secret-clone", b"device"];
            for text in texts {
                assert!(!shows(&bytes, text), "{path} shows {}", String::from_utf8_lossy(text));
            }
            *kinds.entry(kind(device, &path)).or_default() += 1;
        }
    }
    let found: Vec<&str> = kinds.keys().map(String::as_str).collect();
    for expected in ["clone-of", "clones", "compacted", "keys", "manifest", "segments", "wal"] {
        assert!(found.contains(&expected), "{found:?}");
    }
    // The same in a device that is not encrypted: the test would see it.
    let plain = StoreDevice::create(&place(&memory, "plain"), SIZE, &options()).unwrap();
    write(&plain, 0, &marked(4 * MIB, 0));
    drop(plain);
    assert!(objects(&memory, "plain").iter().any(|path| shows(&stored(&memory, path), MARKER)));
}

#[test]
fn a_wrong_key_and_none_are_said_in_one_line() {
    let memory = Arc::new(InMemory::new());
    drop(create(&memory, "device"));
    let wrong = place(&memory, "device").with_secret(secret("wrong"));
    let before = objects(&memory, "device");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = open(&wrong, access).unwrap_err().to_string();
        assert_eq!(error, "it is encrypted, and none of its keys opens with this secret");
        let error = open(&place(&memory, "device"), access).unwrap_err().to_string();
        assert!(error.starts_with("it is encrypted: give a key with --key-file"), "{error}");
    }
    let refused = |outcome: Result<(), OpenErrorKind>| {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("none of its keys opens"), "{error}");
    };
    refused(StoreDevice::create(&wrong, SIZE, &options()).map(drop));
    refused(StoreDevice::clean(&wrong, &options()).map(drop));
    refused(StoreDevice::grow(&wrong, 2 * SIZE, &options()).map(drop));
    refused(store_info(&wrong, &options()).map(drop));
    refused(list_checkpoints(&wrong).map(drop));
    refused(create_checkpoint(&wrong, None, None).map(drop));
    refused(clone_store(&wrong, &place(&memory, "clone")));
    refused(add_store_key(&wrong, &secret("new"), COST).map(drop));
    refused(change_store_key(&wrong, None, &secret("new"), COST).map(drop));
    assert_eq!(objects(&memory, "device"), before, "nothing was written");
    let again = encrypt_store(&place(&memory, "device"), &secret("x"), COST).unwrap_err().to_string();
    assert!(again.contains("there is a device already"), "{again}");
    drop(StoreDevice::create(&place(&memory, "plain"), SIZE, &options()).unwrap());
    assert!(encrypt_store(&place(&memory, "plain"), &secret("x"), COST).is_err());
    let error = store_keys(&place(&memory, "plain")).unwrap_err().to_string();
    assert_eq!(error, "it is not encrypted");
    assert!(matches!(store_keys(&place(&memory, "none")), Err(OpenErrorKind::NotFound)));
    // Keys without a device wait for one; a clone that is not encrypted does not take them.
    encrypt_store(&place(&memory, "waits"), &secret("right"), COST).unwrap();
    assert!(matches!(open(&url(&memory, "waits"), Access::ReadOnly), Err(OpenErrorKind::NotFound)));
    let error = clone_store(&place(&memory, "plain"), &place(&memory, "waits")).unwrap_err().to_string();
    assert!(error.contains("keys of an encrypted device"), "{error}");
    encrypt_store(&place(&memory, "waits"), &secret("right"), COST).unwrap();
    assert_eq!(segments(&memory, "waits").len() + objects(&memory, "waits").len(), 1);
    drop(StoreDevice::create(&url(&memory, "waits"), SIZE, &options()).unwrap());
    assert!(store_info(&url(&memory, "waits"), &options()).unwrap().is_encrypted);
    assert!(!store_info(&place(&memory, "plain"), &options()).unwrap().is_encrypted);
}

/// The content of the device of [`damage_of_every_object_is_an_error`].
fn expected() -> [(usize, Vec<u8>); 4] {
    [
        (0, marked(2 * MIB, 0)),
        (4 * MIB, marked(2 * MIB, 1)),
        (20 * MIB, marked(3 * 4096, 2)),
        (24 * MIB, marked(4096, 3)),
    ]
}

/// Opens the device in a changed store and reads everything. Panics if bytes are wrong. Returns
/// whether everything was there.
fn is_whole(memory: InMemory) -> bool {
    let memory = Arc::new(memory);
    let Ok(device) = open(&url(&memory, "device"), Access::ReadOnly) else { return false };
    expected().into_iter().all(|(offset, content)| match read(&device, offset, content.len()) {
        Ok(found) => {
            assert!(found == content, "other bytes at {offset}");
            true
        }
        Err(_) => false,
    })
}

#[test]
fn damage_of_every_object_is_an_error() {
    let memory = Arc::new(InMemory::new());
    let device = create(&memory, "device");
    let [first, second, third, fourth] = expected();
    write(&device, first.0, &first.1);
    device.flush().unwrap();
    write(&device, second.0, &second.1);
    write(&device, third.0, &third.1);
    device.close().unwrap();
    drop(device);
    let device = open(&url(&memory, "device"), Access::ReadWrite).unwrap();
    write(&device, fourth.0, &fourth.1);
    device.flush().unwrap();
    // The last write is in the log only.
    let memory = memory.fork();
    drop(device);
    assert!(is_whole(memory.fork()));
    let paths = objects(&memory, "device");
    let mut seen = BTreeMap::<String, usize>::new();
    for (at, path) in paths.iter().enumerate() {
        let original = stored(&memory, path);
        let kind = kind("device", path);
        let same_kind = |other: &&Path| *other != path && self::kind("device", other) == kind;
        let other = paths[at..].iter().chain(&paths).find(same_kind).map(|other| stored(&memory, other));
        let flipped = |at: usize| {
            let mut bytes = original.clone();
            bytes[at] ^= 0x10;
            bytes
        };
        let middle = original.len() / 2;
        let mut changes = vec![flipped(middle), flipped(original.len() - 1), original[..middle].to_vec()];
        changes.extend([Vec::new(), vec![0; 32]]);
        if kind != "keys" {
            changes.extend(other);
        }
        for changed in changes {
            let damaged = memory.fork();
            store(&damaged, path, changed);
            if !is_whole(damaged) {
                *seen.entry(kind.clone()).or_default() += 1;
            }
        }
    }
    for kind in ["compacted", "keys", "manifest", "segments", "wal"] {
        assert!(seen.get(kind) >= Some(&4), "{kind}: {seen:?}");
    }
}

#[test]
fn objects_of_a_clone_cannot_take_the_place_of_the_originals() {
    let memory = Arc::new(InMemory::new());
    let device = create(&memory, "device");
    write(&device, 0, &marked(MIB, 0));
    drop(device);
    clone_store(&url(&memory, "device"), &url(&memory, "clone")).unwrap();
    // Until it has a manifest with the number of the device's latest.
    for number in 0..10 {
        let clone = open(&url(&memory, "clone"), Access::ReadWrite).unwrap();
        write(&clone, 8 * MIB, &marked(4096, number));
    }
    let mut exchanged = 0;
    for path in objects(&memory, "clone") {
        let Some(name) = path.as_ref().strip_prefix("clone/") else { panic!("{path}") };
        let original = Path::from(format!("device/{name}"));
        if name.starts_with("keys/") || !objects(&memory, "device").contains(&original) {
            continue;
        }
        let changed = Arc::new(memory.fork());
        store(&changed, &original, stored(&memory, &path));
        match open(&url(&changed, "device"), Access::ReadOnly) {
            Ok(device) => assert!(read(&device, 0, MIB).is_ok_and(|bytes| bytes == marked(MIB, 0))),
            Err(error) => {
                assert!(error.to_string().contains("damaged, cut, or that of another name"), "{error}");
                exchanged += 1;
            }
        }
    }
    assert!(exchanged > 0, "no object of the clone had the name of one that is needed");
}

#[test]
fn keys_are_added_changed_and_removed_without_touching_data() {
    let memory = Arc::new(InMemory::new());
    let device = create(&memory, "device");
    write(&device, 0, &marked(2 * MIB, 0));
    device.flush().unwrap();
    let data = || {
        let data = objects(&memory, "device").into_iter().filter(|path| kind("device", path) != "keys");
        data.map(|path| (path.clone(), stored(&memory, &path))).collect::<BTreeMap<_, _>>()
    };
    let before = data();
    let with = |text: &str| place(&memory, "device").with_secret(secret(text));
    let opens = |text: &str| open(&with(text), Access::ReadOnly).is_ok();
    assert_eq!(add_store_key(&with("right"), &secret("second"), COST).unwrap(), 1);
    assert_eq!(add_store_key(&with("second"), &secret("third"), COST).unwrap(), 2);
    let after = data();
    let is_kept = before.iter().all(|(path, bytes)| after.get(path) == Some(bytes));
    assert!(is_kept, "no data is written anew");
    let slots =
        || store_keys(&place(&memory, "device")).unwrap().iter().map(|key| key.slot).collect::<Vec<_>>();
    assert_eq!(slots(), [0, 1, 2]);
    assert!(["right", "second", "third"].iter().all(|text| opens(text)) && !opens("fourth"));
    // A key that stays is needed.
    let error = remove_store_key(&with("second"), 1).unwrap_err().to_string();
    assert!(error.contains("none of its keys opens"), "{error}");
    remove_store_key(&with("third"), 1).unwrap();
    assert_eq!(slots(), [0, 2]);
    assert!(!opens("second") && opens("right") && opens("third"));
    assert_eq!(change_store_key(&with("right"), None, &secret("new"), COST).unwrap(), 0);
    assert_eq!(change_store_key(&with("new"), Some(2), &secret("other"), COST).unwrap(), 2);
    assert!(!opens("right") && !opens("third") && opens("new") && opens("other"));
    remove_store_key(&with("new"), 2).unwrap();
    for (slot, reason) in [(0, "the last key"), (7, "no key 7")] {
        let error = remove_store_key(&with("new"), slot).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(change_store_key(&with("new"), Some(5), &secret("x"), COST).is_err());
    let keys: Vec<_> =
        objects(&memory, "device").into_iter().filter(|path| kind("device", path) == "keys").collect();
    assert_eq!(keys.len(), 1, "old keys are deleted: {keys:?}");
    // The writer goes on.
    write(&device, 10 * MIB, &marked(4096, 1));
    device.flush().unwrap();
    drop(device);
    let reader = open(&with("new"), Access::ReadOnly).unwrap();
    assert!(read(&reader, 0, 2 * MIB).unwrap() == marked(2 * MIB, 0));
    assert!(read(&reader, 10 * MIB, 4096).unwrap() == marked(4096, 1));
    drop(reader);
    for slot in 1..32 {
        assert_eq!(add_store_key(&with("new"), &secret(&slot.to_string()), COST).unwrap(), slot);
    }
    let error = add_store_key(&with("new"), &secret("more"), COST).unwrap_err().to_string();
    assert!(error.contains("32 keys already"), "{error}");
    assert!(opens("31"));
}

#[test]
fn clones_and_checkpoints_share_the_key() {
    let memory = Arc::new(InMemory::new());
    let device = create(&memory, "a");
    write(&device, 0, &marked(2 * MIB, 0));
    drop(device);
    create_checkpoint(&url(&memory, "a"), Some("one"), None).unwrap();
    let device = open(&url(&memory, "a"), Access::ReadWrite).unwrap();
    write(&device, 0, &marked(2 * MIB, 1));
    write(&device, 8 * MIB, &marked(4096, 1));
    drop(device);
    let at_one = url(&memory, "a").at_checkpoint("one");
    assert!(read(&open(&at_one, Access::ReadOnly).unwrap(), 0, 2 * MIB).unwrap() == marked(2 * MIB, 0));
    clone_store(&at_one, &url(&memory, "b")).unwrap();
    clone_store(&url(&memory, "b"), &url(&memory, "c")).unwrap();
    let clone = open(&url(&memory, "c"), Access::ReadWrite).unwrap();
    assert!(read(&clone, 0, 2 * MIB).unwrap() == marked(2 * MIB, 0));
    write(&clone, MIB, &marked(MIB, 2));
    drop(clone);
    // The keys of each change apart.
    change_store_key(&url(&memory, "c"), None, &secret("of-c"), COST).unwrap();
    let c = place(&memory, "c").with_secret(secret("of-c"));
    assert!(open(&url(&memory, "c"), Access::ReadOnly).is_err());
    StoreDevice::clean(&url(&memory, "a"), &options()).unwrap();
    StoreDevice::clean(&c, &options()).unwrap();
    let found = read(&open(&c, Access::ReadOnly).unwrap(), 0, 2 * MIB).unwrap();
    assert!(found[..MIB] == marked(2 * MIB, 0)[..MIB] && found[MIB..] == marked(MIB, 2));
    assert!(
        read(&open(&url(&memory, "a"), Access::ReadOnly).unwrap(), 0, 2 * MIB).unwrap() == marked(2 * MIB, 1)
    );
    assert_eq!(store_info(&c, &options()).unwrap().ancestor_segments, 1);
    delete_device(&memory, "a");
    assert!(
        open(&c, Access::ReadOnly)
            .and_then(|device| read(&device, 0, 4096).map_err(OpenErrorKind::Io))
            .is_err()
    );
}

fn files(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn the_cache_on_disk_is_encrypted() {
    let memory = Arc::new(InMemory::new());
    let directory = tempfile::tempdir().unwrap();
    let cached = RemoteOptions { cache: RemoteCache::Directory(directory.path().to_owned()), ..options() };
    let device = create(&memory, "device");
    write(&device, 0, &marked(8 * MIB, 0));
    write(&device, 20 * MIB, &marked(4096, 1));
    drop(device);
    let gets = || {
        let device = StoreDevice::open(&url(&memory, "device"), Access::ReadOnly, &cached).unwrap();
        assert!(read(&device, 0, 8 * MIB).unwrap() == marked(8 * MIB, 0));
        assert!(read(&device, 20 * MIB, 4096).unwrap() == marked(4096, 1));
        device.requests().segments.gets
    };
    assert!(gets() > 0);
    assert_eq!(gets(), 0);
    let found = files(directory.path());
    assert!(!found.is_empty());
    for file in &found {
        assert!(!shows(&std::fs::read(file).unwrap(), MARKER), "{}", file.display());
    }
    // A file with a right checksum under another name is not believed.
    let renamed: Vec<Vec<u8>> = found.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (file, bytes) in found.iter().zip(renamed.iter().cycle().skip(1)) {
        std::fs::write(file, bytes).unwrap();
    }
    assert!(gets() > 0);
}
