//! The server with stock clients (libnfs), and the calls of the protocol one by one.

use nfs3_server::nfs3_types::nfs3::{
    Nfs3Option, createverf3, fattr3, filename3, ftype3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime,
    stable_how,
};
use nfs3_server::vfs::{NextResult, NfsFileSystem, NfsReadFileSystem, ReadDirPlusIterator, VFSCapabilities};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_nfs::{Export, Server};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::{Path, PathBuf};
use std::process::Command;

type Id = <Export as NfsReadFileSystem>::Handle;

fn image(scratch: &Scratch) -> PathBuf {
    let image = scratch.path().join("nfs.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    image
}

fn open(image: &Path) -> FileSystem {
    FileSystem::open_with(image, &OpenOptions::new().write(true).cache_bytes(16 << 20)).unwrap()
}

fn name(text: &str) -> filename3<'static> {
    text.as_bytes().to_vec().into()
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap().block_on(async {
        // The calls need a thread of the runtime.
        work.await;
    });
}

async fn names(export: &Export, directory: &Id, mut cookie: u64, most: usize) -> (Vec<String>, u64) {
    let mut entries = export.readdirplus(directory, cookie).await.unwrap();
    let mut found = Vec::new();
    while found.len() < most {
        match entries.next().await {
            NextResult::Ok(entry) => {
                found.push(String::from_utf8(entry.name.as_ref().to_vec()).unwrap());
                cookie = entry.cookie;
                assert!(entry.name_attributes.is_some() && entry.name_handle.is_some());
            }
            NextResult::Eof => break,
            NextResult::Err(status) => panic!("{status}"),
        }
    }
    (found, cookie)
}

async fn read_all(export: &Export, file: &Id, size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let (part, is_at_end) = export.read(file, bytes.len() as u64, 4096).await.unwrap();
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
    let export = Export::new(fs.clone(), b"/", false).unwrap();
    run(async {
        let root = export.root_dir();
        assert_eq!(export.capabilities(), VFSCapabilities::ReadWrite);
        let (directory, made) = export.mkdir(&root, &name("dir")).await.unwrap();
        assert_eq!((made.type_, made.mode), (ftype3::NF3DIR, 0o755));
        let set = sattr3 {
            mode: Nfs3Option::Some(0o640),
            uid: Nfs3Option::Some(7),
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 99, nseconds: 5 }),
            atime: set_atime::SET_TO_SERVER_TIME,
            ..sattr3::default()
        };
        let (file, made) = export.create(&directory, &name("file"), set).await.unwrap();
        assert_eq!((made.mode, made.uid, made.mtime.seconds, made.size), (0o640, 7, 99, 0));
        let bytes: Vec<u8> = (0..10_000_u32).map(|number| (number / 7) as u8).collect();
        let (written, how) = export.write(&file, 100, &bytes, stable_how::UNSTABLE).await.unwrap();
        assert_eq!((written.size, how), (10_100, stable_how::UNSTABLE));
        export.commit(&file, 0, 0).await.unwrap();
        let (_, how) = export.write(&file, 0, &[1; 100], stable_how::DATA_SYNC).await.unwrap();
        assert_eq!(how, stable_how::FILE_SYNC);
        assert_eq!(read_all(&export, &file, 10_100).await, [&[1; 100][..], &bytes].concat());
        let cut = sattr3 { size: Nfs3Option::Some(50), ..sattr3::default() };
        assert_eq!(export.setattr(&file, cut).await.unwrap().size, 50);
        assert_eq!(export.read(&file, 60, 10).await.unwrap(), (Vec::new(), true));
        // Creating it again without a size leaves the bytes.
        let (again, found) = export.create(&directory, &name("file"), sattr3::default()).await.unwrap();
        assert_eq!((again, found.size), (file, 50));

        let target = b"../dir/file".to_vec().into();
        let (link, made) = export.symlink(&root, &name("link"), &target, &sattr3::default()).await.unwrap();
        assert_eq!(made.type_, ftype3::NF3LNK);
        assert_eq!(export.readlink(&link).await.unwrap(), target);
        export.rename(&directory, &name("file"), &root, &name("moved")).await.unwrap();
        assert_eq!(export.lookup(&root, &name("moved")).await.unwrap(), file);
        assert_eq!(export.lookup(&directory, &name("..")).await.unwrap(), root);
        assert_eq!(export.lookup(&root, &name("..")).await.unwrap(), root);
        assert_eq!(export.lookup_by_path("/dir/../dir").await.unwrap(), directory);

        let verifier = createverf3(*b"verifier");
        let once = export.create_exclusive(&root, &name("once"), verifier).await.unwrap();
        assert_eq!(export.create_exclusive(&root, &name("once"), verifier).await.unwrap(), once);
        let other = export.create_exclusive(&root, &name("once"), createverf3(*b"another1")).await;
        assert_eq!(other.unwrap_err(), nfsstat3::NFS3ERR_EXIST);
        export.remove(&root, &name("dir")).await.unwrap();
        export.remove(&root, &name("once")).await.unwrap();
        assert_eq!(names(&export, &root, 0, 99).await.0, [".", "..", "link", "moved"]);
        assert_eq!(export.getattr(&once).await.unwrap_err(), nfsstat3::NFS3ERR_STALE);
    });
    drop(export);
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
    let export = Export::new(fs.clone(), b"/", false).unwrap();
    run(async {
        let root = export.root_dir();
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (found, last) = names(&export, &root, cookie, 7).await;
            if found.is_empty() {
                break;
            }
            all.extend(found);
            cookie = last;
            // The next listing begins behind a name that is gone.
            if all.len() == 70 {
                export.remove(&root, &name(&all[69])).await.unwrap();
            }
        }
        let expected = [".", "..", "sub"].map(str::to_owned).into_iter();
        assert_eq!(all, expected.chain((0..500).map(|number| number.to_string())).collect::<Vec<_>>());
        let sub = export.lookup(&root, &name("sub")).await.unwrap();
        assert_eq!(names(&export, &sub, 0, 9).await.0, [".", "..", "inside"]);
        assert_eq!(export.lookup(&sub, &name("..")).await.unwrap(), root);
        let ids: Vec<fattr3> =
            [export.getattr(&root).await.unwrap(), export.getattr(&sub).await.unwrap()].into();
        assert!(ids[0].fsid == ids[1].fsid && ids[0].fileid != ids[1].fileid);
    });
    drop(export);
    fs.close().unwrap();
}

#[test]
fn bad_requests_are_refused() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    fs.create_dir("/dir").unwrap();
    fs.create_file("/dir/file").unwrap();
    assert!(Export::new(fs.clone(), b"/none", false).is_err());
    assert!(Export::new(fs.clone(), b"/dir/file", false).is_err());
    let export = Export::new(fs.clone(), b"/dir", false).unwrap();
    run(async {
        let root = export.root_dir();
        let file = export.lookup(&root, &name("file")).await.unwrap();
        use nfsstat3 as S;
        assert_eq!(export.lookup(&root, &name("none")).await.unwrap_err(), S::NFS3ERR_NOENT);
        assert_eq!(export.lookup(&file, &name("none")).await.unwrap_err(), S::NFS3ERR_NOTDIR);
        assert_eq!(export.read(&root, 0, 10).await.unwrap_err(), S::NFS3ERR_ISDIR);
        assert_eq!(export.readlink(&file).await.unwrap_err(), S::NFS3ERR_INVAL);
        assert_eq!(export.remove(&root, &name("none")).await.unwrap_err(), S::NFS3ERR_NOENT);
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(export.mkdir(&root, &name(bad)).await.unwrap_err(), S::NFS3ERR_INVAL, "{bad:?}");
            assert_eq!(export.remove(&root, &name(bad)).await.unwrap_err(), S::NFS3ERR_INVAL, "{bad:?}");
        }
        let long = name(&"n".repeat(256));
        assert_eq!(export.mkdir(&root, &long).await.unwrap_err(), S::NFS3ERR_NAMETOOLONG);
        let far = export.write(&file, u64::MAX - 3, &[1; 10], stable_how::UNSTABLE).await;
        assert_eq!(far.unwrap_err(), S::NFS3ERR_FBIG);
        assert_eq!(export.read(&file, u64::MAX, u32::MAX).await.unwrap(), (Vec::new(), true));
        // The export begins at /dir.
        assert_eq!(export.lookup(&root, &name("..")).await.unwrap(), root);
    });
    drop(export);
    fs.close().unwrap();
    let fs = FileSystem::open(&image).unwrap();
    let export = Export::new(fs, b"/", true).unwrap();
    run(async {
        let root = export.root_dir();
        assert_eq!(export.capabilities(), VFSCapabilities::ReadOnly);
        let refused = export.mkdir(&root, &name("new")).await;
        assert_eq!(refused.unwrap_err(), nfsstat3::NFS3ERR_ROFS);
    });
}

/// Runs a client of libnfs on a path below the export.
fn client(program: &str, arguments: &[&str], uri: &str) -> String {
    let output = Command::new(program).args(arguments).arg(uri).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn stock_clients_read_and_write() {
    if require(&[Need::Command("nfs-cp")]).is_none() {
        return;
    }
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    fs.create_dir("/dir").unwrap();
    let server = Server::start("127.0.0.1:0", Export::new(fs.clone(), b"/", false).unwrap()).unwrap();
    assert!(!server.is_public());
    let uri = server.uri();
    let at = |path: &str| uri.replace("papilio?", &format!("papilio{path}?"));
    let local = scratch.path().join("local");
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|number| (number.wrapping_mul(number) >> 9) as u8).collect();
    std::fs::write(&local, &bytes).unwrap();
    client("nfs-cp", &[local.to_str().unwrap()], &at("/dir/copied"));
    assert!(client("nfs-ls", &["-R"], &uri).contains("copied"));
    let back = scratch.path().join("back");
    let output = Command::new("nfs-cp").arg(at("/dir/copied")).arg(&back).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&back).unwrap() == bytes);
    // The port is in use.
    assert!(
        Server::start(&server.address().to_string(), Export::new(fs.clone(), b"/", true).unwrap()).is_err()
    );
    server.stop().unwrap();
    fs.close().unwrap();
    if require(Need::KERNEL_MOUNT).is_some() {
        let images = ImageSet::open(&scratch, vec![image]);
        images.btrfs_check().unwrap();
        let mount = images.mount().unwrap();
        assert!(std::fs::read(mount.path().join("dir/copied")).unwrap() == bytes);
        mount.unmount().unwrap();
    }
}
