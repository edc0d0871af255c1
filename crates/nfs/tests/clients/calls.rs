//! The calls of the protocol one by one, by a client whose root is root.

use crate::raw::Raw;
use crate::{image, open, trusting};
use nfs3_types::nfs3::{
    Nfs3Option, createhow3, ftype3, nfs_fh3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime, stable_how,
};
use papilio::FileSystem;
use papilio_nfs::{Export, Server, Squash};
use papilio_oracle::{ImageSet, Need, Scratch, require};

fn names(client: &Raw, directory: &nfs_fh3) -> Vec<String> {
    let (names, _, is_at_end) = client.readdir(directory, 0, 1 << 16).unwrap();
    assert!(is_at_end);
    names
}

fn read_all(client: &Raw, file: &nfs_fh3, size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let (part, is_at_end) = client.read(file, bytes.len() as u64, 4096).unwrap();
        bytes.extend(part);
        if is_at_end {
            assert_eq!(bytes.len(), size);
            return bytes;
        }
    }
}

#[test]
fn calls_change_the_file_system() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    let server = trusting(&fs, b"/");
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let (directory, made) = client.mkdir(&root, "dir", sattr3::default()).unwrap();
    assert_eq!((made.type_, made.mode), (ftype3::NF3DIR, 0o755));
    let set = sattr3 {
        mode: Nfs3Option::Some(0o640),
        uid: Nfs3Option::Some(7),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 99, nseconds: 5 }),
        atime: set_atime::SET_TO_SERVER_TIME,
        ..sattr3::default()
    };
    let (file, made) = client.create(&directory, "file", set).unwrap();
    assert_eq!((made.mode, made.uid, made.mtime.seconds, made.size), (0o640, 7, 99, 0));
    let bytes: Vec<u8> = (0..10_000_u32).map(|number| (number / 7) as u8).collect();
    let (written, how) = client.write(&file, 100, &bytes, stable_how::UNSTABLE).unwrap();
    assert_eq!((written.size, how), (10_100, stable_how::UNSTABLE));
    client.commit(&file).unwrap();
    let (_, how) = client.write(&file, 0, &[1; 100], stable_how::DATA_SYNC).unwrap();
    assert_eq!(how, stable_how::FILE_SYNC);
    assert_eq!(read_all(&client, &file, 10_100), [&[1; 100][..], &bytes].concat());
    let cut = sattr3 { size: Nfs3Option::Some(50), ..sattr3::default() };
    assert_eq!(client.setattr(&file, cut).unwrap().size, 50);
    assert_eq!(client.read(&file, 60, 10).unwrap(), (Vec::new(), true));
    // Creating it again without a size leaves the bytes; with size 0 it does not.
    let (again, found) = client.create(&directory, "file", sattr3::default()).unwrap();
    assert!(again == file && found.size == 50);
    let guarded = client.create_how(&directory, "file", createhow3::GUARDED(sattr3::default()));
    assert_eq!(guarded.unwrap_err(), nfsstat3::NFS3ERR_EXIST);
    let cut = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    assert_eq!(client.create(&directory, "file", cut).unwrap().1.size, 0);

    let (link, made) = client.symlink(&root, "link", "../dir/file").unwrap();
    assert_eq!(made.type_, ftype3::NF3LNK);
    assert_eq!(client.readlink(&link).unwrap(), b"../dir/file");
    client.rename((&directory, "file"), (&root, "moved")).unwrap();
    assert!(client.lookup(&root, "moved").unwrap() == file);
    assert!(client.lookup(&directory, "..").unwrap() == root);
    assert!(client.lookup(&root, "..").unwrap() == root);
    assert!(client.mount("/papilio/dir").unwrap() == directory);
    client.link(&file, &directory, "second").unwrap();
    assert_eq!(client.getattr(&file).unwrap().nlink, 2);
    assert_eq!(client.mkfifo(&root, "fifo").unwrap().1.type_, ftype3::NF3FIFO);
    let device = client.mkdevice(&root, "device").unwrap().1;
    assert_eq!((device.type_, device.rdev.specdata1, device.rdev.specdata2), (ftype3::NF3CHR, 1, 3));

    let once = client.create_exclusive(&root, "once", *b"verifier").unwrap();
    assert!(client.create_exclusive(&root, "once", *b"verifier").unwrap() == once);
    let other = client.create_exclusive(&root, "once", *b"another1");
    assert_eq!(other.unwrap_err(), nfsstat3::NFS3ERR_EXIST);
    assert_eq!(client.rmdir(&root, "dir").unwrap_err(), nfsstat3::NFS3ERR_NOTEMPTY);
    assert_eq!(client.remove(&root, "dir").unwrap_err(), nfsstat3::NFS3ERR_ISDIR);
    client.remove(&directory, "second").unwrap();
    client.rmdir(&root, "dir").unwrap();
    client.remove(&root, "once").unwrap();
    assert_eq!(names(&client, &root), [".", "..", "link", "moved", "fifo", "device"]);
    assert_eq!(client.getattr(&once).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    drop(client);
    server.stop().unwrap();
    fs.close().unwrap();
    if require(&[Need::Root, Need::Loop, Need::Command("btrfs")]).is_some() {
        ImageSet::open(&scratch, vec![image]).btrfs_check().unwrap();
    }
}

#[test]
fn listings_go_on_where_they_ended() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let fs = open(&image(&scratch));
    let subvolume = fs.create_subvolume("/sub").unwrap();
    for number in 0..500 {
        fs.create_file(format!("/{number}")).unwrap();
    }
    fs.create_file("/sub/inside").unwrap();
    drop(subvolume);
    let server = trusting(&fs, b"/");
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let (mut all, mut cookie, mut removed) = (Vec::new(), 0, false);
    loop {
        let (found, last, is_at_end) = client.readdirplus(&root, cookie, 1500).unwrap();
        assert!(found.iter().all(|(_, is_told)| *is_told) && found.len() < 12);
        all.extend(found.into_iter().map(|(name, _)| name));
        cookie = last;
        if is_at_end {
            break;
        }
        // The next listing begins behind a name that is gone.
        if all.len() > 70 && !removed {
            client.remove(&root, all.last().unwrap()).unwrap();
            removed = true;
        }
    }
    let expected = [".", "..", "sub"].map(str::to_owned).into_iter();
    assert_eq!(all, expected.chain((0..500).map(|number| number.to_string())).collect::<Vec<_>>());
    assert_eq!(client.readdirplus(&root, 0, 100).unwrap_err(), nfsstat3::NFS3ERR_TOOSMALL);
    assert_eq!(client.readdir(&root, 0, 20).unwrap_err(), nfsstat3::NFS3ERR_TOOSMALL);
    let sub = client.lookup(&root, "sub").unwrap();
    assert_eq!(names(&client, &sub), [".", "..", "inside"]);
    assert!(client.lookup(&sub, "..").unwrap() == root);
    let ids = [&root, &sub].map(|handle| client.getattr(handle).unwrap());
    assert!(ids[0].fsid == ids[1].fsid && ids[0].fileid != ids[1].fileid);
    drop(client);
    drop(server);
    fs.close().unwrap();
}

#[test]
fn bad_requests_are_refused() {
    use nfsstat3 as S;
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    fs.create_dir("/dir").unwrap();
    fs.create_file("/dir/file").unwrap();
    assert!(Export::new(fs.clone(), b"/none", false).is_err());
    assert!(Export::new(fs.clone(), b"/dir/file", false).is_err());
    let server = trusting(&fs, b"/dir");
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let file = client.lookup(&root, "file").unwrap();
    assert_eq!(client.lookup(&root, "none").unwrap_err(), S::NFS3ERR_NOENT);
    assert_eq!(client.lookup(&file, "none").unwrap_err(), S::NFS3ERR_NOTDIR);
    assert_eq!(client.read(&root, 0, 10).unwrap_err(), S::NFS3ERR_ISDIR);
    assert_eq!(client.readlink(&file).unwrap_err(), S::NFS3ERR_INVAL);
    assert_eq!(client.remove(&root, "none").unwrap_err(), S::NFS3ERR_NOENT);
    for bad in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(client.mkdir(&root, bad, sattr3::default()).unwrap_err(), S::NFS3ERR_INVAL, "{bad:?}");
        assert_eq!(client.remove(&root, bad).unwrap_err(), S::NFS3ERR_INVAL, "{bad:?}");
    }
    let long = client.mkdir(&root, &"n".repeat(256), sattr3::default());
    assert_eq!(long.unwrap_err(), S::NFS3ERR_NAMETOOLONG);
    let far = client.write(&file, u64::MAX - 3, &[1; 10], stable_how::UNSTABLE);
    assert_eq!(far.unwrap_err(), S::NFS3ERR_FBIG);
    assert_eq!(client.read(&file, u64::MAX, u32::MAX).unwrap(), (Vec::new(), true));
    // The export begins at /dir.
    assert!(client.lookup(&root, "..").unwrap() == root);
    assert!(client.mount("/").is_err() && client.mount("/papilio/file").is_err());
    // Garbage gets an error or ends the connection, and the server goes on.
    let call = client.encode(nfs3_types::nfs3::PROGRAM, 1, &u32::MAX);
    assert!(client.exchange(&call).unwrap().ends_with(&4_u32.to_be_bytes()));
    assert!(Raw::connect(server.address(), 0, 0, &[]).exchange(&[1; 3]).is_none());
    assert!(client.getattr(&file).is_ok());
    drop(client);
    drop(server);
    fs.close().unwrap();
    let fs = FileSystem::open(&image).unwrap();
    let export = Export::new(fs, b"/", true).unwrap().squash(Squash::default().root(false));
    let server = Server::start("127.0.0.1:0", export).unwrap();
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    assert_eq!(client.access(&root, 0x3f), 0x3);
    let refused = client.mkdir(&root, "new", sattr3::default());
    assert_eq!(refused.unwrap_err(), S::NFS3ERR_ROFS);
}

#[test]
fn a_repeated_call_is_carried_out_once() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let fs = open(&image(&scratch));
    fs.create_file("/file").unwrap();
    let server = trusting(&fs, b"/");
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let object = nfs3_types::nfs3::diropargs3 { dir: root.clone(), name: crate::raw::name("file") };
    let remove = nfs3_types::nfs3::REMOVE3args { object };
    let call = client.encode(nfs3_types::nfs3::PROGRAM, 12, &remove);
    let first = client.exchange(&call).unwrap();
    assert_eq!(client.exchange(&call).unwrap(), first);
    assert_eq!(client.remove(&root, "file").unwrap_err(), nfsstat3::NFS3ERR_NOENT);
    drop(client);
    drop(server);
    fs.close().unwrap();
}
