//! Ioctls called directly, without a mount: results, errors, permissions and effects.

use papilio::format::{TreeId, objectid};
use papilio::{FileSystem, Inode, InodeFlags, MkfsOptions, NewInode, NewKind, OpenOptions};
use papilio_fuse::ioctl::{Caller, Changed, IoctlCall, IoctlReply, MountInfo, handle};
use papilio_fuse::{Errno, MountOptions};
use papilio_ioctl::layout::{
    DevInfo, FS_INFO_CSUM, FeatureFlags, FileAttributes, FsInfo, GetSubvolInfo, GetSubvolRootref, InoLookup,
    InoLookupUser, Page, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, ServerInfo, SnapshotById, SpaceArgs, TrimRange,
    VolArgs, VolArgsV2, put_name, until_nul,
};
use papilio_ioctl::number::Command;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

struct World {
    _folder: tempfile::TempDir,
    fs: FileSystem,
    mount: MountInfo,
    caller: Caller,
}

impl World {
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("ioctl.img");
        papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20).label("before")).unwrap();
        let options = MountOptions::parse(options).unwrap();
        let fs = FileSystem::open_with(&image, &options.open).unwrap();
        let mount = MountInfo::new(&image, Path::new("/nowhere"), &options);
        Self { _folder: folder, fs, mount, caller: ROOT }
    }

    fn by(&self, caller: Caller) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { _folder: folder, fs: self.fs.clone(), mount: self.mount.clone(), caller }
    }

    fn inode(&self, path: &str) -> Inode {
        self.fs.inode(path).unwrap()
    }

    fn raw(&self, path: &str, command: Command, input: &[u8]) -> Result<IoctlReply, Errno> {
        let call = IoctlCall {
            fs: &self.fs,
            mount: &self.mount,
            inode: &self.inode(path),
            command: command.0,
            input,
            address: 0,
            output_size: command.size(),
            caller: self.caller,
            may_be_mapped: None,
            umask: 0o022,
        };
        handle(&call)
    }

    fn call<I: IntoBytes + Immutable>(
        &self,
        path: &str,
        command: Command,
        input: &I,
    ) -> Result<IoctlReply, i32> {
        self.raw(path, command, input.as_bytes()).map_err(|errno| errno.code())
    }

    fn ask<O: FromBytes>(&self, path: &str, command: Command, input: &[u8]) -> O {
        let reply = self.raw(path, command, input).unwrap();
        O::read_from_prefix(&reply.output).ok().unwrap().0
    }
}

fn named(name: &str) -> VolArgs {
    let mut arguments = VolArgs::default();
    assert!(put_name(&mut arguments.name, name.as_bytes()));
    arguments
}

fn entry(directory: &Inode, name: &str) -> Changed {
    Changed::Entry { directory: (directory.tree(), directory.number()), name: name.as_bytes().to_vec() }
}

#[test]
fn unknown_commands_get_enotty() {
    let world = World::new("");
    let errno = |command: u32| world.raw("/", Command(command), &[0; 4096]).unwrap_err().code();
    assert_eq!(errno(0), libc::ENOTTY);
    assert_eq!(errno(Command::SUBVOL_CREATE.0 + 64), libc::ENOTTY);
    // Too few bytes.
    assert_eq!(world.raw("/", Command::SUBVOL_CREATE, &[0; 100]).unwrap_err().code(), libc::EINVAL);
    assert_eq!(world.raw("/", Command::SET_FLAGS, &[]).unwrap_err().code(), libc::EINVAL);
}

#[test]
fn flags_of_files() {
    let world = World::new("");
    world.fs.create_file("/f").unwrap();
    // Callers pass an int of four bytes, though the command number says eight.
    assert_eq!(world.raw("/f", Command::GET_FLAGS, &[]).unwrap().output.len(), 4);
    let get = |world: &World| world.ask::<u32>("/f", Command::GET_FLAGS, &[]);
    assert_eq!(get(&world), 0);
    let reply = world.call("/f", Command::SET_FLAGS, &0x80_0010u64).unwrap();
    let file = world.inode("/f");
    assert_eq!(reply.changed, [Changed::Inode(file.tree(), file.number())]);
    assert_eq!(get(&world), 0x80_0010);
    assert!(file.metadata().flags().contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM));
    let attributes: FileAttributes = world.ask("/f", Command::GET_ATTRIBUTES, &[]);
    assert_eq!(attributes.flags, 0x8);
    // Attributes without the immutable flag clear it, and keep flags that this ioctl cannot
    // express.
    world.call("/f", Command::SET_ATTRIBUTES, &FileAttributes { flags: 0x80, ..attributes }).unwrap();
    assert_eq!(get(&world), 0x80_0040);
    let project = FileAttributes { project: 7, ..attributes };
    assert_eq!(world.call("/f", Command::SET_ATTRIBUTES, &project).unwrap_err(), libc::EOPNOTSUPP);
    assert_eq!(world.call("/f", Command::SET_FLAGS, &0x4000u32).unwrap_err(), libc::EOPNOTSUPP);
    assert_eq!(world.call("/f", Command::SET_FLAGS, &0x404u32).unwrap_err(), libc::EINVAL);
    let version = world.raw("/f", Command::GET_VERSION, &[]).unwrap().output;
    assert_eq!(version, (file.metadata().generation().0 as u32).to_ne_bytes());

    let user = world.by(USER);
    assert_eq!(user.call("/f", Command::SET_FLAGS, &0u32).unwrap_err(), libc::EPERM);
    world.fs.lchown("/f", Some(1000), None).unwrap();
    user.call("/f", Command::SET_FLAGS, &0x40u32).unwrap();
    assert_eq!(user.call("/f", Command::SET_FLAGS, &0x50u32).unwrap_err(), libc::EPERM);
}

#[test]
fn subvolumes_are_created() {
    let world = World::new("");
    let root = world.inode("/");
    let reply = world.call("/", Command::SUBVOL_CREATE, &named("sv")).unwrap();
    assert_eq!(reply.changed[0], entry(&root, "sv"));
    let made = world.inode("/sv");
    assert!(made.is_subvolume_root());
    assert_eq!(made.metadata().permissions(), 0o755);
    assert_eq!(world.call("/", Command::SUBVOL_CREATE, &named("sv")).unwrap_err(), libc::EEXIST);
    for (name, errno) in
        [("", libc::EINVAL), ("a/b", libc::EINVAL), (".", libc::EEXIST), ("..", libc::EEXIST)]
    {
        assert_eq!(world.call("/", Command::SUBVOL_CREATE, &named(name)).unwrap_err(), errno, "{name}");
    }
    let long = named(&"x".repeat(256));
    assert_eq!(world.call("/", Command::SUBVOL_CREATE, &long).unwrap_err(), libc::ENAMETOOLONG);
    let unended = VolArgs { fd: 0, name: [b'x'; 4088] };
    assert_eq!(world.call("/", Command::SUBVOL_CREATE, &unended).unwrap_err(), libc::EINVAL);
    world.fs.create_file("/sv/f").unwrap();
    assert_eq!(world.call("/sv/f", Command::SUBVOL_CREATE, &named("x")).unwrap_err(), libc::ENOTDIR);

    // A snapshot by id, read-only.
    let mut snapshot = SnapshotById { tree: made.tree().0, flags: SUBVOL_RDONLY, ..SnapshotById::default() };
    assert!(put_name(&mut snapshot.name, b"snap"));
    world.call("/", Command::SNAPSHOT_BY_ID, &snapshot).unwrap();
    let flags = |path: &str| world.ask::<u64>(path, Command::SUBVOL_GETFLAGS, &[]);
    assert_eq!((flags("/snap"), flags("/sv")), (SUBVOL_RDONLY, 0));
    assert!(world.inode("/snap").lookup(b"f").unwrap().is_some());
    assert_eq!(world.raw("/sv/f", Command::SUBVOL_GETFLAGS, &[]).unwrap_err().code(), libc::EINVAL);
    world.call("/snap", Command::SUBVOL_SETFLAGS, &0u64).unwrap();
    assert_eq!(flags("/snap"), 0);
    assert_eq!(world.call("/snap", Command::SUBVOL_SETFLAGS, &1u64).unwrap_err(), libc::EOPNOTSUPP);
    snapshot.tree = 7;
    assert_eq!(world.call("/", Command::SNAPSHOT_BY_ID, &snapshot).unwrap_err(), libc::ENOENT);
    // The caller's process does not exist, so it has no open descriptors.
    let open = VolArgs { fd: 3, ..named("y") };
    assert_eq!(world.call("/", Command::SNAP_CREATE, &open).unwrap_err(), libc::EBADF);

    // Properties of the subvolumes.
    let info: GetSubvolInfo = world.ask("/snap", Command::GET_SUBVOL_INFO, &[]);
    assert_eq!((until_nul(&info.name), info.parent), (Some(&b"snap"[..]), 5));
    assert_eq!(info.parent_uuid, *world.fs.subvolume(made.tree()).unwrap().uuid.as_bytes());
    assert!(info.creation_time.seconds > 0 && info.directory == 256);
    let rootrefs: GetSubvolRootref =
        world.ask("/", Command::GET_SUBVOL_ROOTREF, GetSubvolRootref::default().as_bytes());
    assert_eq!(rootrefs.count, 2);
    assert_eq!((rootrefs.rootrefs[0].tree, rootrefs.rootrefs[0].directory), (made.tree().0, 256));
    let after = GetSubvolRootref { min_tree: made.tree().0 + 1, ..GetSubvolRootref::default() };
    let rootrefs: GetSubvolRootref = world.ask("/", Command::GET_SUBVOL_ROOTREF, after.as_bytes());
    assert_eq!(rootrefs.count, 1);
}

#[test]
fn subvolumes_are_deleted() {
    let world = World::new("");
    let root = world.inode("/");
    let (made, snap) =
        (world.fs.create_subvolume("/sv").unwrap(), world.fs.create_subvolume("/snap").unwrap());
    world.call("/", Command::DEFAULT_SUBVOL, &snap.tree().0).unwrap();
    assert_eq!(world.fs.default_subvolume().unwrap(), snap.tree());
    assert_eq!(world.call("/", Command::SNAP_DESTROY, &named("snap")).unwrap_err(), libc::EPERM);
    world.call("/", Command::DEFAULT_SUBVOL, &0u64).unwrap();
    assert_eq!(world.fs.default_subvolume().unwrap(), objectid::FS_TREE);
    let reply = world.call("/", Command::SNAP_DESTROY, &named("snap")).unwrap();
    assert!(reply.changed.contains(&Changed::Deleted(snap.tree())));
    assert!(reply.changed.contains(&entry(&root, "snap")));
    assert_eq!(world.call("/", Command::SNAP_DESTROY, &named("snap")).unwrap_err(), libc::ENOENT);
    world.fs.create_dir("/d").unwrap();
    assert_eq!(world.call("/", Command::SNAP_DESTROY, &named("d")).unwrap_err(), libc::EINVAL);
    world.fs.create_subvolume("/sv/inner").unwrap();
    assert_eq!(world.call("/", Command::SNAP_DESTROY, &named("sv")).unwrap_err(), libc::ENOTEMPTY);
    world.fs.delete_subvolume("/sv/inner").unwrap();
    let mut by_id = VolArgsV2 { flags: SUBVOL_SPEC_BY_ID, ..VolArgsV2::default() };
    by_id.name[..8].copy_from_slice(&made.tree().0.to_ne_bytes());
    let reply = world.call("/d", Command::SNAP_DESTROY_V2, &by_id).unwrap();
    assert!(reply.changed.contains(&Changed::Deleted(made.tree())));
    assert!(reply.changed.contains(&entry(&root, "sv")));
    assert_eq!(world.call("/d", Command::SNAP_DESTROY_V2, &by_id).unwrap_err(), libc::ENOENT);
    by_id.name[..8].copy_from_slice(&5u64.to_ne_bytes());
    assert_eq!(world.call("/", Command::SNAP_DESTROY_V2, &by_id).unwrap_err(), libc::EINVAL);
}

#[test]
fn long_lists_of_subvolumes_come_in_pages() {
    let world = World::new("");
    world.fs.create_dir("/a").unwrap();
    for number in 0..300 {
        world.fs.create_subvolume(format!("/a/subvolume-{number:03}")).unwrap();
    }
    let first = world.call("/", Command::GET_SUBVOL_ROOTREF, &GetSubvolRootref::default()).unwrap();
    assert_eq!(first.result, -libc::EOVERFLOW);
    let first = GetSubvolRootref::read_from_bytes(&first.output).unwrap();
    assert_eq!(first.count, 255);
    let again = GetSubvolRootref { min_tree: first.min_tree, ..GetSubvolRootref::default() };
    let second: GetSubvolRootref = world.ask("/", Command::GET_SUBVOL_ROOTREF, again.as_bytes());
    assert_eq!((second.count, second.rootrefs[0].tree), (45, first.min_tree));

    // Our own list, in pages.
    let mut page = Page::default();
    let mut pages = 0;
    loop {
        page = world.ask("/", Command::SUBVOLUMES, page.as_bytes());
        pages += 1;
        assert!(page.used > 0);
        if page.more == 0 {
            break;
        }
    }
    assert!(pages > 1 && pages < 20, "{pages}");
}

#[test]
fn paths_of_inodes_are_found() {
    let world = World::new("");
    world.fs.create_dir("/a").unwrap();
    world.fs.create_dir("/a/b").unwrap();
    let inner = world.fs.create_subvolume("/a/b/sv").unwrap();
    let file = world.fs.create_file("/a/b/sv/f").unwrap();
    let own: InoLookup = world.ask(
        "/a/b/sv",
        Command::INO_LOOKUP,
        InoLookup { inode: 256, ..InoLookup::default() }.as_bytes(),
    );
    assert_eq!((own.tree, until_nul(&own.name)), (inner.tree().0, Some(&b""[..])));
    let number = world.inode("/a/b").number().0;
    let wanted = InoLookup { tree: 5, inode: number, ..InoLookup::default() };
    let found: InoLookup = world.ask("/a/b/sv", Command::INO_LOOKUP, wanted.as_bytes());
    assert_eq!(until_nul(&found.name), Some(&b"a/b/"[..]));
    let missing = InoLookup { inode: 9999, ..wanted };
    assert_eq!(world.call("/", Command::INO_LOOKUP, &missing).unwrap_err(), libc::ENOENT);
    let wanted = InoLookup { tree: inner.tree().0, inode: file.inode().number().0, ..InoLookup::default() };
    let found: InoLookup = world.ask("/", Command::INO_LOOKUP, wanted.as_bytes());
    assert_eq!(until_nul(&found.name), Some(&b"f/"[..]));

    let wanted = InoLookupUser { directory: number, tree: inner.tree().0, ..InoLookupUser::default() };
    let found: InoLookupUser = world.ask("/a", Command::INO_LOOKUP_USER, wanted.as_bytes());
    assert_eq!((until_nul(&found.name), until_nul(&found.path)), (Some(&b"sv"[..]), Some(&b"b/"[..])));
    let user = world.by(USER);
    assert_eq!(user.call("/", Command::INO_LOOKUP, &missing).unwrap_err(), libc::EPERM);
    assert!(user.call("/a", Command::INO_LOOKUP_USER, &wanted).is_ok());
    world.fs.set_permissions("/a/b", 0o711).unwrap();
    assert_eq!(user.call("/a", Command::INO_LOOKUP_USER, &wanted).unwrap_err(), libc::EACCES);
}

#[test]
fn users_have_the_permissions_that_the_kernel_gives() {
    for (options, allowed) in [("", false), ("user_subvol_rm_allowed", true)] {
        let world = World::new(options);
        let home = NewInode::new(NewKind::Directory, 0o700).owner(1000, 1000);
        world.fs.create("/home", &home).unwrap();
        world.fs.create_subvolume("/system").unwrap();
        let user = world.by(USER);
        assert_eq!(user.call("/", Command::SUBVOL_CREATE, &named("x")).unwrap_err(), libc::EACCES);
        user.call("/home", Command::SUBVOL_CREATE, &named("own")).unwrap();
        assert_eq!(world.inode("/home/own").metadata().uid(), 1000);
        let snapshot = |path: &str, name: &str| {
            let tree = world.inode(path).tree().0;
            let mut arguments = SnapshotById { tree, ..SnapshotById::default() };
            assert!(put_name(&mut arguments.name, name.as_bytes()));
            user.call("/home", Command::SNAPSHOT_BY_ID, &arguments)
        };
        assert_eq!(snapshot("/system", "stolen").unwrap_err(), libc::EPERM);
        snapshot("/home/own", "snap").unwrap();
        user.call("/home/snap", Command::SUBVOL_SETFLAGS, &SUBVOL_RDONLY).unwrap();
        user.call("/home/snap", Command::SUBVOL_SETFLAGS, &0u64).unwrap();
        assert_eq!(user.call("/system", Command::SUBVOL_SETFLAGS, &0u64).unwrap_err(), libc::EPERM);
        let deleted = user.call("/home", Command::SNAP_DESTROY, &named("snap"));
        assert_eq!(deleted.map(drop), if allowed { Ok(()) } else { Err(libc::EPERM) });
        let theirs = user.call("/", Command::SNAP_DESTROY, &named("system")).unwrap_err();
        assert_eq!(theirs, if allowed { libc::EACCES } else { libc::EPERM });
        let privileged = [
            user.call("/home", Command::SET_LABEL, &[0u8; 256]),
            user.call("/home", Command::RESIZE, &named("max")),
            user.call("/home", Command::DEFAULT_SUBVOL, &0u64),
            user.call("/home", Command::SUBVOLUMES, &Page::default()),
            user.call("/home", Command::TRIM, &TrimRange { length: u64::MAX, ..TrimRange::default() }),
        ];
        for result in privileged {
            assert_eq!(result.unwrap_err(), libc::EPERM);
        }
        user.call("/home", Command::SYNC, &()).unwrap();
    }
}

#[test]
fn file_system_ioctls() {
    let world = World::new("");
    let label = |world: &World| world.ask::<[u8; 256]>("/", Command::GET_LABEL, &[]);
    assert_eq!(until_nul(&label(&world)), Some(&b"before"[..]));
    let mut new = [0; 256];
    assert!(put_name(&mut new, b"after"));
    world.call("/", Command::SET_LABEL, &new).unwrap();
    assert_eq!(label(&world), new);
    assert_eq!(world.call("/", Command::SET_LABEL, &[b'x'; 256]).unwrap_err(), libc::EINVAL);

    let info = FsInfo { flags: FS_INFO_CSUM, ..FsInfo::default() };
    let info: FsInfo = world.ask("/", Command::FS_INFO, info.as_bytes());
    assert_eq!((info.max_id, info.devices, info.node_size, info.sector_size), (1, 1, 16384, 4096));
    assert_eq!((info.fsid, info.csum_size), (*world.fs.uuid().as_bytes(), 4));
    let device = DevInfo { devid: 1, ..DevInfo::default() };
    let device: DevInfo = world.ask("/", Command::DEV_INFO, device.as_bytes());
    assert_eq!((device.total_bytes, device.fsid), (256 << 20, info.fsid));
    assert_eq!(until_nul(&device.path), Some(world.mount.source.as_os_str().as_encoded_bytes()));
    let other = DevInfo { uuid: [1; 16], ..device };
    assert_eq!(world.call("/", Command::DEV_INFO, &other).unwrap_err(), libc::ENODEV);
    let spaces: SpaceArgs = world.ask("/", Command::SPACE_INFO, SpaceArgs::default().as_bytes());
    assert_eq!(spaces.total, world.fs.usage().unwrap().spaces.len() as u64 + 1);
    let many = SpaceArgs { slots: 9, total: 0 };
    // The list would go to the memory of a caller that does not exist.
    assert_eq!(world.call("/", Command::SPACE_INFO, &many).unwrap_err(), libc::ENOTTY);
    let features: FeatureFlags = world.ask("/", Command::GET_FEATURES, &[]);
    assert_eq!(features.incompat, world.fs.superblock().raw.incompat_flags.bits());
    let server: ServerInfo = world.ask("/", Command::SERVER_INFO, &[]);
    assert_eq!(server.pid, std::process::id());

    world.fs.create_file("/f").unwrap().write_all_at(&[1; 1 << 20], 0).unwrap();
    let generation: u64 = world.ask("/", Command::START_SYNC, &[]);
    assert_eq!(generation, world.fs.superblock().raw.generation.0);
    world.call("/", Command::WAIT_SYNC, &generation).unwrap();
    assert_eq!(world.call("/", Command::WAIT_SYNC, &(generation + 9)).unwrap_err(), libc::EINVAL);

    let resize = |size: &str| world.call("/", Command::RESIZE, &named(size)).map(drop);
    resize("-50m").unwrap();
    assert_eq!(world.fs.usage().unwrap().device_size(), 206 << 20);
    resize("1:max").unwrap();
    assert_eq!(world.fs.usage().unwrap().device_size(), 256 << 20);
    assert_eq!(resize("+1g").unwrap_err(), libc::EFBIG);
    assert_eq!(resize("4096").unwrap_err(), libc::ENOSPC);
    assert_eq!(resize("9:max").unwrap_err(), libc::ENODEV);
    assert_eq!(resize("cancel").unwrap_err(), libc::EINVAL);

    let all = TrimRange { start: 0, length: u64::MAX, min_length: 0 };
    let trimmed: TrimRange = world.ask("/", Command::TRIM, all.as_bytes());
    assert!(trimmed.length > 100 << 20 && trimmed.length < 256 << 20, "{}", trimmed.length);
    assert_eq!(world.call("/", Command::TRIM, &TrimRange { length: 1, ..all }).unwrap_err(), libc::EINVAL);
    assert_eq!(world.fs.read("/f").unwrap(), vec![1; 1 << 20]);
}

#[test]
fn read_only_mount_refuses_changes() {
    let World { _folder: folder, fs, mount, .. } = World::new("");
    let default = TreeId(5);
    fs.set_default_subvolume(default).unwrap();
    fs.close().unwrap();
    let options = MountOptions::parse("ro").unwrap();
    let fs = FileSystem::open_with(&mount.source, &options.open).unwrap();
    let world = World { _folder: folder, fs, mount, caller: ROOT };
    assert_eq!(world.call("/", Command::SUBVOL_CREATE, &named("x")).unwrap_err(), libc::EROFS);
    assert_eq!(world.call("/", Command::SET_LABEL, &[0u8; 256]).unwrap_err(), libc::EROFS);
    let all = TrimRange { start: 0, length: u64::MAX, min_length: 0 };
    assert_eq!(world.call("/", Command::TRIM, &all).unwrap_err(), libc::EROFS);
    world.call("/", Command::SYNC, &()).unwrap();
    let generation = world.fs.superblock().raw.generation.0;
    assert_eq!(world.ask::<u64>("/", Command::START_SYNC, &[]), generation);
}

/// All known commands, and some unknown ones.
const COMMANDS: [Command; 46] = [
    Command::TREE_SEARCH,
    Command::TREE_SEARCH_V2,
    Command::INO_PATHS,
    Command::LOGICAL_INO,
    Command::LOGICAL_INO_V2,
    Command::SET_RECEIVED_SUBVOL,
    Command::SEND,
    Command::ENCODED_READ,
    Command::ENCODED_WRITE,
    Command::GET_DEV_STATS,
    Command::GET_FLAGS,
    Command::SET_FLAGS,
    Command::GET_VERSION,
    Command::GET_ATTRIBUTES,
    Command::SET_ATTRIBUTES,
    Command::TRIM,
    Command::GET_LABEL,
    Command::SET_LABEL,
    Command::SNAP_CREATE,
    Command::RESIZE,
    Command::SYNC,
    Command::SUBVOL_CREATE,
    Command::SNAP_DESTROY,
    Command::INO_LOOKUP,
    Command::DEFAULT_SUBVOL,
    Command::SPACE_INFO,
    Command::WAIT_SYNC,
    Command::SNAP_CREATE_V2,
    Command::START_SYNC,
    Command::SUBVOL_CREATE_V2,
    Command::SUBVOL_GETFLAGS,
    Command::SUBVOL_SETFLAGS,
    Command::DEV_INFO,
    Command::FS_INFO,
    Command::GET_FEATURES,
    Command::GET_SUBVOL_INFO,
    Command::GET_SUBVOL_ROOTREF,
    Command::INO_LOOKUP_USER,
    Command::SNAP_DESTROY_V2,
    Command::SERVER_INFO,
    Command::SNAPSHOT_BY_ID,
    Command::SUBVOLUMES,
    Command::USAGE,
    Command(0),
    Command(u32::MAX),
    Command(0x9409),
];

/// Any bytes get an answer that fits the caller's buffer, and leave the file system consistent.
#[test]
fn random_arguments_are_handled() {
    let world = World::new("user_subvol_rm_allowed");
    world.fs.create_subvolume("/sv").unwrap();
    world.fs.create_subvolume("/sv/inner").unwrap();
    world.fs.create_dir("/d").unwrap();
    world.fs.create_file("/d/f").unwrap().write_all_at(&[1; 70_000], 0).unwrap();
    let callers = [ROOT, USER, Caller { pid: std::process::id(), ..USER }];
    let mut random = fastrand::Rng::with_seed(0x10c7);
    let mut answered = 0;
    for _ in 0..6_000 {
        let command = *random.choice(&COMMANDS).unwrap();
        let mut input = vec![0; command.size()];
        match random.u8(..4) {
            // Plausible numbers at the start, followed by short names.
            0 | 1 => {
                for word in input.chunks_exact_mut(8).take(6) {
                    let number = *random.choice(&[0, 1, 2, 5, 16, 256, 257, 258, 300, u64::MAX]).unwrap();
                    word.copy_from_slice(&number.to_ne_bytes());
                }
                let name: &[u8] =
                    random.choice(&[&b"sv"[..], b"inner", b"x", b"-1m", b"1:max", b"d"]).unwrap();
                for at in [8, 16, 56] {
                    if random.bool() && at + name.len() < input.len() {
                        input[at..=at + name.len()].fill(0);
                        input[at..at + name.len()].copy_from_slice(name);
                    }
                }
            }
            2 => random.fill(&mut input),
            _ => input.truncate(random.usize(..=input.len())),
        }
        let path = *random.choice(&["/", "/sv", "/sv/inner", "/d", "/d/f"]).unwrap();
        let Ok(inode) = world.fs.inode(path) else { continue };
        let call = IoctlCall {
            fs: &world.fs,
            mount: &world.mount,
            inode: &inode,
            command: command.0,
            input: &input,
            address: 0,
            output_size: random.usize(..=command.size()),
            caller: *random.choice(&callers).unwrap(),
            may_be_mapped: None,
            umask: 0o022,
        };
        match handle(&call) {
            Ok(reply) => {
                assert!(reply.output.len() <= call.output_size, "{command:?}");
                answered += 1;
            }
            Err(errno) => assert!(errno.code() > 0),
        }
    }
    assert!(answered > 1_000, "{answered}");
    let World { _folder, fs, mount, .. } = world;
    fs.close().unwrap();
    let report =
        papilio::check(&mount.source, &OpenOptions::new(), &papilio::CheckOptions::new().data_csum(true));
    assert!(report.unwrap().is_clean());
}
