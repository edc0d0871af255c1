//! Encrypted repositories: nothing is readable without the key.

use crate::world::{Source, StoppingStore, no_key, restore_and_compare};
use papilio_backup::{
    BackupError, Derivation, Encryption, MemoryStore, ObjectStore, Repository, Secret, VerifyOptions,
    list_keys, stream_chain, verify,
};
use sha2::Digest as _;
use std::sync::Arc;

fn encryption(secret: &[u8]) -> Encryption {
    let derivation = Derivation { memory_kib: 64, passes: 1, lanes: 1 };
    Encryption { secret: Secret::new(secret.to_vec()), derivation }
}

fn open_in(store: Arc<dyn ObjectStore>, secret: &[u8]) -> papilio_backup::Result<Repository> {
    Repository::open(store, &mut || Ok(Secret::new(secret.to_vec())))
}

fn open(store: &Arc<MemoryStore>, secret: &[u8]) -> papilio_backup::Result<Repository> {
    open_in(Arc::clone(store) as Arc<dyn ObjectStore>, secret)
}

/// Makes an encrypted repository with a backup.
fn encrypted(secret: &[u8], source: &mut Source) -> (Arc<MemoryStore>, Repository) {
    let store = Arc::new(MemoryStore::new());
    let made = Repository::init(Arc::clone(&store) as Arc<dyn ObjectStore>, Some(&encryption(secret)));
    let made = made.unwrap();
    source.backup(&made, "snapshot", 1);
    (store, made)
}

fn description(store: &MemoryStore) -> serde_json::Value {
    let text = String::from_utf8(store.get("papilio-backup.json", 1 << 16).unwrap()).unwrap();
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

/// Stores a description with its checksum.
fn describe(store: &MemoryStore, line: &str) {
    let sum = sha2::Sha256::digest(line.as_bytes());
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    store.put("papilio-backup.json", format!("{line}\n{sum}\n").as_bytes()).unwrap();
}

/// The description that the first version of this program wrote for the key `the golden key`.
const GOLDEN: &str = concat!(
    r#"{"format":"papilio-backup","version":1,"id":"189144bbfde3e9d203432baa8453fc6e","encryption":"#,
    r#"{"derivation":"argon2id","memory_kib":65536,"passes":3,"lanes":4,"#,
    r#""salt":"ef680e9307b4f038a1530ac4bd20f399","cipher":"xchacha20-poly1305","#,
    r#""nonce":"8e2f6a9d778bb92562409c0d8367a9dfeecf2502a3e623c0","#,
    r#""key":"6ad7e49f765215a04c51b80456aa5bd2dcc95f7e38ce085622dcb95bb7d0a4c97ed4f80cd54f2eeff3edeade90fb83d6"}}"#,
    "\n63b2c93601eaa8b57fa0c1a3db9368f5b9138dadbab1c414f191150f7da0cd44\n"
);

#[test]
fn old_descriptions_are_read_and_get_further_keys() {
    let store = Arc::new(MemoryStore::new());
    store.put("papilio-backup.json", GOLDEN.as_bytes()).unwrap();
    assert!(matches!(open(&store, b"another key"), Err(BackupError::WrongKey(_))));
    let opened = open(&store, b"the golden key").unwrap();
    assert_eq!(opened.id(), "189144bbfde3e9d203432baa8453fc6e");
    assert_eq!(opened.keys().unwrap()[0].id, "ef680e93");
    let lock = opened.lock("test", false).unwrap();
    opened.add_key(&lock, &encryption(b"second"), Some("second".into())).unwrap();
    let source = Source::new(57);
    let second = open(&store, b"second").unwrap();
    lock.release().unwrap();
    let made = crate::world::backup(&second, &source.fs, source.snapshot("snapshot"), 1).unwrap();
    restore_and_compare(&open(&store, b"the golden key").unwrap(), &made.backup, &source.fs);
    // Without the label and the other key, the description is of version 1 again, byte for byte.
    let lock = opened.lock("test", false).unwrap();
    opened.remove_key(&lock, "second").unwrap();
    lock.release().unwrap();
    assert_eq!(store.get("papilio-backup.json", 1 << 16).unwrap(), GOLDEN.as_bytes());
}

#[test]
fn each_of_several_keys_opens_a_repository() {
    let mut source = Source::new(53);
    let (store, made) = encrypted(b"first", &mut source);
    assert_eq!(description(&store)["version"], 1);
    let lock = made.lock("test", false).unwrap();
    let office = made.add_key(&lock, &encryption(b"second"), Some("office".into())).unwrap();
    let third = made.add_key(&lock, &encryption(b"third"), None).unwrap();
    assert_eq!(description(&store)["version"], 2);
    let keys = made.keys().unwrap();
    assert_eq!(keys.iter().map(|key| key.is_current).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!((&keys[1], &keys[2]), (&office, &third));
    for secret in [&b"first"[..], b"second", b"third"] {
        let opened = open(&store, secret).unwrap();
        restore_and_compare(&opened, &opened.backups().unwrap().all()[0], &source.fs);
        assert_eq!(opened.keys().unwrap().iter().filter(|key| key.is_current).count(), 1);
    }
    assert!(matches!(open(&store, b"fourth"), Err(BackupError::WrongKey(_))));
    let taken = made.add_key(&lock, &encryption(b"x"), Some("office".into())).unwrap_err();
    assert!(taken.to_string().contains("another key has it"), "{taken}");

    // By label and by id; the last one stays.
    made.remove_key(&lock, "office").unwrap();
    made.remove_key(&lock, &keys[0].id).unwrap();
    assert!(matches!(made.remove_key(&lock, &office.id), Err(BackupError::NoKey(_))));
    let last = made.remove_key(&lock, &third.id).unwrap_err();
    assert!(last.to_string().contains("the only key"), "{last}");
    assert!(matches!(open(&store, b"first"), Err(BackupError::WrongKey(_))));
    let opened = open(&store, b"third").unwrap();
    assert_eq!(list_keys(&*store).unwrap().len(), 1);
    assert_eq!(description(&store)["version"], 1, "programs that know one key only can read it again");
    assert_eq!(verify(&opened, &VerifyOptions::default()).unwrap().faults, []);
    lock.release().unwrap();
}

#[test]
fn there_are_not_more_keys_than_a_secret_can_be_tried_on() {
    let (store, made) = encrypted(b"first", &mut Source::new(54));
    let lock = made.lock("test", false).unwrap();
    for number in 2..=16 {
        made.add_key(&lock, &encryption(format!("secret {number}").as_bytes()), None).unwrap();
    }
    let refused = made.add_key(&lock, &encryption(b"one more"), None).unwrap_err();
    assert!(refused.to_string().contains("at most 16 keys"), "{refused}");
    open(&store, b"secret 16").unwrap();
    lock.release().unwrap();
    // Nor in a description that somebody made up.
    let mut value = description(&store);
    let keys = value["keys"].as_array().unwrap().clone();
    value["keys"] = keys.iter().chain(&keys).cloned().collect();
    describe(&store, &value.to_string());
    assert!(open(&store, b"first").unwrap_err().to_string().contains("32 keys"));
    value["keys"] = serde_json::json!([]);
    describe(&store, &value.to_string());
    assert!(open(&store, b"first").unwrap_err().to_string().contains("0 keys"));
}

#[test]
fn a_plain_repository_has_no_keys() {
    let (store, made) = crate::world::repository();
    let lock = made.lock("test", false).unwrap();
    let refused = made.add_key(&lock, &encryption(b"x"), None).unwrap_err();
    assert!(refused.to_string().contains("is not encrypted"), "{refused}");
    assert_eq!(list_keys(&*store).unwrap(), []);
    lock.release().unwrap();
}

#[test]
fn a_change_of_keys_that_stops_leaves_the_old_or_the_new_ones() {
    let mut source = Source::new(55);
    let (base, made) = encrypted(b"old", &mut source);
    let lock = made.lock("test", false).unwrap();
    made.add_key(&lock, &encryption(b"other"), Some("other".into())).unwrap();
    lock.release().unwrap();
    let (mut old, mut new) = (0, 0);
    for run in 0..60 {
        let store = Arc::new(MemoryStore::clone(&base));
        let (answered, last_counts, job) = (run / 6, run % 2 == 1, run / 2 % 3);
        let label = format!("job {job}, stopped at request {answered}");
        let stopping = Arc::new(StoppingStore::new(Arc::clone(&store), answered, last_counts));
        let result = open_in(stopping, b"old").and_then(|mut opened| {
            let lock = opened.lock("test", false)?;
            match job {
                0 => opened.change_key(&lock, &encryption(b"new")),
                1 => opened.add_key(&lock, &encryption(b"new"), None),
                _ => opened.remove_key(&lock, "other"),
            }?;
            lock.release()
        });
        // The secret that no run touches, and then those before and after.
        let opens = |secret: &[u8]| match open(&store, secret) {
            Ok(opened) => {
                assert_eq!(verify(&opened, &VerifyOptions::default()).unwrap().faults, [], "{label}");
                true
            }
            Err(BackupError::WrongKey(_)) => false,
            Err(error) => panic!("{label}: {error}"),
        };
        let found = [opens(b"old"), opens(b"new"), opens(b"other")];
        let (before, after) = match job {
            0 => ([true, false, true], [false, true, true]),
            1 => ([true, false, true], [true, true, true]),
            _ => ([true, false, true], [true, false, false]),
        };
        assert!(found == before || found == after, "{label}: {found:?}");
        assert!(result.is_err() || found == after, "{label}");
        if found == before { old += 1 } else { new += 1 }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

#[test]
fn a_changed_key_is_the_only_one() {
    let mut source = Source::new(56);
    let (store, mut made) = encrypted(b"old", &mut source);
    let lock = made.lock("test", false).unwrap();
    let first = made.keys().unwrap().remove(0);
    let changed = made.change_key(&lock, &encryption(b"new")).unwrap();
    assert!(changed.is_current && changed.id != first.id);
    // It can be changed again, by the one who changed it.
    made.change_key(&lock, &encryption(b"newer")).unwrap();
    lock.release().unwrap();
    for secret in [&b"old"[..], b"new"] {
        assert!(matches!(open(&store, secret), Err(BackupError::WrongKey(_))));
    }
    let opened = open(&store, b"newer").unwrap();
    restore_and_compare(&opened, &opened.backups().unwrap().all()[0], &source.fs);
    // A repository that was opened before goes on, and new backups are readable with the new key.
    source.backup(&made, "later", 2);
    assert_eq!(open(&store, b"newer").unwrap().backups().unwrap().all().len(), 2);

    // A key that somebody else removed meanwhile is not changed.
    let mut other = open(&store, b"newer").unwrap();
    let lock = made.lock("test", false).unwrap();
    made.change_key(&lock, &encryption(b"last")).unwrap();
    assert!(matches!(other.change_key(&lock, &encryption(b"x")), Err(BackupError::NoKey(_))));
    // Nor one without the lock.
    let thief = made.lock("test", true).unwrap();
    let broken = made.change_key(&lock, &encryption(b"y")).unwrap_err();
    assert!(matches!(broken, BackupError::LockBroken(_)));
    thief.release().unwrap();
    open(&store, b"last").unwrap();
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
        let mut description = description(&store);
        description["encryption"][field] = serde_json::from_str(value).unwrap();
        describe(&store, &description.to_string());
        let error = open(&store, b"k").unwrap_err().to_string();
        assert!(error.contains("the most are"), "{field}: {error}");
    }
}
