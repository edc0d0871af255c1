//! Ioctls on subvolumes: creation, snapshots, deletion and properties.
//!
//! Kernel counterparts: `btrfs_ioctl_snap_create`, `btrfs_ioctl_snap_create_v2`,
//! `btrfs_ioctl_snap_destroy`, `btrfs_ioctl_subvol_getflags`, `btrfs_ioctl_default_subvol`,
//! `btrfs_ioctl_get_subvol_info`, `btrfs_ioctl_get_subvol_rootref` (`fs/btrfs/ioctl.c`).

use super::access::{EXECUTE, WRITE};
use super::call::{Changed, IoctlCall, IoctlReply, Result, done, page};
use super::caller;
use super::quotas;
use papilio::format::{Generation, TreeId, Uuid, objectid};
use papilio::{FileKind, Inode, NewInode, NewKind, QgroupId, Received, Timespec};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    GetSubvolInfo, GetSubvolRootref, IoctlTimespec, Page, ReceivedSubvol, Rootref, SUBVOL_QGROUP_INHERIT,
    SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, SnapshotById, VolArgs, VolArgsV2, put_name, until_nul,
};
use papilio_ioctl::record::Writer;

/// Length of the longest entry name in bytes.
const NAME_MAX: usize = 255;

pub(super) fn create(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgs>()?;
    make(call, name(&arguments.name)?, &[])
}

pub(super) fn create_v2(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgsV2>()?;
    check_flags(arguments.flags, SUBVOL_RDONLY | SUBVOL_QGROUP_INHERIT)?;
    make(call, name(&arguments.name)?, &quotas::inherited(call, &arguments)?)
}

/// Refuses unknown flags.
fn check_flags(flags: u64, known: u64) -> Result<()> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

/// Returns and validates the name of an entry.
fn name(field: &[u8]) -> Result<&[u8]> {
    let name = until_nul(field).ok_or(Errno(libc::EINVAL))?;
    match name {
        b"" => Err(Errno(libc::EINVAL)),
        b"." | b".." => Err(Errno(libc::EEXIST)),
        _ if name.contains(&b'/') => Err(Errno(libc::EINVAL)),
        _ if name.len() > NAME_MAX => Err(Errno(libc::ENAMETOOLONG)),
        _ => Ok(name),
    }
}

/// Returns the changes for the kernel's caches after an entry was added or removed.
fn entry_changed(directory: &Inode, name: &[u8]) -> Vec<Changed> {
    let place = (directory.tree(), directory.number());
    vec![Changed::Entry { directory: place, name: name.to_vec() }, Changed::Inode(place.0, place.1)]
}

fn make(call: &IoctlCall<'_>, name: &[u8], qgroups: &[QgroupId]) -> Result<IoctlReply> {
    check_place(call)?;
    call.must_not_be_mapped()?;
    let directory = call.inode.metadata();
    let caller = (call.caller.uid, call.caller.gid);
    let (uid, gid) = call.mount.ownership.stored_new(caller, (directory.uid(), directory.gid()))?;
    let new = NewInode::new(NewKind::Directory, 0o777).owner(uid, gid).umask(caller::umask(call));
    call.inode.create_subvolume_in(name, &new, qgroups)?;
    done(entry_changed(call.inode, name))
}

/// Refuses a target that is not a directory, or in which the caller may not create entries.
fn check_place(call: &IoctlCall<'_>) -> Result<()> {
    if call.inode.file_type() != FileKind::Directory {
        return Err(Errno(libc::ENOTDIR));
    }
    call.may_create_in(call.inode)
}

pub(super) fn snapshot(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgs>()?;
    let source = caller::file_of(call, arguments.fd)?;
    make_snapshot(call, &source, name(&arguments.name)?, false, &[])
}

pub(super) fn snapshot_v2(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgsV2>()?;
    check_flags(arguments.flags, SUBVOL_RDONLY | SUBVOL_QGROUP_INHERIT)?;
    let source = caller::file_of(call, arguments.fd)?;
    let qgroups = quotas::inherited(call, &arguments)?;
    make_snapshot(call, &source, name(&arguments.name)?, arguments.flags & SUBVOL_RDONLY != 0, &qgroups)
}

/// Our own: identifies the source by its id, which the caller gets through an open descriptor.
pub(super) fn snapshot_by_id(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<SnapshotById>()?;
    check_flags(arguments.flags, SUBVOL_RDONLY)?;
    let source = call.fs.subvolume_root(TreeId(arguments.tree))?;
    make_snapshot(call, &source, name(&arguments.name)?, arguments.flags & SUBVOL_RDONLY != 0, &[])
}

fn make_snapshot(
    call: &IoctlCall<'_>,
    source: &Inode,
    name: &[u8],
    read_only: bool,
    qgroups: &[QgroupId],
) -> Result<IoctlReply> {
    check_place(call)?;
    if !source.is_subvolume_root() {
        return Err(Errno(libc::EINVAL));
    }
    call.must_own(source)?;
    call.inode.create_snapshot_in(source.tree(), name, read_only, qgroups)?;
    done(entry_changed(call.inode, name))
}

pub(super) fn delete(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgs>()?;
    remove(call, call.inode, name(&arguments.name)?)
}

pub(super) fn delete_v2(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VolArgsV2>()?;
    check_flags(arguments.flags, SUBVOL_SPEC_BY_ID)?;
    if arguments.flags & SUBVOL_SPEC_BY_ID == 0 {
        return remove(call, call.inode, name(&arguments.name)?);
    }
    // The caller may not be able to reach the subvolume by its path.
    call.must_be_administrator()?;
    let id = arguments.name[..8].try_into().map(u64::from_ne_bytes).expect("the slice has eight bytes");
    if id < objectid::FIRST_FREE {
        return Err(Errno(libc::EINVAL));
    }
    let subvolume = call.fs.subvolume(TreeId(id))?;
    let (Some(parent), Some(directory)) = (subvolume.parent, subvolume.directory) else {
        return Err(Errno(libc::ENOENT));
    };
    remove(call, &call.fs.inode_at(parent, directory)?, &subvolume.name)
}

fn remove(call: &IoctlCall<'_>, directory: &Inode, name: &[u8]) -> Result<IoctlReply> {
    if directory.file_type() != FileKind::Directory {
        return Err(Errno(libc::ENOTDIR));
    }
    let victim = directory.lookup(name)?.ok_or(Errno(libc::ENOENT))?;
    if !victim.is_subvolume_root() {
        return Err(Errno(libc::EINVAL));
    }
    if !call.is_administrator() {
        if !call.mount.user_subvol_rm_allowed {
            return Err(Errno(libc::EPERM));
        }
        call.must_have(&victim, WRITE | EXECUTE)?;
    }
    call.may_delete_from(directory, &victim)?;
    directory.delete_subvolume(name)?;
    // In this order: the kernel finds names in the subvolume while it has the way to them.
    let mut changed = vec![Changed::Deleted(victim.tree())];
    changed.extend(entry_changed(directory, name));
    done(changed)
}

/// Returns the subvolume if the call is on its root directory; EINVAL otherwise.
fn must_be_root_directory(call: &IoctlCall<'_>) -> Result<TreeId> {
    if call.inode.is_subvolume_root() { Ok(call.inode.tree()) } else { Err(Errno(libc::EINVAL)) }
}

pub(super) fn get_flags(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let id = must_be_root_directory(call)?;
    let read_only = call.fs.subvolume(id)?.is_read_only();
    call.reply(&if read_only { SUBVOL_RDONLY } else { 0 })
}

pub(super) fn set_flags(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_own(call.inode)?;
    let id = must_be_root_directory(call)?;
    let flags = call.argument::<u64>()?;
    check_flags(flags, SUBVOL_RDONLY)?;
    call.fs.set_subvolume_read_only_by_id(id, flags & SUBVOL_RDONLY != 0)?;
    done(vec![Changed::Inode(id, call.inode.number())])
}

pub(super) fn set_default(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let id = match call.argument::<u64>()? {
        0 => objectid::FS_TREE,
        id => TreeId(id),
    };
    call.fs.set_default_subvolume(id)?;
    done(Vec::new())
}

fn time(time: Timespec) -> IoctlTimespec {
    IoctlTimespec { seconds: time.seconds as u64, nanoseconds: time.nanoseconds, padding: 0 }
}

/// Marks a subvolume as received, which `btrfs receive` does at the end.
pub(super) fn set_received(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_own(call.inode)?;
    if !call.inode.is_subvolume_root() {
        return Err(Errno(libc::EINVAL));
    }
    let mut arguments = call.argument::<ReceivedSubvol>()?;
    let IoctlTimespec { seconds, nanoseconds, .. } = arguments.send_time;
    let received = Received {
        uuid: Uuid::from_bytes(arguments.uuid),
        sent: Generation(arguments.sent),
        send_time: Timespec { seconds: seconds as i64, nanoseconds },
    };
    arguments.received = call.fs.set_received_by_id(call.inode.tree(), &received)?.0;
    arguments.receive_time = time(call.fs.subvolume(call.inode.tree())?.receive_time);
    call.reply(&arguments)
}

pub(super) fn info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let subvolume = call.fs.subvolume(call.inode.tree())?;
    let mut info = GetSubvolInfo {
        tree: subvolume.id.0,
        parent: subvolume.parent.map_or(0, |parent| parent.0),
        directory: subvolume.directory.map_or(0, |directory| directory.0),
        generation: subvolume.generation.0,
        flags: subvolume.flags.bits(),
        uuid: *subvolume.uuid.as_bytes(),
        parent_uuid: *subvolume.parent_uuid.as_bytes(),
        received_uuid: *subvolume.received_uuid.as_bytes(),
        changed: subvolume.changed.0,
        created: subvolume.created.0,
        sent: subvolume.sent.0,
        received: subvolume.received.0,
        change_time: time(subvolume.change_time),
        creation_time: time(subvolume.creation_time),
        send_time: time(subvolume.send_time),
        receive_time: time(subvolume.receive_time),
        ..GetSubvolInfo::default()
    };
    if !put_name(&mut info.name, &subvolume.name) {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    call.reply(&info)
}

pub(super) fn rootrefs(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let min_tree = call.argument::<GetSubvolRootref>()?.min_tree;
    let all = call.fs.subvolumes()?;
    let below = all.iter().filter(|one| one.parent == Some(call.inode.tree()) && one.id.0 >= min_tree);
    let mut found =
        below.map(|one| Rootref { tree: one.id.0, directory: one.directory.map_or(0, |at| at.0) });
    let mut answer = GetSubvolRootref { min_tree, ..GetSubvolRootref::default() };
    for (slot, rootref) in answer.rootrefs.iter_mut().zip(&mut found) {
        *slot = rootref;
        answer.count += 1;
    }
    let mut result = 0;
    if let Some(next) = found.next() {
        answer.min_tree = next.tree;
        result = -libc::EOVERFLOW;
    }
    Ok(IoctlReply { result, ..call.reply(&answer)? })
}

/// Our own: lists all subvolumes, including those being deleted. The cursor is the smallest id of a
/// page, so a list that changes meanwhile repeats or omits nothing that stays. Only for
/// administrators, because it shows names from directories that others may not read.
pub(super) fn list(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let asked = call.argument::<Page>()?;
    let mut all = call.fs.subvolumes()?;
    all.retain(|subvolume| subvolume.id.0 >= asked.cursor);
    let next_of = |index: usize| all.get(index).map(|subvolume| subvolume.id.0);
    let start = Page { cursor: 0, ..asked };
    let mut reply = page(call, start, &all, Writer::subvolume, Writer::default())?;
    // `page` sets an index into the remaining list; the caller's cursor is an id.
    if let Some(cursor) = reply.output.first_chunk_mut::<8>() {
        let next = next_of(u64::from_ne_bytes(*cursor) as usize).unwrap_or(u64::MAX);
        *cursor = next.to_ne_bytes();
    }
    Ok(reply)
}
