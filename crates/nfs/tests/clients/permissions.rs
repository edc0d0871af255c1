//! Each call has the permissions of its user, whatever a client asks before.

use crate::raw::Raw;
use crate::{image, open, trusting};
use nfs3_types::nfs3::{Nfs3Option, nfs_fh3, nfsstat3, nfstime3, sattr3, set_mtime, stable_how};
use nfs3_types::xdr_codec::Opaque;
use papilio::{FileSystem, NewInode, NewKind, XattrSet};
use papilio_nfs::{Export, Server, Squash};
use papilio_oracle::Scratch;

const READ: u32 = 1;
const LOOKUP: u32 = 2;
const MODIFY: u32 = 4;
const EXTEND: u32 = 8;
const DELETE: u32 = 16;
const EXECUTE: u32 = 32;
const ALL: u32 = 63;
const ACCES: nfsstat3 = nfsstat3::NFS3ERR_ACCES;
const PERM: nfsstat3 = nfsstat3::NFS3ERR_PERM;
/// Owner, group and others of most files below.
const OWNER: u32 = 1001;
const GROUP: u32 = 2001;

fn add(fs: &FileSystem, path: &str, kind: NewKind<'_>, mode: u32) {
    fs.create(path, &NewInode::new(kind, mode).owner(OWNER, GROUP)).unwrap();
}

fn chmod(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

/// An access control list with an entry for user 1003: `(tag, permissions, id)`.
fn list_for_1003(permissions: u16) -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1_u16, 6, none), (2, permissions, 1003), (4, 0, none), (0x10, 7, none), (0x20, 0, none)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A file system with files of one owner, and a server that lets root be root.
struct Fixture {
    fs: FileSystem,
    server: Server,
    _scratch: Scratch,
}

impl Fixture {
    fn new() -> Self {
        let scratch = Scratch::new(512 << 20).unwrap();
        let fs = open(&image(&scratch));
        add(&fs, "/dir", NewKind::Directory, 0o755);
        add(&fs, "/dir/private", NewKind::Regular, 0o600);
        add(&fs, "/dir/shared", NewKind::Regular, 0o664);
        add(&fs, "/dir/program", NewKind::Regular, 0o111);
        add(&fs, "/dir/listed", NewKind::Regular, 0o600);
        add(&fs, "/closed", NewKind::Directory, 0o700);
        add(&fs, "/closed/open", NewKind::Regular, 0o666);
        add(&fs, "/names", NewKind::Directory, 0o744);
        add(&fs, "/names/file", NewKind::Regular, 0o666);
        add(&fs, "/tmp", NewKind::Directory, 0o1777);
        add(&fs, "/tmp/file", NewKind::Regular, 0o666);
        add(&fs, "/group", NewKind::Directory, 0o2777);
        let listed = fs.inode("/dir/listed").unwrap();
        listed.set_xattr(b"system.posix_acl_access", &list_for_1003(6), XattrSet::Any).unwrap();
        let server = trusting(&fs, b"/");
        Self { fs, server, _scratch: scratch }
    }

    fn user(&self, uid: u32, gid: u32, groups: &[u32]) -> Raw {
        Raw::connect(self.server.address(), uid, gid, groups)
    }

    /// Returns a handle that root has got and passed on.
    fn handle(&self, path: &str) -> nfs_fh3 {
        let root = self.user(0, 0, &[]);
        path.split('/').fold(root.root(), |at, name| root.lookup(&at, name).unwrap())
    }
}

fn read(client: &Raw, file: &nfs_fh3) -> Result<(), nfsstat3> {
    client.read(file, 0, 10).map(drop)
}

fn write(client: &Raw, file: &nfs_fh3) -> Result<(), nfsstat3> {
    client.write(file, 0, b"data", stable_how::UNSTABLE).map(drop)
}

#[test]
fn data_is_for_those_whom_the_mode_and_the_list_let_in() {
    let fixture = Fixture::new();
    let [private, shared, program, listed] =
        ["private", "shared", "program", "listed"].map(|name| fixture.handle(&format!("dir/{name}")));
    let owner = fixture.user(OWNER, 9, &[]);
    let member = fixture.user(1002, 9, &[7, GROUP]);
    let other = fixture.user(1003, 9, &[]);
    for client in [&owner, &fixture.user(0, 0, &[])] {
        assert_eq!((read(client, &private), write(client, &private)), (Ok(()), Ok(())));
    }
    for client in [&member, &other, &Raw::nameless(fixture.server.address())] {
        assert_eq!((read(client, &private), write(client, &private)), (Err(ACCES), Err(ACCES)));
        assert_eq!(client.commit(&private), Err(ACCES));
        assert_eq!(client.access(&private, ALL), 0);
    }
    assert_eq!((read(&member, &shared), write(&member, &shared)), (Ok(()), Ok(())));
    assert_eq!((read(&other, &shared), write(&other, &shared)), (Ok(()), Err(ACCES)));
    assert_eq!(member.access(&shared, ALL), READ | MODIFY | EXTEND);
    assert_eq!((other.access(&shared, ALL), other.access(&shared, MODIFY)), (READ, 0));
    // A program is read to be executed.
    assert_eq!((read(&other, &program), write(&other, &program)), (Ok(()), Err(ACCES)));
    assert_eq!(other.access(&program, ALL), EXECUTE);
    assert_eq!((read(&other, &listed), write(&other, &listed)), (Ok(()), Ok(())));
    assert_eq!((read(&member, &listed), other.access(&listed, ALL)), (Err(ACCES), READ | MODIFY | EXTEND));
    // The owner may have opened the file before.
    owner.setattr(&private, chmod(0)).unwrap();
    assert_eq!((read(&owner, &private), write(&owner, &private)), (Ok(()), Ok(())));
    assert_eq!(owner.access(&private, ALL), 0);
    let cut = || sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    assert_eq!(other.setattr(&shared, cut()).unwrap_err(), ACCES);
    assert_eq!(member.setattr(&shared, cut()).unwrap().size, 0);
}

#[test]
fn directories_are_for_those_who_may_search_list_and_change_them() {
    let fixture = Fixture::new();
    let other = fixture.user(1003, 9, &[]);
    let owner = fixture.user(OWNER, 9, &[]);
    let root = other.root();
    let [dir, closed, names, tmp] = ["dir", "closed", "names", "tmp"].map(|name| fixture.handle(name));
    assert_eq!(other.lookup(&closed, "open").unwrap_err(), ACCES);
    assert_eq!(other.readdir(&closed, 0, 4096).unwrap_err(), ACCES);
    assert_eq!(other.readdirplus(&closed, 0, 4096).unwrap_err(), ACCES);
    assert!(other.mount("/papilio/closed/..").is_err() && owner.mount("/papilio/closed/..").is_ok());
    // It may be listed, but not searched.
    assert_eq!(other.lookup(&names, "file").unwrap_err(), ACCES);
    assert_eq!(other.readdir(&names, 0, 4096).unwrap().0, [".", "..", "file"]);
    let told = |client: &Raw| client.readdirplus(&names, 0, 4096).unwrap().0.iter().all(|(_, told)| *told);
    assert!(!told(&other) && told(&owner));
    assert_eq!((other.access(&names, ALL), other.access(&closed, ALL)), (READ, 0));
    assert_eq!(owner.access(&dir, ALL), READ | LOOKUP | MODIFY | EXTEND | DELETE);

    let nothing = sattr3::default;
    assert_eq!(other.create(&dir, "new", nothing()).unwrap_err(), ACCES);
    assert_eq!(other.create_exclusive(&dir, "new", [1; 8]).unwrap_err(), ACCES);
    assert_eq!(other.mkdir(&dir, "new", nothing()).unwrap_err(), ACCES);
    assert_eq!(other.symlink(&dir, "new", "target").unwrap_err(), ACCES);
    assert_eq!(other.mkfifo(&dir, "new").unwrap_err(), ACCES);
    assert_eq!(other.remove(&dir, "shared").unwrap_err(), ACCES);
    assert_eq!(other.rmdir(&root, "dir").unwrap_err(), ACCES);
    assert_eq!(other.rename((&dir, "shared"), (&tmp, "new")).unwrap_err(), ACCES);
    assert_eq!(other.rename((&tmp, "file"), (&dir, "new")).unwrap_err(), PERM);
    let file = fixture.handle("tmp/file");
    assert_eq!(other.link(&file, &dir, "new").unwrap_err(), ACCES);
    // The sticky bit.
    assert_eq!(other.remove(&tmp, "file").unwrap_err(), PERM);
    assert_eq!(other.mkdevice(&tmp, "device").unwrap_err(), PERM);
    let (own, made) = other.create(&tmp, "own", nothing()).unwrap();
    assert_eq!((made.uid, made.gid), (1003, 9));
    assert_eq!(other.rename((&tmp, "own"), (&tmp, "file")).unwrap_err(), PERM);
    other.link(&own, &tmp, "second").unwrap();
    other.rename((&tmp, "own"), (&tmp, "second")).unwrap();
    other.remove(&tmp, "own").unwrap();
    owner.remove(&tmp, "second").unwrap();
    // Another directory's parent is part of its content.
    add(&fixture.fs, "/group/inner", NewKind::Directory, 0o755);
    let group = fixture.handle("group");
    assert_eq!(other.rename((&group, "inner"), (&tmp, "inner")).unwrap_err(), ACCES);
    other.rename((&group, "inner"), (&group, "renamed")).unwrap();
}

#[test]
fn attributes_belong_to_the_owner() {
    let fixture = Fixture::new();
    let file = fixture.handle("dir/shared");
    let (owner, other) = (fixture.user(OWNER, 9, &[]), fixture.user(1003, 9, &[GROUP]));
    let chown = |uid| sattr3 { uid: Nfs3Option::Some(uid), ..sattr3::default() };
    let chgrp = |gid| sattr3 { gid: Nfs3Option::Some(gid), ..sattr3::default() };
    let given = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 99, nseconds: 0 });
    let at = |mtime| sattr3 { mtime, ..sattr3::default() };
    for set in [chmod(0o777), chown(1003), chown(OWNER), chgrp(9), at(given)] {
        assert_eq!(other.setattr(&file, set).unwrap_err(), PERM);
    }
    // The group may write, so it may set the time to the present.
    other.setattr(&file, at(set_mtime::SET_TO_SERVER_TIME)).unwrap();
    let stranger = fixture.user(1003, 9, &[]);
    assert_eq!(stranger.setattr(&file, at(set_mtime::SET_TO_SERVER_TIME)).unwrap_err(), ACCES);
    assert_eq!(owner.setattr(&file, chown(0)).unwrap_err(), PERM);
    assert_eq!(owner.setattr(&file, chgrp(3)).unwrap_err(), PERM);
    assert_eq!(owner.setattr(&file, chgrp(9)).unwrap().gid, 9);
    assert_eq!(owner.setattr(&file, at(given)).unwrap().mtime.seconds, 99);
    // Set-user-id goes when another user writes, and set-group-id needs a member.
    assert_eq!(owner.setattr(&file, chmod(0o6777)).unwrap().mode, 0o6777);
    other.write(&file, 0, b"x", stable_how::FILE_SYNC).unwrap();
    assert_eq!(owner.getattr(&file).unwrap().mode, 0o777);
    let foreign = fixture.handle("dir/private");
    assert_eq!(owner.setattr(&foreign, chmod(0o6755)).unwrap().mode, 0o4755);

    // New entries get the group of their directory, and no owner but the caller.
    let group = fixture.handle("group");
    let set = sattr3 { mode: Nfs3Option::Some(0o2755), ..chown(0) };
    let made = stranger.create(&group, "file", set).unwrap().1;
    assert_eq!((made.uid, made.gid, made.mode), (1003, GROUP, 0o755));
    let made = stranger.mkdir(&group, "inner", chmod(0o750)).unwrap().1;
    assert_eq!((made.uid, made.gid, made.mode), (1003, GROUP, 0o2750));
    let inherited = fixture.fs.inode("/group").unwrap();
    inherited.set_xattr(b"system.posix_acl_default", &list_for_1003(4), XattrSet::Any).unwrap();
    owner.create(&group, "listed", chmod(0o666)).unwrap();
    let listed = fixture.handle("group/listed");
    assert_eq!((read(&stranger, &listed), write(&stranger, &listed)), (Ok(()), Err(ACCES)));
}

#[test]
fn root_is_nobody_unless_trusted() {
    let fixture = Fixture::new();
    let export = Export::new(fixture.fs.clone(), b"/", false).unwrap();
    let server = Server::start("[::1]:0", export.clone());
    // A machine without IPv6 serves IPv4 only.
    let server = server.or_else(|_| Server::start("127.0.0.1:0", export.clone())).unwrap();
    assert!(!server.is_public());
    let root = Raw::connect(server.address(), 0, 0, &[0]);
    let at = root.root();
    let dir = root.lookup(&at, "dir").unwrap();
    let private = root.lookup(&dir, "private").unwrap();
    assert_eq!((read(&root, &private), write(&root, &private)), (Err(ACCES), Err(ACCES)));
    assert_eq!(root.mkdir(&at, "new", sattr3::default()).unwrap_err(), ACCES);
    let tmp = root.lookup(&at, "tmp").unwrap();
    let made = root.create(&tmp, "new", sattr3::default()).unwrap().1;
    assert_eq!((made.uid, made.gid), (65534, 65534));
    drop(server);
    let squash = Squash::default().all(true).anonymous(0, 0);
    let server = Server::start("127.0.0.1:0", export.squash(squash)).unwrap();
    let user = Raw::connect(server.address(), 1003, 9, &[]);
    let made = user.mkdir(&user.root(), "new", sattr3::default()).unwrap().1;
    assert_eq!((made.uid, made.gid), (0, 0));
}

#[test]
fn handles_from_elsewhere_open_nothing() {
    let fixture = Fixture::new();
    let private = fixture.handle("dir/private");
    let part = trusting(&fixture.fs, b"/closed");
    let client = Raw::connect(part.address(), 0, 0, &[]);
    assert!(client.lookup(&client.root(), "open").is_ok());
    // Of the same inode, from a server that shows it.
    assert_eq!(client.getattr(&private).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    // The client's own handle, changed to that of another inode.
    let mut forged = client.root().data.to_vec();
    let other = private.data.to_vec();
    forged[..16].copy_from_slice(&other[..16]);
    let handle = |bytes: Vec<u8>| nfs_fh3 { data: Opaque::owned(bytes) };
    assert_eq!(client.getattr(&handle(forged)).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    let bare = handle(other[..16].to_vec());
    assert_eq!(client.getattr(&bare).unwrap_err(), nfsstat3::NFS3ERR_BADHANDLE);
}
