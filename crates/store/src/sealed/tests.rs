//! Encrypted objects: their ranges, and every way to damage or exchange them.

use super::chunks::{CHUNK, OVERHEAD, STORED, content_length, stored_length};
use super::{SealFault, SealedStore, Sealing};
use crate::remote::runtime;
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, Result};
use papilio_keys::SecretKey;
use slatedb::bytes::Bytes;
use std::sync::Arc;

struct Place {
    raw: Arc<InMemory>,
    sealed: SealedStore,
}

fn sealing(key: u8, prefix: &str, id: u8) -> Arc<Sealing> {
    Arc::new(Sealing::new(&SecretKey::new([key; 32]), vec![(Path::from(prefix), [id; 16])]))
}

impl Place {
    fn new() -> Self {
        let raw = Arc::new(InMemory::new());
        Self { sealed: SealedStore::new(Arc::clone(&raw) as _, sealing(1, "device", 1)), raw }
    }

    fn put(&self, name: &str, content: &[u8]) {
        run(self.sealed.put(&Path::from(name), content.to_vec().into())).unwrap();
    }

    fn get(&self, name: &str) -> Result<Bytes> {
        run(async { self.sealed.get(&Path::from(name)).await?.bytes().await })
    }

    fn stored(&self, name: &str) -> Vec<u8> {
        run(async { self.raw.get(&Path::from(name)).await.unwrap().bytes().await.unwrap() }).to_vec()
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        run(self.raw.put(&Path::from(name), bytes.to_vec().into())).unwrap();
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    runtime().unwrap().block_on(work)
}

fn bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(length as u64).fill(&mut bytes);
    bytes
}

#[test]
fn lengths_follow_from_one_another() {
    let mut possible = std::collections::BTreeSet::new();
    for length in 0..3 * CHUNK + 2 {
        let stored = stored_length(length);
        assert_eq!(content_length(stored), Some(length));
        assert!(possible.insert(stored), "{length}");
    }
    for stored in 0..3 * STORED {
        assert_eq!(content_length(stored).is_some(), possible.contains(&stored), "{stored}");
    }
    assert_eq!(content_length(0), None);
}

#[test]
fn ranges_are_those_of_the_content() {
    let place = Place::new();
    let plain = InMemory::new();
    let mut random = fastrand::Rng::with_seed(3);
    let chunk = CHUNK as usize;
    for length in [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, 5 * chunk + 77] {
        let (name, content) = (format!("device/o{length}"), bytes(length));
        let path = Path::from(name.as_str());
        place.put(&name, &content);
        run(plain.put(&path, content.clone().into())).unwrap();
        assert_eq!(place.stored(&name).len() as u64, stored_length(length as u64));
        assert_eq!(place.get(&name).unwrap(), content);
        assert_eq!(run(place.sealed.head(&path)).unwrap().size, length as u64);
        for _ in 0..200 {
            let (one, other) = (random.u64(0..=length as u64 + 3), random.u64(0..=length as u64 + 3));
            let range = match random.u8(0..3) {
                0 => GetRange::Bounded(one.min(other)..one.max(other)),
                1 => GetRange::Offset(one),
                _ => GetRange::Suffix(one.max(1)),
            };
            let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
            let read = async |store: &dyn ObjectStore| {
                let answer = store.get_opts(&path, options.clone()).await?;
                let (range, size) = (answer.range.clone(), answer.meta.size);
                Ok::<_, object_store::Error>((range, size, answer.bytes().await?))
            };
            match (run(read(&place.sealed)), run(read(&plain))) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{range:?} of {length}"),
                (Err(_), Err(_)) => {}
                (found, expected) => panic!("{range:?} of {length}: {found:?}, not {expected:?}"),
            }
        }
    }
    let listed: Vec<_> = run(place.sealed.list(None).try_collect()).unwrap();
    let expected: Vec<_> = run(plain.list(None).try_collect()).unwrap();
    let sizes = |list: &[object_store::ObjectMeta]| {
        let mut sizes: Vec<_> = list.iter().map(|meta| (meta.location.clone(), meta.size)).collect();
        sizes.sort();
        sizes
    };
    assert_eq!(sizes(&listed), sizes(&expected));
}

fn assert_fault<T: std::fmt::Debug>(outcome: Result<T>, what: &str) {
    let error = outcome.expect_err(what);
    let fault = SealFault::find(&error).unwrap_or_else(|| panic!("{what}: {error}"));
    assert!(fault.to_string().starts_with("device/"), "{fault}");
    assert!(!slatedb_common::retry::should_retry(&error), "{what}");
}

#[test]
fn changed_objects_are_refused() {
    let place = Place::new();
    let name = "device/wal/1.sst";
    place.put(name, &bytes(2 * CHUNK as usize + 100));
    place.put("device/wal/2.sst", &bytes(2 * CHUNK as usize + 100));
    let stored = place.stored(name);
    let other = place.stored("device/wal/2.sst");
    let chunks: Vec<&[u8]> = stored.chunks(STORED as usize).collect();
    for at in (0..stored.len()).step_by(7).chain([stored.len() - 1]) {
        let mut changed = stored.clone();
        changed[at] ^= 1 << (at % 8);
        place.store(name, &changed);
        assert_fault(place.get(name), &format!("bit at {at}"));
    }
    for length in (0..stored.len()).step_by(13).chain([STORED as usize, 2 * STORED as usize]) {
        place.store(name, &stored[..length]);
        assert_fault(place.get(name), &format!("cut at {length}"));
    }
    let join = |order: &[usize]| order.iter().flat_map(|at| chunks[*at].to_vec()).collect::<Vec<u8>>();
    for (what, changed) in [
        ("swapped chunks", join(&[1, 0, 2])),
        ("a chunk twice", join(&[0, 0, 2])),
        ("a chunk less", join(&[0, 2])),
        ("a chunk more", join(&[0, 1, 1, 2])),
        ("more after the end", [stored.clone(), other[..STORED as usize].to_vec()].concat()),
        ("a chunk of another object", [chunks[0], &other[STORED as usize..]].concat()),
        ("another object", other.clone()),
        ("a plain object", bytes(500)),
        ("nothing", Vec::new()),
        ("zeros", vec![0; OVERHEAD as usize]),
    ] {
        place.store(name, &changed);
        assert_fault(place.get(name), what);
    }
    // SlateDB takes an empty part of the log as one without content.
    for empty in [vec![], vec![0; OVERHEAD as usize], vec![7; 10]] {
        place.store(name, &empty);
        assert_fault(run(place.sealed.head(&Path::from(name))), "an empty object");
        let listed: Vec<_> = run(place.sealed.list(Some(&Path::from("device/wal"))).try_collect()).unwrap();
        assert!(!empty.is_empty() || listed.iter().all(|meta| meta.size > 0));
    }
    place.store(name, &stored);
    assert_eq!(place.get(name).unwrap(), bytes(2 * CHUNK as usize + 100));
}

#[test]
fn objects_of_other_keys_and_devices_are_refused() {
    let place = Place::new();
    place.put("device/a", b"content");
    let stored = place.stored("device/a");
    assert!(!stored.windows(7).any(|part| part == b"content"));
    place.put("device/b", b"content");
    let again = place.stored("device/b");
    assert!(stored[..16] != again[..16] && stored[16..23] != again[16..23], "a nonce is used once");
    let with = |sealing| SealedStore::new(Arc::clone(&place.raw) as _, sealing);
    let read = |store: &SealedStore, name: &str| {
        let path = Path::from(name);
        run(async { store.get(&path).await?.bytes().await })
    };
    assert_fault(read(&with(sealing(2, "device", 1)), "device/a"), "another key");
    assert_fault(read(&with(sealing(1, "device", 2)), "device/a"), "another device");
    assert!(read(&with(sealing(1, "other", 1)), "device/a").is_err(), "no known device");
    // Below another prefix it is the same device: it may be copied as a whole.
    place.store("moved/a", &stored);
    assert_eq!(read(&with(sealing(1, "moved", 1)), "moved/a").unwrap(), &b"content"[..]);
    run(place.sealed.copy(&Path::from("device/a"), &Path::from("device/c"))).unwrap();
    assert_eq!(place.get("device/c").unwrap(), &b"content"[..]);
    let exists = run(place.sealed.copy_if_not_exists(&Path::from("device/a"), &Path::from("device/c")));
    assert!(matches!(exists, Err(object_store::Error::AlreadyExists { .. })), "{exists:?}");
    // Keys are no content.
    place.store("device/keys/00000000000000000001.key", b"text");
    assert!(place.get("device/keys/00000000000000000001.key").is_err());
}

#[test]
fn objects_in_parts_are_those_in_one() {
    let place = Place::new();
    let mut random = fastrand::Rng::with_seed(9);
    for total in [0, 1, CHUNK as usize, 5 << 20, 13 << 20, (20 << 20) + 17] {
        let (path, content) = (Path::from(format!("device/parts{total}")), bytes(total));
        run(async {
            let mut upload = place.sealed.put_multipart(&path).await.unwrap();
            let mut rest = &content[..];
            while !rest.is_empty() {
                let (part, after) = rest.split_at(random.usize(1..=5 << 20).min(rest.len()));
                upload.put_part(part.to_vec().into()).await.unwrap();
                rest = after;
            }
            upload.complete().await.unwrap();
        });
        assert!(place.get(path.as_ref()).unwrap() == content, "{total}");
        assert_eq!(place.stored(path.as_ref()).len() as u64, stored_length(total as u64));
    }
}
