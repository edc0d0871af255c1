//! Streams that lie: cut, damaged, reordered, with paths that lead out, and with trees that would
//! need more memory than the machine has.

use papilio::stream::{Extract, LoadOptions, StreamChain, StreamError, StreamInput};
use papilio::{HostDirectory, SendCommand as Send, SendProtocol, Uuid};
use std::fs;
use std::path::Path;

const OWN: Uuid = Uuid::from_u128(1);

fn stream(commands: &[Send]) -> Vec<u8> {
    let mut bytes = SendProtocol::V1.header().to_vec();
    for command in commands {
        command.append_to(SendProtocol::V1, &mut bytes).unwrap();
    }
    bytes
}

fn subvol(number: u128) -> Send {
    Send::Subvol { path: b"s".to_vec(), uuid: Uuid::from_u128(number), ctransid: 5 }
}

fn file(path: &str) -> Send {
    Send::Mkfile { path: path.into(), inode: 300 }
}

fn directory(path: &str) -> Send {
    Send::Mkdir { path: path.into(), inode: 301 }
}

fn clone(from: u64, length: u64, to: u64) -> Send {
    Send::Clone {
        offset: to,
        length,
        path: b"f".to_vec(),
        clone_uuid: OWN,
        clone_ctransid: 5,
        clone_path: b"f".to_vec(),
        clone_offset: from,
    }
}

fn load(bytes: &[u8], options: LoadOptions) -> Result<StreamChain, StreamError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    StreamChain::load(vec![StreamInput::open(file.path()).unwrap()], options)
}

/// Returns the error of a stream with these commands after the first one.
fn error_of(commands: &[Send]) -> String {
    let all = [&[subvol(1)], commands].concat();
    load(&stream(&all), LoadOptions::new()).unwrap_err().to_string()
}

#[test]
fn faults_name_the_byte_and_the_command() {
    let first = stream(&[subvol(1)]).len();
    for path in ["../f", "/f", "a//b", "a/./b", "", ".", "..", "f/"] {
        let error = error_of(&[directory("a"), file(path)]);
        let at = stream(&[subvol(1), directory("a")]).len();
        assert!(error.contains(&format!("byte {at}: mkfile")), "{path}: {error}");
    }
    let check = |commands: &[Send], part: &str| {
        let error = error_of(commands);
        assert!(error.contains(part) && error.contains(": byte "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    let rename = |from: &str, to: &str| Send::Rename { from: from.into(), to: to.into() };
    check(&[file("f"), file("f")], "exists already");
    check(&[Send::Unlink { path: b"f".to_vec() }], &format!("byte {first}: unlink /f: no such file"));
    check(&[directory("a"), rename("a", "a/b")], "move below itself");
    check(&[directory("a"), file("a/f"), Send::Rmdir { path: b"a".to_vec() }], "not empty");
    check(&[file("f"), file("f/g")], "is not a directory");
    check(&[directory("a"), Send::Truncate { path: b"a".to_vec(), size: 1 }], "not a regular file");
    check(&[file("f"), Send::Truncate { path: b"f".to_vec(), size: u64::MAX }], "exceed the largest file");
    check(&[file("f"), clone(0, 4096, 4096)], "exceed the source of the clone");
    check(&[file("f"), clone(u64::MAX, 2, 0)], "exceed the largest file");
    let error = load(&stream(&[file("f")]), LoadOptions::new()).unwrap_err().to_string();
    assert!(error.contains("byte 17: mkfile /f: no subvolume has begun"), "{error}");
    check(&[subvol(1)], "has subvolume");
    check(&[Send::Chown { path: Vec::new(), uid: u64::MAX, gid: 0 }], "is not valid here");
    let name = "x".repeat(256);
    check(&[file(&name)], "invalid name");
}

#[test]
fn cut_damaged_and_reordered_streams_are_refused() {
    let write = |offset| Send::Write { path: b"a/f".to_vec(), offset, data: vec![7; 5000] };
    let commands = [subvol(1), directory("a"), file("a/f"), write(0), write(5000), Send::End];
    let bytes = stream(&commands);
    let whole = load(&bytes, LoadOptions::new()).unwrap();
    assert!(whole.doubts().is_empty());
    // At a command's start, the end is missing; anywhere else, the stream is cut.
    let starts: Vec<usize> = (1..commands.len()).map(|count| stream(&commands[..count]).len()).collect();
    for cut in (17..bytes.len()).filter(|cut| cut % 97 == 0 || starts.contains(cut) || *cut < 100) {
        let error = load(&bytes[..cut], LoadOptions::new());
        assert!(error.is_err(), "cut at {cut}: {error:?}");
    }
    for at in (0..bytes.len()).step_by(41).chain(starts) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        let error = load(&damaged, LoadOptions::new()).unwrap_err().to_string();
        assert!(error.contains("byte "), "{error}");
    }
    // The file comes before its directory.
    let mut swapped = commands.to_vec();
    swapped.swap(1, 2);
    let error = load(&stream(&swapped), LoadOptions::new()).unwrap_err().to_string();
    assert!(error.contains("mkfile /a/f: no such file"), "{error}");
}

#[test]
fn memory_is_bounded() {
    // Each clone doubles the extents of the file, and each snapshot is changed everywhere.
    let mut commands = vec![subvol(1), file("f")];
    commands.push(Send::Write { path: b"f".to_vec(), offset: 0, data: vec![1; 4096] });
    for power in 0..40 {
        let length = 4096 << power;
        commands.push(clone(0, length, length));
    }
    let options = LoadOptions::new().memory(64 << 20);
    let error = load(&stream(&commands), options).unwrap_err().to_string();
    assert!(error.contains("need more than 64 MiB"), "{error}");
    let mut commands = vec![subvol(1)];
    commands.extend((0..2000).map(|number| file(&format!("f{number}"))));
    for snapshot in 2..200 {
        let of = Uuid::from_u128;
        let (uuid, clone_uuid) = (of(snapshot), of(snapshot - 1));
        commands.push(Send::Snapshot {
            path: b"s".to_vec(),
            uuid,
            ctransid: 5,
            clone_uuid,
            clone_ctransid: 5,
        });
        commands
            .extend((0..2000).map(|number| Send::Chmod { path: format!("f{number}").into(), mode: 0o640 }));
    }
    let error = load(&stream(&commands), options).unwrap_err().to_string();
    assert!(error.contains("need more than 64 MiB"), "{error}");
    // The same without changes shares everything.
    commands.retain(|command| !matches!(command, Send::Chmod { .. }));
    commands.push(Send::End);
    assert_eq!(load(&stream(&commands), options).unwrap().parts().len(), 199);
}

#[test]
fn nothing_leaves_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
    for directory in [&inside, &outside] {
        fs::create_dir(directory).unwrap();
    }
    // A symbolic link that leads out, and a name below it.
    let target = outside.to_str().unwrap().as_bytes().to_vec();
    let link = Send::Symlink { path: b"link".to_vec(), inode: 9, target };
    let error = error_of(&[link.clone(), file("link/f")]);
    assert!(error.contains("is not a directory"), "{error}");
    // The link itself is extracted, and nothing through it.
    let chain = load(&stream(&[subvol(1), link, file("f"), Send::End]), LoadOptions::new()).unwrap();
    let mut host = HostDirectory::open_plain(&inside).unwrap();
    let mut failed = Vec::new();
    let root = rustix::process::geteuid().is_root();
    let extract = Extract::new().owners(root);
    extract.to_target(&chain, 0, &mut host, &mut |error| failed.push(error.to_string())).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let made = inside.join("s/link").symlink_metadata().unwrap();
    assert!(made.is_symlink() && inside.join("s/f").exists());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    for name in ["..", "a/b", "", "."] {
        let begin = Send::Subvol { path: name.into(), uuid: OWN, ctransid: 1 };
        let error = load(&stream(&[begin]), LoadOptions::new()).unwrap_err().to_string();
        assert!(error.contains("byte 17: subvol"), "{error}");
    }
    assert!(Path::new(&inside).join("s").is_dir());
}
