//! Encrypted repositories: nothing is readable without the key.

use crate::world::{Source, no_key, restore_and_compare};
use papilio_backup::{
    BackupError, Derivation, Encryption, MemoryStore, ObjectStore, Repository, Secret, VerifyOptions,
    stream_chain, verify,
};
use std::sync::Arc;

fn encryption(secret: &[u8]) -> Encryption {
    let derivation = Derivation { memory_kib: 64, passes: 1, lanes: 1 };
    Encryption { secret: Secret::new(secret.to_vec()), derivation }
}

fn open(store: &Arc<MemoryStore>, secret: &[u8]) -> papilio_backup::Result<Repository> {
    Repository::open(Arc::clone(store) as Arc<dyn ObjectStore>, &mut || Ok(Secret::new(secret.to_vec())))
}

#[test]
fn encrypted_backups_are_restored_with_the_key_only() {
    let store = Arc::new(MemoryStore::new());
    let made =
        Repository::init(Arc::clone(&store) as Arc<dyn ObjectStore>, Some(&encryption(b"open sesame")));
    let made = made.unwrap();
    assert!(made.is_encrypted());
    let mut source = Source::new(51);
    source.fs.write("/s/secret name", b"the secret content of this file".repeat(20)).unwrap();
    for (day, name) in ["visible-name-1", "visible-name-2"].into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    let wrong = open(&store, b"open barley").unwrap_err();
    assert_eq!(wrong.to_string(), "memory: wrong passphrase or key file");
    let none = Repository::open(Arc::clone(&store) as Arc<dyn ObjectStore>, &mut no_key).unwrap_err();
    assert!(matches!(none, BackupError::KeyNeeded(_)));
    let opened = open(&store, b"open sesame").unwrap();
    let backups = opened.backups().unwrap();
    for backup in backups.all() {
        restore_and_compare(&opened, backup, &source.fs);
    }
    let chain = stream_chain(&opened, &backups, backups.find("latest").unwrap()).unwrap();
    let mut content = Vec::new();
    chain.copy_file(1, b"secret name", &mut content).unwrap();
    assert!(content.starts_with(b"the secret content"));
    assert_eq!(verify(&opened, &VerifyOptions::default()).unwrap().faults, []);
    // A lock that is held names nobody to those without the key.
    let lock = opened.lock("papilio backup create", false).unwrap();
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    // A short name of a host is in some random bytes.
    let host: &[u8] = if host.len() > 4 { &host } else { b"\"host\"" };
    let words: [&[u8]; 5] = [b"secret", b"visible-name", b"memory", b"create", host];
    for (name, _) in store.list("").unwrap() {
        let bytes = store.get(&name, 1 << 30).unwrap();
        for word in words {
            let is_there = bytes.windows(word.len()).any(|part| part == word);
            // The description says how much memory the key needs.
            let may = name == "papilio-backup.json" && word == b"memory";
            assert!(!is_there || may, "{name} has {}", String::from_utf8_lossy(word));
        }
    }
    lock.release().unwrap();
}

#[test]
fn objects_of_another_repository_are_refused() {
    let stores = [0, 1].map(|_| Arc::new(MemoryStore::new()));
    let mut source = Source::new(52);
    for store in &stores {
        let store = Arc::clone(store) as Arc<dyn ObjectStore>;
        let made = Repository::init(store, Some(&encryption(b"same"))).unwrap();
        source.backup(&made, &format!("s{}", made.id()), 1);
    }
    let theirs = stores[1].list("backups/").unwrap()[0].0.clone();
    stores[0].put(&theirs, &stores[1].get(&theirs, 1 << 30).unwrap()).unwrap();
    let opened = open(&stores[0], b"same").unwrap();
    let found = verify(&opened, &VerifyOptions::default()).unwrap();
    assert_eq!(found.faults.len(), 1);
    assert!(found.faults[0].object == theirs && found.faults[0].fault.contains("belongs elsewhere"));
    assert_eq!(opened.backups().unwrap().all().len(), 1);
}

#[test]
fn a_description_cannot_ask_for_endless_work() {
    for (field, value) in [("memory_kib", "4294967295"), ("passes", "4000000000"), ("lanes", "100000")] {
        let store = Arc::new(MemoryStore::new());
        Repository::init(Arc::clone(&store) as Arc<dyn ObjectStore>, Some(&encryption(b"k"))).unwrap();
        let text = String::from_utf8(store.get("papilio-backup.json", 1 << 16).unwrap()).unwrap();
        let mut description: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        description["encryption"][field] = serde_json::from_str(value).unwrap();
        let line = description.to_string();
        let sum = sha2::Sha256::digest(line.as_bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        store.put("papilio-backup.json", format!("{line}\n{sum}\n").as_bytes()).unwrap();
        let error = open(&store, b"k").unwrap_err().to_string();
        assert!(error.contains("the most are"), "{field}: {error}");
    }
}

use sha2::Digest as _;
