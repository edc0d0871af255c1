//! Operations on subvolumes that are refused, with their errors; and the properties of subvolumes.

use crate::in_memory::{assert_clean, close_clean, crashed, formatted, open, open_with, writable};
use papilio::format::items::root::RootFlags;
use papilio::format::{Generation, TreeId, Uuid};
use papilio::{ErrorKind, PathError, Received, RenameMode, SubvolumeChoice, Timespec};

fn kind<T: std::fmt::Debug>(result: papilio::Result<T>) -> PathError {
    match result.unwrap_err().kind() {
        ErrorKind::Path(kind) => kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn refused_operations_change_nothing() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let a = fs.create_subvolume("/a").unwrap().tree();
    fs.create_subvolume("/a/inner").unwrap();
    fs.create_dir("/dir").unwrap();
    fs.create_file("/dir/file").unwrap();
    fs.create_dir("/empty").unwrap();
    assert_eq!(kind(fs.create_subvolume("/a")), PathError::Exists);
    assert_eq!(kind(fs.create_subvolume("/dir/file/x")), PathError::NotADirectory);
    assert_eq!(kind(fs.snapshot("/dir", "/s", false)), PathError::NoSubvolume);
    assert_eq!(kind(fs.snapshot("/a", "/dir", false)), PathError::Exists);
    assert_eq!(kind(fs.delete_subvolume("/a")), PathError::NotEmpty);
    assert_eq!(kind(fs.delete_subvolume("/dir")), PathError::NoSubvolume);
    assert_eq!(kind(fs.delete_subvolume("/none")), PathError::NotFound);
    assert_eq!(kind(fs.delete_subvolume_by_id(TreeId(5))), PathError::NotPermitted);
    assert_eq!(kind(fs.delete_subvolume_by_id(TreeId(999))), PathError::NoSubvolume);
    assert_eq!(kind(fs.delete_subvolume_by_id(TreeId(9))), PathError::NoSubvolume);
    assert_eq!(kind(fs.remove_file("/a")), PathError::IsADirectory);
    assert_eq!(kind(fs.remove_dir("/a")), PathError::NotEmpty);
    let replace = RenameMode::Replace;
    assert_eq!(kind(fs.rename_with("/dir", "/a/dir", replace)), PathError::CrossDevice);
    assert_eq!(kind(fs.rename_with("/a", "/a/inner/a", replace)), PathError::IntoItself);
    assert_eq!(kind(fs.rename_with("/a", "/a/b", replace)), PathError::IntoItself);
    assert_eq!(kind(fs.rename_with("/a/inner", "/dir", replace)), PathError::NotEmpty);
    assert_eq!(kind(fs.rename_with("/a/inner", "/dir/file", replace)), PathError::NotADirectory);
    assert_eq!(kind(fs.rename_with("/a/inner", "/dir", RenameMode::NoReplace)), PathError::Exists);
    assert_eq!(kind(fs.rename_with("/a/inner", "/x", RenameMode::Exchange)), PathError::NotFound);
    assert_eq!(kind(fs.rename_with("/a/inner", "/dir", RenameMode::Exchange)), PathError::CrossDevice);
    fs.set_subvolume_read_only("/a", true).unwrap();
    assert_eq!(kind(fs.create_file("/a/new")), PathError::ReadOnly);
    assert_eq!(kind(fs.delete_subvolume("/a/inner")), PathError::ReadOnly);
    assert_eq!(kind(fs.rename_with("/a/inner", "/inner", replace)), PathError::ReadOnly);
    fs.set_subvolume_read_only("/a", false).unwrap();
    assert_eq!(fs.failure(), None);
    // Operations on the same names that are allowed.
    fs.rename_with("/a/inner", "/empty", replace).unwrap();
    assert_eq!(fs.subvolume(TreeId(a.0 + 1)).unwrap().path.as_deref(), Some(b"empty".as_slice()));
    fs.rename_with("/empty", "/a/inner", replace).unwrap();
    fs.create_subvolume("/b").unwrap();
    fs.rename_with("/b", "/a/inner", RenameMode::Exchange).unwrap();
    assert_eq!(fs.subvolume(TreeId(a.0 + 1)).unwrap().path.as_deref(), Some(b"b".as_slice()));
    fs.remove_dir("/a/inner").unwrap();
    fs.remove_dir("/a").unwrap();
    fs.sync().unwrap();
    assert_clean(&crashed(&device));
    fs.clean_subvolumes().unwrap();
    close_clean(fs, &device);
}

#[test]
fn a_deleted_subvolume_cannot_be_reached() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let id = fs.create_subvolume("/a").unwrap().tree();
    let file = fs.create_file("/a/open").unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    let unlinked = fs.create_file("/a/unlinked").unwrap();
    fs.remove_file("/a/unlinked").unwrap();
    fs.delete_subvolume("/a").unwrap();
    // Files that are open stay usable, and a crash leaves nothing of them.
    file.write_all_at(&[2; 10], 0).unwrap();
    file.sync_all().unwrap();
    file.set_len(5000).unwrap();
    assert_eq!(file.read_all().unwrap(), [vec![2; 10], vec![1; 4990]].concat());
    assert_eq!(kind(fs.set_subvolume_read_only_by_id(id, true)), PathError::NoSubvolume);
    let after_crash = crashed(&device);
    let again = open(&after_crash);
    again.clean_subvolumes().unwrap();
    close_clean(again, &after_crash);
    assert_eq!(kind(fs.subvolume_root(id)), PathError::NoSubvolume);
    assert_eq!(kind(fs.inode("/a")), PathError::NotFound);
    drop(unlinked);
    assert_eq!(fs.failure(), None);
    let again = fs.create_subvolume("/a").unwrap().tree();
    assert!(again > id, "ids are not reused");
    fs.clean_subvolumes().unwrap();
    assert_eq!(fs.subvolumes().unwrap().len(), 3, "the deleted one stays for its file");
    drop(file);
    fs.clean_subvolumes().unwrap();
    close_clean(fs, &device);
    let fs = open(&device);
    assert_eq!(fs.subvolumes().unwrap().len(), 2);
}

#[test]
fn snapshots_show_nested_subvolumes_as_empty_directories() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/a").unwrap();
    fs.create_subvolume("/a/inner").unwrap();
    fs.create_file("/a/inner/file").unwrap();
    fs.snapshot("/a", "/a/snap", false).unwrap();
    assert!(fs.inode("/a/snap/inner").unwrap().is_subvolume_stub());
    assert!(fs.read_dir("/a/snap").unwrap().all(|entry| entry.unwrap().file_name() != b"snap"));
    assert_eq!(kind(fs.rename("/a/snap/inner", "/a/snap/other")), PathError::NotEmpty);
    assert_eq!(kind(fs.delete_subvolume("/a/snap/inner")), PathError::NoSubvolume);
    fs.remove_dir("/a/snap/inner").unwrap();
    assert_eq!(kind(fs.inode("/a/snap/inner")), PathError::NotFound);
    assert_eq!(fs.read("/a/inner/file").unwrap(), b"");
    close_clean(fs, &device);
}

#[test]
fn subvolumes_have_the_uuids_and_times_of_their_origin() {
    let device = formatted(256 << 20);
    let now = Timespec { seconds: 1_234_567, nanoseconds: 89 };
    let options = writable().timestamp(Some(now));
    let fs = open_with(&device, &options);
    let id = fs.create_subvolume("/a").unwrap().tree();
    fs.sync().unwrap();
    let a = fs.subvolume(id).unwrap();
    assert!(!a.uuid.is_nil() && a.parent_uuid.is_nil() && !a.is_snapshot());
    assert_eq!((a.creation_time, a.refs, a.flags), (now, 1, RootFlags::empty()));
    assert!(a.created.0 > 0 && a.created <= a.generation);
    let sent = Received { uuid: Uuid::from_u128(77), sent: Generation(9), send_time: now };
    let when = fs.set_received("/a", &sent).unwrap();
    let a = fs.subvolume(id).unwrap();
    assert_eq!((a.received_uuid, a.sent, a.received), (sent.uuid, Generation(9), when));
    let still = fs.snapshot("/a", "/still", true).unwrap().tree();
    let moving = fs.snapshot("/a", "/moving", false).unwrap().tree();
    let (still, moving) = (fs.subvolume(still).unwrap(), fs.subvolume(moving).unwrap());
    assert!(still.is_read_only() && !moving.is_read_only());
    assert_eq!((still.parent_uuid, moving.parent_uuid), (a.uuid, a.uuid));
    assert!(still.uuid != a.uuid && moving.uuid != still.uuid);
    assert_eq!((still.received_uuid, moving.received_uuid), (sent.uuid, Uuid::nil()));
    assert_eq!(kind(fs.set_received("/still", &sent)), PathError::ReadOnly);
    fs.set_default_subvolume(moving.id).unwrap();
    assert_eq!(kind(fs.delete_subvolume("/moving")), PathError::NotPermitted);
    close_clean(fs, &device);
    let fs = open_with(&device, &options.clone().subvolume(SubvolumeChoice::Default));
    assert_eq!(fs.root().unwrap().tree(), moving.id);
    fs.set_default_subvolume(TreeId(5)).unwrap();
    assert_eq!(kind(fs.delete_subvolume_by_id(moving.id)), PathError::Busy);
    fs.delete_subvolume_by_id(still.id).unwrap();
    fs.clean_subvolumes().unwrap();
    close_clean(fs, &device);
}
