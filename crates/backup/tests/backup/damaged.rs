//! Each object in turn is lost, cut, swapped and changed: `verify` names it and the backups that
//! need it, these fail clearly, and the others are restored.

use crate::world::{Source, file_system, open, repository, restore_and_compare, restore_into};
use papilio::FileSystem;
use papilio_backup::{MemoryStore, ObjectStore, PruneOptions, VerifyOptions, plan_prune, verify};
use std::sync::Arc;

const MOST: u64 = 1 << 30;

/// Damages one object. Returns whether it did.
fn damage(store: &MemoryStore, name: &str, how: usize, other: &str) -> bool {
    let mut bytes = store.get(name, MOST).unwrap();
    match how {
        0 => {
            store.delete(name).unwrap();
            return true;
        }
        1 => bytes.truncate(bytes.len() / 2),
        2 => bytes = store.get(other, MOST).unwrap(),
        _ => {
            let at = bytes.len() * 2 / 3;
            bytes[at] ^= 0x10;
        }
    }
    store.put(name, &bytes).unwrap();
    name != other || how != 2
}

fn check(store: &Arc<MemoryStore>, source: &FileSystem, object: &str, how: usize) {
    let label = format!("{object}, damage {how}");
    let repository = open(Arc::clone(store) as Arc<dyn ObjectStore>).unwrap();
    let found = verify(&repository, &VerifyOptions::default()).unwrap();
    let backups = repository.backups().unwrap();
    if object.starts_with("backups/") && how == 0 {
        // A manifest that is lost without a trace is a base that others lack, or of no use to them.
        assert!(backups.all().len() == 3, "{label}");
        for backup in backups.all() {
            match backups.chain(backup) {
                Ok(_) => restore_and_compare(&repository, backup, source),
                Err(error) => {
                    assert!(error.to_string().contains("not in the repository"), "{label}: {error}");
                    let named = found.faults.iter().any(|fault| fault.affects.contains(&backup.id));
                    assert!(named, "{label}");
                }
            }
        }
        return;
    }
    let fault = found.faults.iter().find(|fault| fault.object == object);
    let fault = fault.unwrap_or_else(|| panic!("{label}: {:?}", found.faults));
    if object.starts_with("backups/") {
        assert!(fault.fault.contains("the backup of this manifest is lost"), "{label}: {fault:?}");
        // Without it, the objects in use are not known.
        let error = plan_prune(&backups, &PruneOptions::default()).unwrap_err().to_string();
        assert!(error.contains(object), "{label}: {error}");
        return;
    }
    assert_eq!(found.faults.len(), 1, "{label}: {:?}", found.faults);
    let mut whole = 0;
    for backup in backups.all() {
        let uses = backups
            .chain(backup)
            .unwrap()
            .iter()
            .any(|one| one.manifest.objects().any(|used| used.place() == object));
        assert_eq!(fault.affects.contains(&backup.id), uses, "{label}: {}", backup.manifest.name);
        let is_outline =
            backups.all().iter().any(|one| one.manifest.outline.iter().any(|used| used.place() == object));
        if uses && !is_outline {
            let fs = file_system(512);
            let error = restore_into(&repository, &backup.id, &fs).unwrap_err().to_string();
            assert!(error.contains(object), "{label}: {error}");
            let subvolumes = fs.subvolumes().unwrap();
            let named = subvolumes.iter().find(|one| one.name == backup.manifest.name.as_bytes());
            assert!(named.is_none_or(|one| one.received_uuid.is_nil()), "{label}: it looks complete");
        } else if whole == 0 {
            // Outlines are for single files; a restore does without them.
            restore_and_compare(&repository, backup, source);
            whole += 1;
        }
    }
}

#[test]
fn damage_is_named_with_the_backups_that_it_affects() {
    let (base, made) = repository();
    let mut source = Source::new(21);
    for (day, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    let objects: Vec<String> = base.list("").unwrap().into_iter().map(|(name, _)| name).collect();
    let damageable: Vec<&String> = objects.iter().filter(|name| name.contains('/')).collect();
    assert!(damageable.len() > 15, "{} objects", damageable.len());
    // All objects by default in one way each, all ways in a long run.
    let is_long = std::env::var_os("PAPILIO_BACKUP_KILLS").is_some();
    for (index, object) in damageable.iter().enumerate() {
        let kind = object.split('/').next().unwrap();
        let others: Vec<_> = damageable.iter().filter(|other| other.starts_with(kind)).collect();
        let own = others.iter().position(|other| *other == object).unwrap();
        let other = others[(own + 1) % others.len()];
        for how in 0..4 {
            if !is_long && how != index % 4 {
                continue;
            }
            let store = Arc::new(MemoryStore::clone(&base));
            assert!(damage(&store, object, how, other));
            check(&store, &source.fs, object, how);
        }
    }
}

#[test]
fn foreign_objects_and_orphans_are_told_apart() {
    let (store, made) = repository();
    let mut source = Source::new(22);
    source.backup(&made, "a", 1);
    store.put("data/00/letter", b"dear").unwrap();
    store.put("backups/notes.txt", b"none").unwrap();
    let name = "ab".repeat(32);
    store.put(&format!("data/ab/{name}"), b"left").unwrap();
    let found = verify(&made, &VerifyOptions { percent: 0.0 }).unwrap();
    assert_eq!((found.orphans, found.read), (1, 0));
    let named: Vec<&str> = found.faults.iter().map(|fault| &fault.object[..]).collect();
    assert_eq!(named, ["backups/notes.txt", "data/00/letter"]);
    let half = verify(&made, &VerifyOptions { percent: 50.0 }).unwrap();
    assert!(half.read < half.objects, "{half:?}");
}

#[test]
fn a_damaged_description_is_told_from_a_wrong_key() {
    let (store, _) = repository();
    let text = store.get("papilio-backup.json", MOST).unwrap();
    for at in 0..text.len() - 1 {
        let mut changed = text.clone();
        changed[at] ^= 1;
        store.put("papilio-backup.json", &changed).unwrap();
        let error = open(Arc::clone(&store) as Arc<dyn ObjectStore>).unwrap_err().to_string();
        assert!(error.starts_with("papilio-backup.json: "), "byte {at}: {error}");
    }
}
