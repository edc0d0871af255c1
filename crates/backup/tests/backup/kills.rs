//! Runs that stop at a request: nothing that was listed is lost.

use crate::world::{Source, StoppingStore, backup, open, repository, restore_and_compare, setting};
use papilio_backup::{
    MemoryStore, ObjectStore, PruneOptions, Repository, Retention, VerifyOptions, prune, verify,
};
use std::sync::Arc;

fn ids(repository: &Repository) -> Vec<String> {
    repository.backups().unwrap().all().iter().map(|backup| backup.manifest.name.clone()).collect()
}

/// Checks that all listed backups are whole. Returns their names.
fn assert_whole(label: &str, store: &Arc<MemoryStore>) -> Vec<String> {
    let repository = open(Arc::clone(store) as Arc<dyn ObjectStore>).unwrap();
    let found = verify(&repository, &VerifyOptions::default()).unwrap();
    assert_eq!(found.faults, [], "{label}");
    ids(&repository)
}

/// Removes orphans, as the next prune does.
fn clean(repository: &Repository) {
    let lock = repository.lock("test", true).unwrap();
    prune(repository, &lock, &PruneOptions::default()).unwrap();
    lock.release().unwrap();
    assert_eq!(verify(repository, &VerifyOptions::default()).unwrap().orphans, 0);
}

#[test]
fn a_create_that_stops_loses_nothing() {
    let (base, made) = repository();
    let mut source = Source::new(11);
    for (day, name) in ["a", "b", "c"].into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    source.change(10);
    let id = source.snapshot("d");
    let kills = setting("PAPILIO_BACKUP_KILLS", 24) / 2;
    let mut stopped = 0;
    let mut is_done = false;
    for kill in 0..kills {
        let store = Arc::new(MemoryStore::clone(&base));
        // All requests in turn, again and again.
        let answered = if is_done { kill as i64 % 30 } else { kill as i64 };
        let stopping = Arc::new(StoppingStore::new(Arc::clone(&store), answered, kill % 2 == 1));
        let label = format!("create, stopped at request {answered}");
        let run = open(stopping).and_then(|repository| backup(&repository, &source.fs, id, 4));
        let listed = assert_whole(&label, &store);
        match run {
            Ok(_) => is_done = true,
            Err(_) => stopped += 1,
        }
        assert!(listed.starts_with(&["a", "b", "c"].map(str::to_owned)), "{label}: {listed:?}");
        let repository = open(Arc::clone(&store) as Arc<dyn ObjectStore>).unwrap();
        clean(&repository);
        let again = backup(&repository, &source.fs, id, 4).unwrap();
        assert_eq!(assert_whole(&label, &store).len(), 4, "{label}");
        if kill % 4 == 0 {
            restore_and_compare(&repository, &again.backup, &source.fs);
        }
    }
    assert!(stopped > kills / 3, "{stopped} of {kills} runs were stopped");
}

#[test]
fn what_an_interrupted_create_stored_is_not_stored_again() {
    let (store, made) = repository();
    let source = Source::new(12);
    let id = source.snapshot("big");
    let stopping = Arc::new(StoppingStore::new(Arc::clone(&store), 9, false));
    open(stopping).and_then(|repository| backup(&repository, &source.fs, id, 1)).unwrap_err();
    let left = store.list("data/").unwrap().len() as u64;
    assert!(left >= 3, "{left} objects were stored");
    made.lock("test", true).unwrap().release().unwrap();
    let created = backup(&made, &source.fs, id, 1).unwrap();
    let all = created.backup.manifest.objects().count() as u64;
    assert!(created.new_objects <= all - left, "{} of {all}, {left} were there", created.new_objects);
    restore_and_compare(&made, &created.backup, &source.fs);
}

#[test]
fn a_prune_that_stops_loses_nothing() {
    let (base, made) = repository();
    let mut source = Source::new(13);
    let names = ["a", "b", "c", "d", "e", "f"];
    for (day, name) in names.into_iter().enumerate() {
        source.backup(&made, name, day as i64);
    }
    let kills = setting("PAPILIO_BACKUP_KILLS", 24) / 2;
    let mut stopped = 0;
    for kill in 0..kills {
        let store = Arc::new(MemoryStore::clone(&base));
        let merge = kill % 3 > 0;
        let retention = Retention { last: 2, ..Retention::default() };
        let options = PruneOptions { retention, merge };
        // Over the requests of a whole prune, in uneven steps.
        let answered = (kill as i64 * 7) % 90;
        let label = format!("prune, merge {merge}, stopped at request {answered}");
        let stopping = Arc::new(StoppingStore::new(Arc::clone(&store), answered, kill % 2 == 0));
        let run = open(stopping).and_then(|repository| {
            let lock = repository.lock("papilio backup prune", false)?;
            prune(&repository, &lock, &options)
        });
        stopped += u64::from(run.is_err());
        let listed = assert_whole(&label, &store);
        assert!(listed.ends_with(&["e", "f"].map(str::to_owned)), "{label}: {listed:?}");
        let repository = open(Arc::clone(&store) as Arc<dyn ObjectStore>).unwrap();
        if kill % 4 == 0 {
            for backup in repository.backups().unwrap().all() {
                restore_and_compare(&repository, backup, &source.fs);
            }
        }
        let lock = repository.lock("test", true).unwrap();
        prune(&repository, &lock, &options).unwrap();
        lock.release().unwrap();
        let left = assert_whole(&label, &store);
        // Without merging, f and e need all before them.
        assert_eq!(left.len(), if merge { 2 } else { 6 }, "{label}: {left:?}");
        assert_eq!(verify(&repository, &VerifyOptions::default()).unwrap().orphans, 0, "{label}");
    }
    assert!(stopped > kills / 4, "{stopped} of {kills} runs were stopped");
}
