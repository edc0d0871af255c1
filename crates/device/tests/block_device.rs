//! Block devices and mounted images, on loop devices created here. Needs root and loop devices:
//! without them a test is skipped with a message, or fails if PAPILIO_REQUIRE_ALL=1.

use papilio_device::{
    Access, AlignedBuffer, Device, FileDevice, OpenErrorKind, OpenOptions, PhysicalAddress, ReadRequest,
    WriteRequest,
};
use std::path::{Path, PathBuf};
use std::process::Command;

const SIZE: u64 = 128 << 20;

/// Runs a command and returns its output, or its error output.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Reports a skipped test, or fails if every test is required.
fn skipped(reason: &str) {
    let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "PAPILIO_REQUIRE_ALL=1, but {reason}");
    eprintln!("SKIPPED {reason}");
}

/// An image file on a loop device; detached and deleted when dropped.
struct Loop {
    device: PathBuf,
    image: tempfile::NamedTempFile,
}

impl Loop {
    /// Attaches a new image; skips with a message if there are no loop devices.
    fn attach(options: &[&str]) -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(SIZE).unwrap();
        let arguments = [options, &["--find", "--show", image.path().to_str().unwrap()]].concat();
        match output("losetup", &arguments) {
            Ok(device) => Some(Self { device: device.into(), image }),
            Err(reason) => {
                skipped(&reason);
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(reason) = output("losetup", &["--detach", self.device.to_str().unwrap()]) {
            eprintln!("{} cannot be detached: {reason}", self.device.display());
        }
    }
}

/// A mounted file system; unmounted when dropped.
struct Mount {
    folder: tempfile::TempDir,
}

impl Mount {
    fn new(device: &Path, options: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let (device, target) = (device.to_str().unwrap(), folder.path().to_str().unwrap());
        output("mount", &["-t", "btrfs", "-o", options, device, target])?;
        Ok(Self { folder })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(reason) = output("umount", &[self.folder.path().to_str().unwrap()]) {
            eprintln!("{} cannot be unmounted: {reason}", self.folder.path().display());
        }
    }
}

#[test]
fn block_device_reads_what_was_written() {
    let Some(backing) = Loop::attach(&[]) else { return };
    for direct in [false, true] {
        let device = OpenOptions::new(Access::ReadWrite).direct(direct).open(&backing.device).unwrap();
        assert!(device.is_block_device());
        assert_eq!(device.size(), SIZE);
        assert_eq!(device.alignment() > 1, direct);
        let value = |at: usize| (at * 5 + usize::from(direct)) as u8;
        let blocks: Vec<_> = (0..256)
            .map(|at| {
                let mut block = AlignedBuffer::new(4096, 4096);
                block.fill(value(at));
                block
            })
            .collect();
        let place = |at: usize| PhysicalAddress((at * 37 % 256 * 12288) as u64);
        let mut writes: Vec<_> =
            blocks.iter().enumerate().map(|(at, block)| WriteRequest::new(place(at), block)).collect();
        device.write_many(&mut writes);
        writes.into_iter().for_each(|write| write.result.unwrap());
        // An unaligned write across a sector border.
        device.write_at(b"odd", PhysicalAddress(SIZE - 514)).unwrap();
        device.write_fua(b"fua", PhysicalAddress(SIZE - 3)).unwrap();
        device.write_fua(&blocks[9], PhysicalAddress(SIZE - 8192)).unwrap();
        device.flush().unwrap();
        drop(device);

        let device = OpenOptions::new(Access::ReadOnly).direct(direct).open(&backing.device).unwrap();
        let mut buffers: Vec<_> = (0..256).map(|_| AlignedBuffer::new(4096, 4096)).collect();
        let mut reads: Vec<_> =
            buffers.iter_mut().enumerate().map(|(at, buffer)| ReadRequest::new(place(at), buffer)).collect();
        device.read_many(&mut reads);
        reads.into_iter().for_each(|read| read.result.unwrap());
        for (at, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == value(at)), "block {at}");
        }
        let mut end = [0; 514];
        device.read_at(&mut end, PhysicalAddress(SIZE - 514)).unwrap();
        assert_eq!((&end[..3], &end[511..]), (&b"odd"[..], &b"fua"[..]));
        let mut block = [0; 4096];
        device.read_at(&mut block, PhysicalAddress(SIZE - 8192)).unwrap();
        assert!(block == blocks[9][..]);
        let error = device.read_at(&mut end, PhysicalAddress(SIZE - 513)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn block_device_discards_whole_sectors() {
    let Some(backing) = Loop::attach(&[]) else { return };
    let device = FileDevice::open(&backing.device, Access::ReadWrite).unwrap();
    device.write_at(&[1; 65536], PhysicalAddress(0)).unwrap();
    device.flush().unwrap();
    device.discard(PhysicalAddress(5000), 100).unwrap();
    device.discard(PhysicalAddress(4000), 40_000).unwrap();
    let mut content = vec![0; 65536];
    device.read_at(&mut content, PhysicalAddress(0)).unwrap();
    // A loop device discards by punching a hole.
    let zeros = content.iter().filter(|byte| **byte == 0).count();
    assert!(zeros > 30_000, "{zeros} bytes discarded");
    assert!(content[..4000].iter().chain(&content[44_000..]).all(|byte| *byte == 1));
    assert!(device.resize(SIZE / 2).is_err());
}

#[test]
fn device_mounted_by_the_kernel_is_not_opened_for_writing() {
    let Some(backing) = Loop::attach(&[]) else { return };
    if let Err(reason) = output("mkfs.btrfs", &["--quiet", backing.device.to_str().unwrap()]) {
        return skipped(&reason);
    }
    let open = |path: &Path, access| FileDevice::open(path, access).map_err(|error| error.kind);

    // A loop device that is attached but not mounted excludes nobody.
    drop(open(backing.image.path(), Access::ReadWrite).unwrap());
    let mount = match Mount::new(&backing.device, "ro") {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let result = open(&backing.device, Access::ReadWrite);
    assert!(matches!(result, Err(OpenErrorKind::InUseByKernel)), "{result:?}");
    let result = open(backing.image.path(), Access::ReadWrite);
    match result {
        Err(OpenErrorKind::InUseByLoop(name)) => assert_eq!(Path::new(&name), backing.device),
        result => panic!("{result:?}"),
    }
    // Reading is allowed.
    open(&backing.device, Access::ReadOnly).unwrap();
    open(backing.image.path(), Access::ReadOnly).unwrap();
    drop(mount);
    open(&backing.device, Access::ReadWrite).unwrap();
    open(backing.image.path(), Access::ReadWrite).unwrap();
}

#[test]
fn read_only_block_device_is_recognised() {
    let Some(backing) = Loop::attach(&["--read-only"]) else { return };
    let result = FileDevice::open(&backing.device, Access::ReadWrite);
    // Linux before 6.x allows the open and refuses the writes.
    match result {
        Err(error) => {
            let expected =
                matches!(error.kind, OpenErrorKind::ReadOnlyMedium | OpenErrorKind::PermissionDenied);
            assert!(expected, "{error}");
        }
        Ok(device) => assert!(device.write_fua(&[1; 512], PhysicalAddress(0)).is_err()),
    }
    FileDevice::open(&backing.device, Access::ReadOnly).unwrap();
}
