//! Stock clients: the tools of libnfs.

use crate::{image, open, trusting};
use papilio::{FileSystem, NewInode, NewKind};
use papilio_nfs::{Export, Server};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::process::{Command, Output};

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
    let server = trusting(&fs, b"/");
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

#[test]
fn stock_clients_of_other_users_are_refused() {
    if require(&[Need::Command("nfs-cat"), Need::Command("nfs-cp")]).is_none() {
        return;
    }
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    let private = NewInode::new(NewKind::Regular, 0o600);
    fs.create("/secret", &private).unwrap().open().unwrap().write_all_at(b"secret\n", 0).unwrap();
    let server = Server::start("127.0.0.1:0", Export::new(fs.clone(), b"/", false).unwrap()).unwrap();
    let local = scratch.path().join("local");
    std::fs::write(&local, "overwritten\n").unwrap();
    let uri = |user: &str| format!("{}{user}", server.uri().replace("papilio?", "papilio/secret?"));
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| -> Output {
        Command::new(program).args(arguments).output().unwrap()
    };
    // User 0 is the anonymous one by default.
    for user in ["&uid=65534&gid=65534", "&uid=1000&gid=0", "&uid=0&gid=0"] {
        let (uri, text) = (uri(user), uri(user));
        let read = run("nfs-cat", &[uri.as_ref()]);
        assert!(!read.status.success() && read.stdout.is_empty(), "{user}: {read:?}");
        assert!(!run("nfs-cp", &[local.as_ref(), text.as_ref()]).status.success(), "{user}");
    }
    assert_eq!(fs.read("/secret").unwrap(), b"secret\n");
    server.stop().unwrap();
    let server = trusting(&fs, b"/");
    let uri = format!("{}&uid=0&gid=0", server.uri().replace("papilio?", "papilio/secret?"));
    assert_eq!(run("nfs-cat", &[uri.as_ref()]).stdout, b"secret\n");
    server.stop().unwrap();
    fs.close().unwrap();
    assert_eq!(FileSystem::open(&image).unwrap().read("/secret").unwrap(), b"secret\n");
}
