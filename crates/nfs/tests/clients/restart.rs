//! Handles, verifiers and what is durable when the server starts anew.

use crate::raw::Raw;
use crate::{image, open};
use nfs3_types::nfs3::{Nfs3Option, nfs_fh3, nfsstat3, sattr3, stable_how};
use papilio::{FileSystem, OpenOptions};
use papilio_nfs::{Export, Secret, Server, Squash};
use papilio_oracle::Scratch;

fn serve(fs: &FileSystem, path: &[u8], secret: &Secret) -> (Server, Raw) {
    let export = Export::new(fs.clone(), path, false).unwrap().secret(secret);
    let server = Server::start("127.0.0.1:0", export.squash(Squash::default().root(false))).unwrap();
    let client = Raw::connect(server.address(), 0, 0, &[]);
    (server, client)
}

#[test]
fn handles_are_valid_after_a_restart_and_name_one_inode() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let secret = Secret::kept_in(&scratch.path().join("key")).unwrap();
    let fs = open(&image);
    let (server, client) = serve(&fs, b"/", &secret);
    let root = client.root();
    let (directory, _) = client.mkdir(&root, "dir", sattr3::default()).unwrap();
    let (file, _) = client.create(&directory, "file", sattr3::default()).unwrap();
    client.write(&file, 0, b"content", stable_how::FILE_SYNC).unwrap();
    // The last inode: the next one gets its number if the file system is opened in between.
    let (last, made) = client.create(&root, "last", sattr3::default()).unwrap();
    client.remove(&root, "last").unwrap();
    let verifiers = [0, 1].map(|_| client.write_verifier(&file));
    assert_eq!(verifiers[0], verifiers[1]);
    drop((client, server));
    fs.close().unwrap();

    let secret = Secret::kept_in(&scratch.path().join("key")).unwrap();
    let fs = open(&image);
    let (server, client) = serve(&fs, b"/", &secret);
    assert_ne!(client.write_verifier(&file), verifiers[0], "clients must send their writes again");
    assert_eq!(client.read(&file, 0, 10).unwrap(), (b"content".to_vec(), true));
    assert!(client.lookup(&directory, "file").unwrap() == file && client.root() == root);
    let (next, again) = client.create(&root, "next", sattr3::default()).unwrap();
    assert_eq!(again.fileid, made.fileid, "the number was not used again, so this test shows nothing");
    assert_eq!(client.getattr(&last).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    assert!(client.getattr(&next).is_ok());
    drop((client, server));

    // Other exports and other secrets.
    for (path, secret) in [(&b"/dir"[..], &secret), (b"/", &Secret::random().unwrap())] {
        let (_server, client) = serve(&fs, path, secret);
        for handle in [&root, &directory, &file] {
            assert_eq!(client.getattr(handle).unwrap_err(), nfsstat3::NFS3ERR_STALE);
        }
        assert!(client.getattr(&client.root()).is_ok());
    }
    fs.close().unwrap();
}

/// Returns the content of the image as a process that was killed leaves it.
fn killed(scratch: &Scratch, image: &std::path::Path) -> FileSystem {
    let copy = scratch.path().join("copy");
    std::fs::copy(image, &copy).unwrap();
    FileSystem::open_with(&copy, &OpenOptions::new()).unwrap()
}

#[test]
fn what_is_answered_is_durable() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    let (server, client) = serve(&fs, b"/", &Secret::random().unwrap());
    let root = client.root();
    let names = |fs: &FileSystem, path: &str| -> Vec<String> {
        let mut names: Vec<_> = fs
            .read_dir(path)
            .unwrap()
            .map(|entry| String::from_utf8(entry.unwrap().file_name().to_vec()).unwrap())
            .collect();
        names.sort();
        names
    };
    let (one, _) = client.mkdir(&root, "one", sattr3::default()).unwrap();
    let (two, _) = client.mkdir(&root, "two", sattr3::default()).unwrap();
    assert_eq!(names(&killed(&scratch, &image), "/"), ["one", "two"]);
    let (file, _) = client.create(&one, "file", sattr3::default()).unwrap();
    let (_, made) = client.symlink(&one, "link", "target").unwrap();
    assert_eq!(made.size, 6);
    client.mkfifo(&one, "fifo").unwrap();
    client.link(&file, &two, "second").unwrap();
    let found = killed(&scratch, &image);
    assert_eq!(names(&found, "/one"), ["fifo", "file", "link"]);
    assert_eq!(
        (names(&found, "/two"), found.metadata("/two/second").unwrap().nlink()),
        (vec!["second".into()], 2)
    );
    client.rename((&one, "file"), (&two, "moved")).unwrap();
    client.rename((&one, "fifo"), (&one, "pipe")).unwrap();
    let found = killed(&scratch, &image);
    assert_eq!(
        (names(&found, "/one"), names(&found, "/two")),
        (vec!["link".into(), "pipe".into()], vec!["moved".into(), "second".into()])
    );
    client.rename((&one, "link"), (&two, "second")).unwrap();
    client.remove(&one, "pipe").unwrap();
    let found = killed(&scratch, &image);
    assert_eq!((names(&found, "/one").len(), found.symlink_metadata("/two/second").unwrap().size()), (0, 6));
    assert_eq!(found.metadata("/two/moved").unwrap().nlink(), 1);
    client.rename((&root, "one"), (&two, "below")).unwrap();
    let set = sattr3 { mode: Nfs3Option::Some(0o604), size: Nfs3Option::Some(77), ..sattr3::default() };
    client.setattr(&file, set).unwrap();
    let found = killed(&scratch, &image);
    assert_eq!(
        (names(&found, "/"), names(&found, "/two")),
        (vec!["two".into()], vec!["below".into(), "moved".into(), "second".into()])
    );
    let metadata = found.metadata("/two/moved").unwrap();
    assert_eq!((metadata.permissions(), metadata.size()), (0o604, 77));
    client.rmdir(&two, "below").unwrap();
    client.write(&file, 70, b"0123456789", stable_how::UNSTABLE).unwrap();
    client.commit(&file).unwrap();
    let found = killed(&scratch, &image);
    assert_eq!(names(&found, "/two"), ["moved", "second"]);
    assert_eq!(found.read("/two/moved").unwrap(), [&[0; 70][..], b"0123456789"].concat());
    drop((client, server));
    fs.close().unwrap();
}

#[test]
fn a_handle_of_a_deleted_inode_is_stale() {
    let scratch = Scratch::new(512 << 20).unwrap();
    let fs = open(&image(&scratch));
    let (_server, client) = serve(&fs, b"/", &Secret::random().unwrap());
    let root = client.root();
    let is_stale =
        |handle: &nfs_fh3| client.getattr(handle).is_err_and(|status| status == nfsstat3::NFS3ERR_STALE);
    let (file, _) = client.create(&root, "file", sattr3::default()).unwrap();
    let (directory, _) = client.mkdir(&root, "dir", sattr3::default()).unwrap();
    // A program that holds the file open elsewhere does not keep it for clients.
    let held = fs.inode("/file").unwrap().open().unwrap();
    client.remove(&root, "file").unwrap();
    client.rmdir(&root, "dir").unwrap();
    assert!(is_stale(&file) && is_stale(&directory));
    assert_eq!(client.write(&file, 0, b"x", stable_how::UNSTABLE).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    assert_eq!(client.create(&directory, "x", sattr3::default()).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    drop(held);
    let subvolume = fs.create_subvolume("/sub").unwrap();
    fs.write("/sub/file", b"x").unwrap();
    drop(subvolume);
    let sub = client.lookup(&root, "sub").unwrap();
    let file = client.lookup(&sub, "file").unwrap();
    fs.delete_subvolume("/sub").unwrap();
    assert!(is_stale(&file) && is_stale(&sub));
}
