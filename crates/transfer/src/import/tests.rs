//! Tests of filling from directories and archives, on a device in memory. The content must match
//! the source, and the check must be clean.

use super::*;
use papilio_device::{Device, MemoryDevice};
use papilio_engine::options::OpenOptions;
use papilio_format::items::inode::Timespec;
use papilio_fs::FileSystem;
use papilio_progs::check::CheckOptions;
use papilio_progs::mkfs::MkfsOptions;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;

fn made() -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    papilio_progs::mkfs::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).unwrap();
    (device, fs)
}

fn close_clean(device: &Arc<MemoryDevice>, fs: FileSystem) {
    fs.close().unwrap();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let options = CheckOptions::new().data_csum(true);
    let report = papilio_fs::check_devices(devices, &OpenOptions::new(), &options).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Creates a typical tree with some odd files.
fn tree(at: &Path) {
    std::fs::create_dir_all(at.join("d/e/f")).unwrap();
    std::fs::write(at.join("d/small"), "a few bytes").unwrap();
    std::fs::write(at.join("d/e/large"), (0..5_000_000u32).map(|n| (n / 9) as u8).collect::<Vec<_>>())
        .unwrap();
    std::fs::write(at.join("empty"), "").unwrap();
    std::fs::hard_link(at.join("d/small"), at.join("d/e/f/again")).unwrap();
    std::os::unix::fs::symlink("../d/small", at.join("d/link")).unwrap();
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    for place in [0, 3 << 20, 9 << 20] {
        sparse.write_all_at(&[5; 8192], place).unwrap();
    }
    sparse.set_len(20 << 20).unwrap();
    std::fs::set_permissions(at.join("d"), PermissionsExt::from_mode(0o2750)).unwrap();
    std::fs::set_permissions(at.join("empty"), PermissionsExt::from_mode(0o4711)).unwrap();
    let long = "n".repeat(150);
    std::fs::create_dir(at.join(&long)).unwrap();
    std::fs::write(at.join(&long).join(&long), "long names").unwrap();
}

fn assert_same(fs: &FileSystem, host: &Path, path: &str) {
    let (wanted, found) = (host.join(path).symlink_metadata().unwrap(), fs.inode_nofollow(path).unwrap());
    let metadata = found.metadata();
    assert_eq!(metadata.mode(), wanted.mode(), "{path}");
    assert_eq!((metadata.uid(), metadata.gid()), (wanted.uid(), wanted.gid()), "{path}");
    let mtime = Timespec { seconds: wanted.mtime(), nanoseconds: wanted.mtime_nsec() as u32 };
    assert_eq!(metadata.mtime(), mtime, "{path}");
    if wanted.is_file() {
        assert_eq!(u64::from(metadata.nlink()), wanted.nlink(), "{path}");
        assert!(fs.read(path).unwrap() == std::fs::read(host.join(path)).unwrap(), "{path}");
    }
    if wanted.is_symlink() {
        let target = std::fs::read_link(host.join(path)).unwrap();
        assert_eq!(found.read_link().unwrap(), target.into_os_string().into_encoded_bytes());
    }
}

fn assert_tree(fs: &FileSystem, host: &Path) {
    let long = "n".repeat(150);
    let paths = ["", "d", "d/small", "d/e", "d/e/large", "empty", "d/e/f", "d/e/f/again", "d/link", "sparse"];
    for path in paths.into_iter().map(str::to_owned).chain([long.clone(), format!("{long}/{long}")]) {
        assert_same(fs, host, &path);
    }
    assert_eq!(fs.inode("d/small").unwrap().number(), fs.inode("d/e/f/again").unwrap().number());
    let sparse = fs.inode("sparse").unwrap();
    assert_eq!(sparse.metadata().allocated_bytes(), 3 * 8192);
    assert_eq!(sparse.metadata().size(), 20 << 20);
    assert_eq!(fs.walk("/").unwrap().count(), 12, "the top, and nothing else");
}

#[test]
fn directory_is_copied_with_attributes() {
    let host = tempfile::tempdir().unwrap();
    tree(host.path());
    let (device, fs) = made();
    let done = Populate::new().directory(host.path(), &fs.inode("/").unwrap(), &mut ()).unwrap();
    assert_eq!(done.entries, 11);
    assert_eq!(done.bytes, 11 + 5_000_000 + 3 * 8192 + 10);
    assert_tree(&fs, host.path());
    close_clean(&device, fs);
}

#[test]
fn existing_names_are_refused_kept_or_replaced() {
    let host = tempfile::tempdir().unwrap();
    tree(host.path());
    let (device, fs) = made();
    let top = fs.inode("/").unwrap();
    let again = |populate: Populate| populate.entry(host.path().join("d"), &top, b"d", &mut ());
    again(Populate::new()).unwrap();
    assert!(matches!(again(Populate::new()), Err(Error::Path { kind: PathError::Exists, .. })));
    fs.inode("d/small").unwrap().open().unwrap().write_all_at(b"changed, and longer than before", 0).unwrap();
    assert_eq!(again(Populate::new().existing(Existing::Keep)).unwrap().bytes, 0);
    assert!(fs.read("d/small").unwrap().starts_with(b"changed"));
    again(Populate::new().existing(Existing::Replace)).unwrap();
    assert_same(&fs, host.path(), "d/small");
    fs.remove_file("d/e/large").unwrap();
    fs.create_dir("d/e/large").unwrap();
    let refused = again(Populate::new().existing(Existing::Replace)).unwrap_err();
    assert_eq!(refused.to_string(), "d/e/large: is a directory");
    close_clean(&device, fs);
}

struct Problems(Vec<String>);

impl PopulateObserver for Problems {
    fn problem(&mut self, problem: Error) -> Result<()> {
        self.0.push(problem.to_string());
        Ok(())
    }
}

#[test]
fn observer_can_skip_a_problem() {
    let host = tempfile::tempdir().unwrap();
    tree(host.path());
    let (device, fs) = made();
    fs.create_dir("empty").unwrap();
    fs.create_file("d").unwrap();
    let mut problems = Problems(Vec::new());
    let populate = Populate::new().existing(Existing::Replace);
    populate.directory(host.path(), &fs.inode("/").unwrap(), &mut problems).unwrap();
    assert_eq!(problems.0, ["d: not a directory", "empty: is a directory"]);
    assert_same(&fs, host.path(), "sparse");
    let missing = Populate::new().directory(host.path().join("no"), &fs.inode("/").unwrap(), &mut ());
    assert!(matches!(missing, Err(Error::Host { .. })));
    let file = Populate::new().directory(host.path().join("empty"), &fs.inode("/").unwrap(), &mut ());
    assert!(matches!(file, Err(Error::Host { .. })));
    close_clean(&device, fs);
}

#[test]
fn manifest_sets_owners_and_umask_clears_mode_bits() {
    let host = tempfile::tempdir().unwrap();
    tree(host.path());
    let (device, fs) = made();
    let manifest = Manifest::parse(b"* 7 8 -\nd/small 1 2 0604\n/ 3 4 0700\n").unwrap();
    let top = fs.inode("/").unwrap();
    Populate::new().manifest(manifest).directory(host.path(), &top, &mut ()).unwrap();
    let owner = |path: &str| {
        let metadata = fs.metadata(path).unwrap();
        (metadata.uid(), metadata.gid(), metadata.permissions())
    };
    assert_eq!(owner("d/small"), (1, 2, 0o604));
    assert_eq!(owner("/"), (3, 4, 0o700));
    assert_eq!(owner("empty"), (7, 8, 0o4711));
    let plain = Populate::new().keep_attributes(false).owner(5, 6).umask(0o077);
    plain.entry(host.path().join("d/small"), &top, b"plain", &mut ()).unwrap();
    assert_eq!((owner("plain").0, owner("plain").1, owner("plain").2 & 0o077), (5, 6, 0));
    let refused = plain.recursive(false).entry(host.path().join("d"), &top, b"other", &mut ());
    assert!(refused.unwrap_err().to_string().contains("directory"));
    close_clean(&device, fs);
}

/// Archives a tree with GNU tar in one of its formats; `None` without GNU tar.
fn archive(host: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("tar").args(arguments).args(["-C"]).arg(host).args(["-c", "."]).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: no tar: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

#[test]
fn archives_of_all_formats_are_unpacked() {
    let host = tempfile::tempdir().unwrap();
    tree(host.path());
    for arguments in [
        &["--format=pax", "--sparse", "--numeric-owner"][..],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
    ] {
        let Some(archive) = archive(host.path(), arguments) else { return };
        let (device, fs) = made();
        let top = fs.inode("/").unwrap();
        Populate::new().tar("archive", &archive[..], &top, &mut ()).unwrap();
        assert_tree(&fs, host.path());
        assert!(Populate::new().estimated_size_of_tar("archive", &archive[..]).unwrap() > 192 << 20);
        close_clean(&device, fs);
    }
    // These formats store whole seconds only.
    let archive = archive(host.path(), &["--format=gnu", "--sparse", "--gzip"]).unwrap();
    let (device, fs) = made();
    Populate::new().tar("archive", &archive[..], &fs.inode("/").unwrap(), &mut ()).unwrap();
    assert!(fs.read("d/e/large").unwrap() == std::fs::read(host.path().join("d/e/large")).unwrap());
    assert_eq!(fs.metadata("sparse").unwrap().allocated_bytes(), 3 * 8192);
    assert_eq!(fs.metadata("n".repeat(150) + "/" + &"n".repeat(150)).unwrap().size(), 10);
    assert_eq!(fs.metadata("empty").unwrap().permissions(), 0o4711);
    close_clean(&device, fs);
}

/// Makes an archive with the crate that the command uses to write archives.
fn members(make: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut archive = Vec::new();
    make(&mut archive);
    archive.extend([0; 1024]);
    archive
}

fn member(archive: &mut Vec<u8>, name: &[u8], kind: u8, link: &[u8], data: &[u8]) {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000001");
    header[116..123].copy_from_slice(b"0000002");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[136..147].copy_from_slice(b"00000001234");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link);
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend(header);
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

#[test]
fn members_keep_all_attributes() {
    let archive = members(|archive| {
        let records = [
            record("SCHILY.xattr.user.a%3Db", b"\n1 2=3\0"),
            record("SCHILY.acl.access", b"user::rw-,user:77:r--,group::r--,mask::r--,other::---"),
            record("uid", b"3000000000"),
            record("mtime", b"-1.25"),
        ];
        member(archive, b"PaxHeaders/f", b'x', b"", &records.concat());
        member(archive, b"./deep/er/f", b'0', b"", b"first");
        member(archive, b"hard", b'1', b"deep/er/f", b"");
        member(archive, b"link", b'2', b"nowhere", b"");
        member(archive, b"pipe", b'6', b"", b"");
        member(archive, b"twice", b'0', b"", b"the first time, longer");
        member(archive, b"twice", b'0', b"", b"the second");
        member(archive, b"deep/", b'5', b"", b"");
    });
    let (device, fs) = made();
    Populate::new().tar("archive", &archive[..], &fs.inode("/").unwrap(), &mut ()).unwrap();
    let file = fs.inode("hard").unwrap();
    assert_eq!(fs.read("deep/er/f").unwrap(), b"first");
    assert_eq!(
        (file.metadata().nlink(), file.metadata().uid(), file.metadata().gid()),
        (2, 3_000_000_000, 2)
    );
    assert_eq!(file.metadata().mtime(), Timespec { seconds: -2, nanoseconds: 750_000_000 });
    assert_eq!(file.xattr(b"user.a=b").unwrap().unwrap(), b"\n1 2=3\0");
    assert_eq!(file.xattr(b"system.posix_acl_access").unwrap().unwrap().len(), 4 + 5 * 8);
    assert_eq!(file.metadata().permissions(), 0o640);
    assert_eq!(fs.read("twice").unwrap(), b"the second");
    assert_eq!(fs.metadata("deep").unwrap().mtime().seconds, 0o1234);
    assert_eq!(fs.read_link("link").unwrap(), b"nowhere");
    assert_eq!(fs.metadata("pipe").unwrap().file_type(), FileKind::Fifo);
    close_clean(&device, fs);
}

#[test]
fn invalid_archives_are_refused() {
    let (device, fs) = made();
    let top = fs.inode("/").unwrap();
    let unpack = |archive: &[u8]| Populate::new().tar("archive", archive, &top, &mut ()).map(drop);
    let one = |name: &[u8], kind: u8, link: &[u8], data: &[u8]| {
        members(|archive| member(archive, name, kind, link, data))
    };
    let whole = one(b"whole", b'0', b"", &[1; 2000]);
    let mut wrong_sum = whole.clone();
    wrong_sum[0] ^= 1;
    let through = members(|archive| {
        member(archive, b"out", b'2', b"/etc", b"");
        member(archive, b"out/passwd", b'0', b"", b"x");
    });
    for (what, archive, said) in [
        ("nothing", &b""[..], "not a tar archive"),
        ("text", &[b'x'; 600], "checksum"),
        ("half a header", &whole[..100], "truncated"),
        ("half a member", &whole[..1000], "middle of a member"),
        ("a wrong checksum", &wrong_sum, "checksum"),
        ("a way out", &one(b"../out", b'0', b"", b"x"), ".."),
        ("a link to nothing", &one(b"hard", b'1', b"nothing", b""), "no such member"),
        ("records", &one(b"x", b'x', b"", b"nonsense"), "pax records"),
        ("gzip", &[0x1f, 0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0], "archive: "),
    ] {
        let error = unpack(archive).expect_err(what).to_string();
        assert!(error.contains(said), "{what}: {error}");
    }
    // A link leads to its target inside the content, and nowhere else.
    unpack(&through).unwrap();
    for length in 0..whole.len() / 16 {
        let _ = unpack(&whole[..length * 16]);
    }
    close_clean(&device, fs);
}
