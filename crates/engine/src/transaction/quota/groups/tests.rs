//! The numbers of qgroups as extents change hands.

use super::*;
use papilio_format::items::qgroup::QgroupStatusHeader;

const ONE: TreeId = TreeId(256);
const TWO: TreeId = TreeId(257);

fn id(tree: TreeId) -> QgroupId {
    QgroupId(tree.0)
}

/// Quotas without a qgroup.
pub(crate) fn empty(flags: QgroupStatusFlags) -> QuotaState {
    let header = QgroupStatusHeader { version: 1, generation: Generation(7), flags, rescan: 0 };
    QuotaState {
        status: QgroupStatus { header, enable_generation: Some(Generation(3)) },
        groups: BTreeMap::new(),
        changed: BTreeSet::new(),
        snapshots: Vec::new(),
    }
}

/// Two subvolumes of one group.
fn state() -> (QuotaState, QgroupId) {
    let mut state = empty(QgroupStatusFlags::ON);
    let top = QgroupId::new(1, 1).unwrap();
    for tree in [ONE, TWO] {
        state.groups.insert(id(tree), Qgroup::default());
        state.relate(id(tree), top);
    }
    (state, top)
}

fn numbers(state: &QuotaState, of: QgroupId) -> (u64, u64) {
    let info = state.groups[&of].info;
    (info.referenced, info.exclusive)
}

#[test]
fn shared_bytes_are_exclusive_to_the_group_of_all() {
    let (mut state, top) = state();
    assert!(state.count(&[], &[ONE], 100));
    assert_eq!((numbers(&state, id(ONE)), numbers(&state, top)), ((100, 100), (100, 100)));
    assert_eq!(state.changed, BTreeSet::from([id(ONE), top]));
    assert!(state.count(&[ONE], &[ONE, TWO], 30));
    assert_eq!(numbers(&state, id(ONE)), (100, 70));
    assert_eq!(numbers(&state, id(TWO)), (30, 0));
    assert_eq!(numbers(&state, top), (100, 100));
    // Another subvolume, which is in no group, references them, too.
    let three = TreeId(258);
    state.groups.insert(id(three), Qgroup::default());
    assert!(state.count(&[ONE, TWO], &[ONE, TWO, three], 10));
    assert_eq!(numbers(&state, top), (100, 90));
    assert_eq!(numbers(&state, id(three)), (10, 0));
    assert!(state.count(&[ONE, TWO, three], &[three], 10));
    assert_eq!(numbers(&state, id(three)), (10, 10));
    assert_eq!(numbers(&state, top), (90, 90));
    assert!(state.count(&[ONE], &[], 70));
    assert_eq!(numbers(&state, id(ONE)), (20, 0));
}

#[test]
fn numbers_below_zero_show_that_they_were_wrong() {
    let (mut state, top) = state();
    assert!(state.count(&[], &[ONE], 100));
    assert!(state.count(&[], &[TWO], 100));
    assert!(state.count(&[ONE], &[], 40));
    assert!(!state.count(&[ONE], &[], 61));
    assert_eq!(numbers(&state, id(ONE)), (0, 0));
    // The group's own number is large enough.
    assert_eq!(numbers(&state, top), (99, 99));
    assert!(!state.count(&[], &[TWO], u64::MAX), "nor can they be so large");
}

#[test]
fn members_come_and_go() {
    let (mut state, top) = state();
    assert_eq!(state.including(id(ONE)), BTreeSet::from([id(ONE), top]));
    assert_eq!(state.subvolumes_of(top), BTreeSet::from([id(ONE), id(TWO)]));
    assert_eq!(state.subvolumes_of(id(ONE)), BTreeSet::from([id(ONE)]));
    state.part(id(ONE), top);
    assert_eq!(state.including(id(ONE)), BTreeSet::from([id(ONE)]));
    assert_eq!(state.subvolumes_of(top), BTreeSet::from([id(TWO)]));
    assert!(state.including(QgroupId(999)).is_empty());
}
