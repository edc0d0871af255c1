//! Limits of qgroups, without a file system.

use super::super::groups::tests::empty;
use super::super::groups::{Limits, Qgroup};
use super::*;
use papilio_format::items::qgroup::{QgroupLimitFlags, QgroupStatusFlags};

const ONE: TreeId = TreeId(256);
const TWO: TreeId = TreeId(257);

fn limits(referenced: Option<u64>, exclusive: Option<u64>) -> Limits {
    let mut flags = QgroupLimitFlags::empty();
    flags.set(QgroupLimitFlags::MAX_REFERENCED, referenced.is_some());
    flags.set(QgroupLimitFlags::MAX_EXCLUSIVE, exclusive.is_some());
    Limits {
        flags,
        max_referenced: referenced.unwrap_or_default(),
        max_exclusive: exclusive.unwrap_or_default(),
        ..Limits::default()
    }
}

fn usage(referenced: u64, exclusive: u64) -> QgroupUsage {
    QgroupUsage { referenced, exclusive }
}

/// Two subvolumes in one group, which has a limit.
fn quotas(limit: Limits) -> Quotas {
    let mut state = empty(QgroupStatusFlags::ON);
    let group = QgroupId::new(1, 1).unwrap();
    for (tree, referenced) in [(ONE, 100), (TWO, 50)] {
        state.groups.insert(QgroupId(tree.0), Qgroup { info: usage(referenced, 10), ..Qgroup::default() });
        state.relate(QgroupId(tree.0), group);
    }
    let top = state.groups.get_mut(&group).unwrap();
    (top.info, top.limit) = (usage(150, 20), limit);
    let quotas = Quotas::default();
    quotas.with(|slot| *slot = Some(state));
    quotas
}

fn is_refused(result: Result<()>, limit: u64) -> bool {
    matches!(result, Err(Error::Quota(QuotaError::Exceeded { limit: found, .. })) if found == limit)
}

#[test]
fn limits_are_exceeded_by_more_than_they_say() {
    let both = limits(Some(100), Some(10));
    assert_eq!(both.exceeded_by(usage(100, 10)), None);
    assert_eq!(both.exceeded_by(usage(101, 10)), Some(100));
    assert_eq!(both.exceeded_by(usage(100, 11)), Some(10));
    assert_eq!(limits(None, Some(10)).exceeded_by(usage(u64::MAX, 10)), None);
    assert_eq!(limits(Some(100), None).exceeded_by(usage(100, u64::MAX)), None);
    assert_eq!(both.room(usage(90, 5)), 5);
    assert_eq!(both.room(usage(98, 5)), 2);
    assert_eq!(both.room(usage(101, 5)), 0);
    assert_eq!(limits(None, None).room(usage(u64::MAX, 5)), u64::MAX);
}

#[test]
fn announced_bytes_of_all_members_count() {
    let quotas = quotas(limits(Some(200), None));
    assert!(quotas.is_limited());
    assert_eq!(quotas.least_room(), 50);
    quotas.announce(ONE, 30, 0).unwrap();
    assert_eq!(quotas.least_room(), 20);
    assert!(is_refused(quotas.announce(TWO, 21, 0), 200));
    assert!(is_refused(quotas.announce(TWO, 10, 11), 200), "tree blocks count, too");
    quotas.announce(TWO, 10, 10).unwrap();
    // Tree blocks are not announced: they count when they are made.
    assert_eq!(quotas.announced(), BTreeMap::from([(ONE, 30), (TWO, 10)]));
    quotas.announce(TWO, 0, 10).unwrap();
    quotas.blocks_changed(ONE, 5);
    quotas.blocks_changed(ONE, 4);
    quotas.blocks_changed(TWO, -2);
    assert!(is_refused(quotas.announce(TWO, 4, 0), 200));
    quotas.announce(TWO, 3, 0).unwrap();
    quotas.blocks_counted();
    assert!(is_refused(quotas.announce(ONE, 8, 0), 200));
    quotas.announce(ONE, 7, 0).unwrap();
    // A subvolume without a group has no limit.
    quotas.announce(TreeId(300), 1 << 40, 0).unwrap();
}

#[test]
fn what_a_commit_counted_is_forgotten() {
    let quotas = quotas(limits(Some(1000), None));
    quotas.announce(ONE, 30, 0).unwrap();
    quotas.announce(TWO, 5, 0).unwrap();
    let before = quotas.announced();
    quotas.announce(ONE, 7, 0).unwrap();
    quotas.settle(&before);
    assert_eq!(quotas.announced(), BTreeMap::from([(ONE, 7)]));
    quotas.settle(&before);
    assert!(quotas.announced().is_empty());
}

#[test]
fn nothing_is_limited_without_a_limit() {
    let unlimited = quotas(Limits::default());
    assert!(!unlimited.is_limited());
    assert_eq!(unlimited.least_room(), u64::MAX);
    unlimited.announce(ONE, u64::MAX, u64::MAX).unwrap();
    let off = Quotas::default();
    off.announce(ONE, 1, 1).unwrap();
    assert!(off.announced().is_empty() && !off.is_limited() && !off.is_on());
    assert_eq!(off.least_room(), u64::MAX);
}

#[test]
fn inconsistent_numbers_are_not_counted_before_a_rescan() {
    let quotas = Quotas::default();
    let counts = |flags: QgroupStatusFlags| {
        quotas.with(|slot| *slot = Some(empty(flags)));
        (quotas.is_counting(), quotas.is_rescanning())
    };
    let (on, simple) = (QgroupStatusFlags::ON, QgroupStatusFlags::SIMPLE_MODE);
    let (wrong, rescan) = (QgroupStatusFlags::INCONSISTENT, QgroupStatusFlags::RESCAN);
    assert_eq!(counts(on), (true, false));
    assert_eq!(counts(on | simple), (false, false));
    assert_eq!(counts(on | wrong), (false, false));
    assert_eq!(counts(on | wrong | rescan), (true, true));
    assert_eq!(counts(QgroupStatusFlags::empty()), (false, false));
    counts(on | wrong | rescan);
    quotas.mark_inconsistent("a test says so");
    assert!(!quotas.is_counting() && !quotas.is_rescanning());
    assert!(quotas.state().unwrap().has(wrong));
}
