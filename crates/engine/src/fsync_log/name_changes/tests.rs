//! The changed names of a transaction, one change at a time.

use super::*;
use papilio_format::objectid;

const NOW: Generation = Generation(7);
const TREE: TreeId = objectid::FS_TREE;
const DIRECTORY: InodeNumber = InodeNumber(256);
const ONE: InodeNumber = InodeNumber(300);
const TWO: InodeNumber = InodeNumber(301);

/// The slots of the directory, or `None` if they are not all known.
fn slots(changes: &NameChanges, generation: Generation) -> Option<Vec<String>> {
    changes.with_subvolume(generation, TREE, |names| {
        let mut slots: Vec<_> =
            names?.slots_in(DIRECTORY).map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        slots.sort();
        Some(slots)
    })
}

/// Notes that an inode had a name.
fn hold(changes: &NameChanges, name: &[u8], inode: InodeNumber) {
    changes.with(NOW, |state| {
        let (names, _) = state.slot(TREE, DIRECTORY, name).expect("there are few");
        names.get_mut(DIRECTORY, name).held.push(inode);
        names.list_slot(inode, DIRECTORY, name);
        names.list_slot(inode, DIRECTORY, name);
    });
}

fn slots_of(changes: &NameChanges, inode: InodeNumber) -> usize {
    changes.with_subvolume(NOW, TREE, |names| names.expect("all are known").slots_of(inode).count())
}

fn held(changes: &NameChanges, name: &[u8]) -> Option<Vec<InodeNumber>> {
    changes.with_subvolume(NOW, TREE, |names| {
        names.expect("all are known").find(DIRECTORY, name).map(|slot| slot.held.clone())
    })
}

#[test]
fn slots_end_with_their_transaction() {
    let changes = NameChanges::default();
    assert!(changes.note_free(NOW, TREE, DIRECTORY, b"a"));
    assert!(!changes.note_free(NOW, TREE, DIRECTORY, b"a"), "it is noted already");
    assert!(changes.note_free(NOW, TREE, DIRECTORY, b"b"));
    assert!(changes.note_free(NOW, TREE, InodeNumber(400), b"a"), "another directory");
    assert!(changes.note_free(NOW, TreeId(300), DIRECTORY, b"a"), "another subvolume");
    assert_eq!(slots(&changes, NOW).unwrap(), ["a", "b"]);
    changes.take_back(NOW, TREE, DIRECTORY, b"b");
    changes.take_back(NOW, TREE, DIRECTORY, b"unknown");
    assert_eq!(slots(&changes, NOW).unwrap(), ["a"]);
    let next = Generation(NOW.0 + 1);
    assert!(slots(&changes, next).unwrap().is_empty());
    assert!(changes.note_free(next, TREE, DIRECTORY, b"a"));
}

#[test]
fn a_forgotten_inode_takes_its_last_slot_along() {
    let changes = NameChanges::default();
    hold(&changes, b"a", ONE);
    hold(&changes, b"a", TWO);
    hold(&changes, b"b", ONE);
    assert_eq!((slots_of(&changes, ONE), slots_of(&changes, TWO)), (2, 1));
    assert!(changes.concern(NOW, TREE, ONE) && !changes.concern(NOW, TREE, InodeNumber(302)));
    changes.forget(NOW, TREE, ONE, Some((DIRECTORY, b"b")));
    assert!(!changes.concern(NOW, TREE, ONE));
    assert_eq!(held(&changes, b"a").unwrap(), [TWO]);
    assert_eq!(held(&changes, b"b"), None);
    // Another inode had the name.
    hold(&changes, b"a", ONE);
    changes.forget(NOW, TREE, TWO, Some((DIRECTORY, b"a")));
    assert_eq!(held(&changes, b"a").unwrap(), [ONE]);
    changes.forget(NOW, TREE, ONE, None);
    assert!(held(&changes, b"a").unwrap().is_empty(), "no name was lost");
    // A subvolume's slot stays.
    changes.note_subvolume(NOW, TREE, DIRECTORY, b"sub");
    changes.forget(NOW, TREE, ONE, Some((DIRECTORY, b"sub")));
    assert_eq!(slots(&changes, NOW).unwrap(), ["a", "sub"]);
    let marked = changes.with_subvolume(NOW, TREE, |names| {
        ["a", "sub"].map(|name| names.unwrap().find(DIRECTORY, name.as_bytes()).unwrap().subvolume)
    });
    assert_eq!(marked, [false, true]);
}

#[test]
fn slots_leave_when_the_log_has_them() {
    let changes = NameChanges::default();
    hold(&changes, b"a", ONE);
    hold(&changes, b"b", ONE);
    hold(&changes, b"b", TWO);
    let key = (DIRECTORY, Box::from(&b"a"[..]));
    changes.entered(NOW, TREE, std::iter::once(&key), std::iter::once(TWO));
    assert_eq!(slots(&changes, NOW).unwrap(), ["b"]);
    assert!(changes.concern(NOW, TREE, ONE) && !changes.concern(NOW, TREE, TWO));
    assert_eq!(slots_of(&changes, ONE), 1);
}

#[test]
fn too_many_slots_leave_only_commits() {
    let changes = NameChanges::default();
    let note = |number: usize| changes.note_free(NOW, TREE, DIRECTORY, format!("name{number}").as_bytes());
    assert!((0..MAX_SLOTS).all(note));
    assert!(!changes.concern(NOW, TREE, ONE));
    // One that is taken back makes room for another.
    changes.take_back(NOW, TREE, DIRECTORY, b"name0");
    assert!(note(0));
    assert!(!note(MAX_SLOTS));
    assert!(changes.concern(NOW, TREE, ONE), "any inode may have lost a name");
    assert_eq!(slots(&changes, NOW), None);
    assert!(!note(1), "until the transaction ends");
    let next = Generation(NOW.0 + 1);
    assert!(!changes.concern(next, TREE, ONE));
    assert!(slots(&changes, next).unwrap().is_empty());
}
