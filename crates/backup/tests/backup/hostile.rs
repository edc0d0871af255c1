//! Repositories that somebody made up: objects with good names and bad content. Nothing panics.

use crate::changed::Repositories;
use crate::world::{Source, file_system, open, repository, restore_into};
use papilio_backup::{MemoryStore, ObjectStore, VerifyOptions, stream_chain, verify};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::Arc;

/// Returns the content of an object of a plain repository: 13 bytes of header, then zstd.
fn content(store: &MemoryStore, name: &str) -> Vec<u8> {
    let stored = store.get(name, 1 << 30).unwrap();
    let mut content = Vec::new();
    zstd::stream::Decoder::new(&stored[13..]).unwrap().read_to_end(&mut content).unwrap();
    content
}

/// Stores content under its right name, and returns that.
fn store_content(store: &MemoryStore, folder: &str, content: &[u8]) -> (String, u64) {
    let name: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut stored = b"PAPBKUP1\0".to_vec();
    stored.extend((content.len() as u32).to_le_bytes());
    stored.extend(zstd::encode_all(content, 1).unwrap());
    let place =
        if folder == "data" { format!("data/{}/{name}", &name[..2]) } else { format!("{folder}/{name}") };
    store.put(&place, &stored).unwrap();
    (name, stored.len() as u64)
}

fn change(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.truncate(at + 1),
            2 => bytes[at] ^= 1 << random.u8(..8),
            _ => {
                let from = random.usize(..bytes.len());
                let piece: Vec<u8> = bytes[from..].iter().copied().take(random.usize(..64)).collect();
                bytes.splice(at..at, piece);
            }
        }
    }
}

#[test]
fn changed_streams_and_outlines_are_refused_or_harmless() {
    let (base, made) = repository();
    let mut source = Source::new(61);
    source.backup(&made, "a", 1);
    let backups = made.backups().unwrap();
    let manifest = &backups.all()[0];
    let old = manifest.object();
    let mut random = fastrand::Rng::with_seed(62);
    let (mut loaded, mut restored, mut refused) = (0, 0, 0);
    for round in 0..120 {
        let store = Arc::new(MemoryStore::clone(&base));
        let mut changed: serde_json::Value = serde_json::from_slice(&content(&store, &old)).unwrap();
        let field = if round % 4 == 0 { "stream" } else { "outline" };
        let index = random.usize(..changed[field].as_array().unwrap().len());
        let name = changed[field][index][0].as_str().unwrap().to_owned();
        let mut bytes = content(&store, &format!("data/{}/{name}", &name[..2]));
        let (before, good) = (bytes.len() as u64, bytes.clone());
        change(&mut random, &mut bytes);
        if bytes == good {
            continue;
        }
        let (name, stored) = store_content(&store, "data", &bytes);
        changed[field][index] = serde_json::json!([name, bytes.len(), stored]);
        let sum = changed[format!("{field}_bytes")].as_u64().unwrap() - before + bytes.len() as u64;
        changed[format!("{field}_bytes")] = sum.into();
        store.delete(&old).unwrap();
        store_content(&store, "backups", changed.to_string().as_bytes());
        let repository = open(store).unwrap();
        assert_eq!(verify(&repository, &VerifyOptions::default()).unwrap().faults, []);
        let backups = repository.backups().unwrap();
        let chain = stream_chain(&repository, &backups, &backups.all()[0]);
        loaded += u32::from(chain.is_ok());
        refused += u32::from(chain.is_err());
        if let Ok(chain) = chain {
            let mut paths = Vec::new();
            let _ = chain.for_each_entry(0, b"", |entry| {
                // A made-up size is not written out here.
                if entry.size < 1 << 20 {
                    paths.push(entry.path);
                }
                Ok::<_, papilio::stream::StreamError>(())
            });
            for path in paths {
                let _ = chain.copy_file(0, &path, &mut Vec::new());
            }
        }
        if field == "stream" {
            restored += u32::from(restore_into(&repository, "latest", &file_system(512)).is_ok());
        }
    }
    assert!(loaded > 20 && refused > 20, "{loaded} loaded, {refused} refused");
    // The checksums of its commands find what is wrong with a stream.
    assert_eq!(restored, 0);
}

#[test]
fn bases_that_form_a_circle_are_named() {
    let (store, made) = repository();
    let mut source = Source::new(63);
    source.backup(&made, "a", 1);
    source.backup(&made, "b", 2);
    let backups = made.backups().unwrap();
    let mut first: serde_json::Value =
        serde_json::from_slice(&content(&store, &backups.all()[0].object())).unwrap();
    let second = backups.all()[1].manifest.snapshot;
    first["base"] = serde_json::json!({ "uuid": second.uuid.to_string(), "ctransid": second.ctransid });
    store.delete(&backups.all()[0].object()).unwrap();
    store_content(&store, "backups", first.to_string().as_bytes());
    let found = verify(&made, &VerifyOptions::default()).unwrap();
    assert_eq!(found.faults.len(), 2);
    assert!(found.faults[0].fault.contains("circle") && found.faults[0].affects.len() == 2, "{found:?}");
    let error = restore_into(&made, "b", &file_system(512)).unwrap_err().to_string();
    assert!(error.contains("circle"), "{error}");
}

/// Runs the fuzz target `backup_repository` with some seeds. `PAPILIO_REPOSITORIES` sets their
/// number.
#[test]
fn changed_repositories_are_read_to_an_error_or_an_end() {
    let repositories = Repositories::new();
    assert!(repositories.read(b""));
    let count = crate::world::setting("PAPILIO_REPOSITORIES", 3000);
    let mut sound = 0;
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut input = vec![seed as u8, random.u8(..)];
        let changes = random.usize(1..4) * 4;
        input.extend(std::iter::repeat_with(|| random.u8(..)).take(changes));
        sound += u64::from(repositories.read(&input));
    }
    assert!(sound > 0 && sound < count / 2, "{sound} of {count}");
}
