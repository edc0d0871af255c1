//! One writer at a time.

use crate::world::{Source, backup, repository, restore_and_compare};
use papilio_backup::{BackupError, ImageSnapshot, VerifyOptions, create, verify};

#[test]
fn a_second_writer_is_refused_and_the_first_one_is_named() {
    let (_, made) = repository();
    let mut source = Source::new(41);
    let id = source.snapshot("a");
    let lock = made.lock("papilio backup prune", false).unwrap();
    let error = backup(&made, &source.fs, id, 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BackupError::Locked { .. }), "{text}");
    for part in ["papilio backup prune on ", &std::process::id().to_string(), "the process runs"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    lock.check().unwrap();
    drop(lock);
    source.change(2);
    backup(&made, &source.fs, id, 1).unwrap();
}

/// A create whose lock was broken makes nothing visible, and what the other one made is whole.
#[test]
fn two_at_once_do_no_harm() {
    let (_, made) = repository();
    let mut source = Source::new(42);
    let (first, mut observer) = (source.snapshot("first"), ());
    source.change(5);
    let second = source.snapshot("second");
    let lock = made.lock("create", false).unwrap();
    let other = made.lock("create", true).unwrap();
    let mut one = ImageSnapshot::new(&source.fs, first, "x".into(), &mut observer).unwrap();
    let error = create(&made, &lock, &mut one, &crate::world::options(1)).unwrap_err();
    assert!(matches!(error, BackupError::LockBroken(_)), "{error}");
    let mut observer = ();
    let mut two = ImageSnapshot::new(&source.fs, second, "x".into(), &mut observer).unwrap();
    let created = create(&made, &other, &mut two, &crate::world::options(2)).unwrap();
    drop(lock);
    other.check().unwrap();
    other.release().unwrap();
    assert_eq!(made.backups().unwrap().all().len(), 1);
    assert_eq!(verify(&made, &VerifyOptions::default()).unwrap().faults, []);
    restore_and_compare(&made, &created.backup, &source.fs);
}
