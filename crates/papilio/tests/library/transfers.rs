//! Trees between file systems, mounts and directories of the host: equal blocks shared, streams
//! received into directories, and copies that their observer ends.

use papilio::{
    Dedupe, DedupeError, DedupeObserver, DedupeReport, Error, Export, ExportError, ExportObserver,
    ExportProblem, FileSystem, MkfsOptions, OpenOptions, Populate, PopulateObserver, Receive, SendOptions,
    WalkRoot,
};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require};
use std::cell::Cell;
use std::io;
use std::path::Path;

fn made(folder: &Path) -> FileSystem {
    let image = folder.join("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    FileSystem::open_with(&image, &OpenOptions::new().write(true).commit_interval(None)).unwrap()
}

fn content() -> Vec<u8> {
    (0..200_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Ends the work at its first step.
struct Ending(Cell<u32>);

fn canceled() -> io::Error {
    io::Error::from_raw_os_error(125)
}

impl DedupeObserver for Ending {
    fn file(&mut self, _path: &[u8], _before: &DedupeReport) -> io::Result<()> {
        self.0.set(self.0.get() + 1);
        Err(canceled())
    }

    fn failed(&mut self, error: DedupeError) {
        panic!("{error}");
    }
}

impl ExportObserver for Ending {
    fn problem(&self, problem: ExportProblem) {
        panic!("{problem}");
    }

    fn proceed(&self) -> io::Result<()> {
        self.0.set(self.0.get() + 1);
        Err(canceled())
    }
}

impl PopulateObserver for Ending {
    fn proceed(&mut self) -> papilio::Result<()> {
        self.0.set(self.0.get() + 1);
        Err(Error::Host { path: "copy".into(), source: canceled() })
    }
}

#[test]
fn equal_blocks_of_an_image_are_shared_once() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    for name in ["/a", "/b", "/c"] {
        fs.write(name, content()).unwrap();
    }
    let run = |dedupe: Dedupe| {
        let mut report = DedupeReport::default();
        let root = WalkRoot::in_file_system(&fs, "/").unwrap();
        dedupe.run(vec![root], &mut report, &mut ()).map(|()| report)
    };
    let bytes = content().len() as u64;
    let dry = run(Dedupe::new().dry_run(true)).unwrap();
    assert_eq!((dry.files, dry.shared_bytes, dry.differing_blocks), (3, 2 * bytes, 0));
    assert_eq!(run(Dedupe::new()).unwrap().shared_bytes, 2 * bytes);
    assert_eq!(run(Dedupe::new()).unwrap().shared_bytes, 0, "it is shared already");
    assert!(matches!(run(Dedupe::new().block_size(5000)), Err(DedupeError::BlockSize(5000))));
    assert_eq!(fs.read("/c").unwrap(), content());

    let other = tempfile::tempdir().unwrap();
    let second = made(other.path());
    let roots = [&fs, &second].map(|fs| WalkRoot::in_file_system(fs, "/").unwrap());
    let mut report = DedupeReport::default();
    let several = Dedupe::new().run(roots.into(), &mut report, &mut ());
    assert!(matches!(several, Err(DedupeError::SeveralFileSystems)));
    second.close().unwrap();
    fs.close().unwrap();
}

#[test]
fn equal_blocks_in_a_mount_of_the_kernel_are_shared() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    for name in ["a", "b"] {
        std::fs::write(mounted.path().join(name), content()).unwrap();
    }
    let mut report = DedupeReport::default();
    let root = WalkRoot::Mounted(mounted.path().to_path_buf());
    Dedupe::new().run(vec![root], &mut report, &mut ()).unwrap();
    assert_eq!(report.shared_bytes, content().len() as u64);
    assert!(std::fs::read(mounted.path().join("b")).unwrap() == content());
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

/// Two snapshots in one stream, the second with the changes only.
fn streams(fs: &FileSystem) -> Vec<u8> {
    fs.create_subvolume("/sv").unwrap();
    fs.write("/sv/one", "first").unwrap();
    fs.snapshot("/sv", "/s1", true).unwrap();
    fs.write("/sv/two", content()).unwrap();
    fs.rename("/sv/one", "/sv/three").unwrap();
    fs.snapshot("/sv", "/s2", true).unwrap();
    let id = |path| fs.inode(path).unwrap().tree();
    let mut bytes = Vec::new();
    SendOptions::new().send(fs, id("/s1"), &mut bytes, &mut ()).unwrap();
    SendOptions::new().parent(Some(id("/s1"))).send(fs, id("/s2"), &mut bytes, &mut ()).unwrap();
    bytes
}

#[cfg(target_os = "linux")]
fn receive_on_host(directory: &Path, bytes: &[u8]) -> papilio::Result<usize> {
    let mut received = Vec::new();
    let mut target = papilio::HostDirectory::open(directory)?;
    Receive::new().receive_into(&mut target, &mut &bytes[..], &mut received, &mut ())?;
    assert_eq!(std::fs::read_to_string(directory.join("s1/one")).unwrap(), "first");
    assert_eq!(std::fs::read_to_string(directory.join("s2/three")).unwrap(), "first");
    assert!(std::fs::read(directory.join("s2/two")).unwrap() == content());
    assert!(!directory.join("s2/one").exists());
    Ok(received.iter().filter(|subvolume| subvolume.complete).count())
}

#[cfg(target_os = "linux")]
#[test]
fn streams_are_received_into_directories_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    let bytes = streams(&fs);
    fs.close().unwrap();
    // A plain directory: the second snapshot is a copy of the first, with the changes.
    let plain = folder.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    assert_eq!(receive_on_host(&plain, &bytes).unwrap(), 2);
    let again = receive_on_host(&plain, &bytes).unwrap_err().to_string();
    assert!(again.contains("exists"), "{again}");
    let missing = receive_on_host(&folder.path().join("none"), &bytes).unwrap_err().to_string();
    assert!(missing.contains("none"), "{missing}");
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    assert_eq!(receive_on_host(mounted.path(), &bytes).unwrap(), 2);
    let refused = std::fs::write(mounted.path().join("s2/new"), "").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem, "a complete subvolume is read-only");
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

#[test]
fn an_observer_ends_copies() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    fs.write("/file", content()).unwrap();
    let top = fs.inode("/").unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let mut ending = Ending(Cell::new(0));
    let stopped = |ended: Result<(), ExportError>| match ended {
        Err(ExportError::Stopped(error)) => assert_eq!(error.raw_os_error(), Some(125)),
        other => panic!("{other:?}"),
    };
    stopped(Export::new().to_directory(&top, &out, &ending));
    stopped(Export::new().to_tar(&top, b"top", io::sink(), &ending));
    assert_eq!((ending.0.get(), out.join("file").exists()), (2, false));

    std::fs::write(out.join("host"), "content").unwrap();
    let ended = Populate::new().directory(&out, &top, &mut ending);
    assert!(matches!(ended, Err(Error::Host { .. })) && fs.inode("/host").is_err());
    let mut archive = Vec::new();
    Export::new().to_tar(&top, b"", &mut archive, &papilio::ExportProblems::default()).unwrap();
    fs.create_dir("/below").unwrap();
    let below = fs.inode("/below").unwrap();
    let ended = Populate::new().tar("archive", &archive[..], &below, &mut ending);
    assert!(matches!(ended, Err(Error::Host { .. })) && fs.inode("/below/file").is_err());

    let mut report = DedupeReport::default();
    let ended = Dedupe::new().run(
        vec![WalkRoot::Image(papilio::ImagePath::unnamed("/"), top)],
        &mut report,
        &mut ending,
    );
    assert!(matches!(ended, Err(DedupeError::Stopped(_))) && report.files == 0);
    drop(below);
    fs.close().unwrap();
}
