//! Daily snapshots that are pruned: each that remains is restored and compared.

use crate::world::{Source, repository, restore_and_compare, setting};
use papilio_backup::{
    BackupError, Kept, MemoryStore, ObjectStore, PruneOptions, Repository, Retention, VerifyOptions,
    plan_prune, prune, verify,
};
use std::sync::Arc;

const DAY: i64 = 86_400;

fn prune_with(repository: &Repository, options: &PruneOptions) -> papilio_backup::Pruned {
    let lock = repository.lock("papilio backup prune", false).unwrap();
    let pruned = prune(repository, &lock, options).unwrap();
    lock.release().unwrap();
    let found = verify(repository, &VerifyOptions::default()).unwrap();
    assert_eq!((found.faults, found.orphans), (Vec::new(), 0));
    pruned
}

#[test]
fn daily_snapshots_are_pruned_and_the_rest_is_whole() {
    let (store, made) = repository();
    let mut source = Source::new(31);
    let days = setting("PAPILIO_BACKUP_DAYS", 14) as i64;
    for day in 0..days {
        // From a Monday.
        source.backup(&made, &format!("day-{day:02}"), (19_723 + day) * DAY + 3600);
    }
    let retention = Retention { last: 2, daily: 4, weekly: 3, monthly: 2, yearly: 1 };
    let backups = made.backups().unwrap();
    let keep = PruneOptions { retention, merge: false };
    let plan = plan_prune(&backups, &keep).unwrap();
    let by_rules = plan.kept.iter().filter(|(_, why)| matches!(why, Kept::ByRules(_))).count();
    // All before the last one are bases of it.
    assert_eq!((plan.kept.len(), plan.removed.len()), (days as usize, 0));
    assert!(plan.kept.iter().any(|(_, why)| matches!(why, Kept::BaseOf(_))));
    assert_eq!(prune_with(&made, &keep).removed, 0);
    // Joined, only what the rules keep remains.
    let copy = Arc::new(MemoryStore::clone(&store));
    let merge = PruneOptions { retention, merge: true };
    let pruned = prune_with(&made, &merge);
    assert_eq!(pruned.not_merged, []);
    assert_eq!(pruned.removed, days as usize - by_rules);
    assert!(pruned.merged > 0 && pruned.objects > 0);
    let left = made.backups().unwrap();
    assert_eq!(left.all().len(), by_rules);
    for backup in left.all() {
        restore_and_compare(&made, backup, &source.fs);
    }
    let size = |store: &MemoryStore| store.list("data/").unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(size(&store) < size(&copy), "{} of {}", size(&store), size(&copy));
    // A second time there is nothing to do, and the series goes on.
    let again = prune_with(&made, &merge);
    assert_eq!((again.removed, again.merged, again.objects), (0, 0, 0));
    let next = source.backup(&made, "next", (19_723 + days) * DAY);
    assert!(next.backup.manifest.base.is_some());
    restore_and_compare(&made, &next.backup, &source.fs);
}

#[test]
fn a_kept_backup_keeps_its_bases_only() {
    let (_, made) = repository();
    let mut source = Source::new(32);
    for day in 0..5 {
        source.backup(&made, &format!("d{day}"), day * DAY);
    }
    // The last one is full, so the others are not needed.
    source.change(5);
    let id = source.snapshot("full");
    let (lock, mut observer) = (made.lock("test", false).unwrap(), ());
    let mut snapshot = papilio_backup::ImageSnapshot::new(&source.fs, id, "x".into(), &mut observer).unwrap();
    let options = crate::world::options(6 * DAY).full(true);
    papilio_backup::create(&made, &lock, &mut snapshot, &options).unwrap();
    lock.release().unwrap();
    let keep = |last| PruneOptions { retention: Retention { last, ..Retention::default() }, merge: false };
    let pruned = prune_with(&made, &keep(1));
    assert_eq!(pruned.removed, 5);
    let left = made.backups().unwrap();
    assert_eq!(left.all().len(), 1);
    restore_and_compare(&made, &left.all()[0], &source.fs);
}

#[test]
fn a_prune_whose_lock_was_broken_deletes_nothing() {
    let (store, made) = repository();
    let mut source = Source::new(33);
    source.backup(&made, "a", 1);
    store.put(&format!("data/ab/{}", "ab".repeat(32)), b"orphan").unwrap();
    let lock = made.lock("prune", false).unwrap();
    let other = made.lock("create", true).unwrap();
    let before = store.list("").unwrap();
    let error = prune(&made, &lock, &PruneOptions::default()).unwrap_err();
    assert!(matches!(error, BackupError::LockBroken(_)), "{error}");
    drop(lock);
    assert_eq!(store.list("").unwrap(), before, "the lock of the other one stays, too");
    other.release().unwrap();
    assert!(store.get("lock", 1 << 20).is_err());
}
