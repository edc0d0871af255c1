//! Ext and XFS images, conversions of them, and their judges.

use papilio_convert::{
    ConvertError, ConvertOptions, ConvertPlan, Converted, RolledBack, convert, plan, rollback,
};
use papilio_device::{Access, Device, FileDevice};
use papilio_engine::options::OpenOptions;
use papilio_fs::check;
use papilio_oracle::mount::Mount;
use papilio_oracle::scratch::unmount;
use papilio_oracle::{CompareOptions, HostTree, LoopDevice, Need, Scratch, compare};
use papilio_progs::check::CheckOptions;
use rustix::mount::MountFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The requirements of the tests.
pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::Loop,
    Need::KernelBtrfs,
    Need::Command("mke2fs"),
    Need::Command("e2fsck"),
    Need::Command("btrfs"),
];

/// The requirements of tests of XFS.
pub const XFS_NEEDS: &[Need] = &[
    Need::Root,
    Need::Loop,
    Need::KernelBtrfs,
    Need::Command("mkfs.xfs"),
    Need::Command("xfs_repair"),
    Need::Command("xfs_db"),
    Need::Command("btrfs"),
];

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext,
    Xfs,
}

impl Kind {
    /// The name of the subvolume that keeps it.
    pub fn saved(self) -> &'static str {
        match self {
            Self::Ext => papilio_convert::SAVED,
            Self::Xfs => papilio_convert::SAVED_XFS,
        }
    }

    /// Lets the file system's own program find no fault in an image.
    pub fn check(self, image: &Path) {
        let path = image.to_str().unwrap();
        match self {
            Self::Ext => run("e2fsck", &["-fn", path]),
            Self::Xfs => run("xfs_repair", &["-n", "-f", "-o", "force_geometry", path]),
        };
    }

    /// Returns the blocks of an image that are not free.
    pub fn used_blocks(self, image: &Path) -> Vec<u64> {
        match self {
            Self::Ext => used_blocks(image),
            Self::Xfs => used_blocks_of_xfs(image),
        }
    }
}

/// Runs a program, which must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let path = papilio_oracle::requirement::find_command(program).unwrap();
    let mut command = Command::new(path);
    // With these, mkfs.xfs makes file systems that are smaller than it wants.
    for name in ["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"] {
        command.env(name, "1");
    }
    let output = command.args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

/// Lets `e2fsck` repair an image. It exits with 1 if there was something to repair.
pub fn mend(image: &Path) {
    let path = papilio_oracle::requirement::find_command("e2fsck").unwrap();
    let output = Command::new(path).arg("-fy").arg(image).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code <= 1), "{output:?}");
}

/// A mounted source.
pub struct SourceMount {
    point: PathBuf,
    _loop: LoopDevice,
}

impl SourceMount {
    pub fn new(scratch: &Scratch, kind: Kind, image: &Path, read_only: bool) -> Self {
        let device = LoopDevice::attach(image, read_only).unwrap();
        let point = scratch.unique("source");
        std::fs::create_dir(&point).unwrap();
        let mut flags = MountFlags::NOATIME;
        flags.set(MountFlags::RDONLY, read_only);
        let (name, data) = match kind {
            Kind::Ext if read_only => (c"ext4", c""),
            Kind::Ext => (c"ext4", c"user_xattr,acl"),
            // The source and its copies have one UUID.
            Kind::Xfs => (c"xfs", c"nouuid"),
        };
        rustix::mount::mount(device.path(), &point, name, flags, data).unwrap();
        Self { point, _loop: device }
    }

    pub fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for SourceMount {
    fn drop(&mut self) {
        unmount(&self.point).unwrap();
    }
}

/// An image of a source, and a copy of it as it was.
pub struct World {
    pub kind: Kind,
    pub scratch: Scratch,
    pub image: PathBuf,
    pub original: PathBuf,
}

impl World {
    /// Makes an image of `mib` MiB by `mke2fs` with these arguments, and fills it.
    pub fn new(arguments: &str, mib: u64, fill: impl FnOnce(&Path)) -> Self {
        let scratch = Scratch::new((2 * mib) << 20).unwrap();
        let image = scratch.image("ext", mib << 20).unwrap();
        let mut all: Vec<&str> = vec!["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        all.extend(arguments.split_whitespace());
        let path = image.to_str().unwrap().to_owned();
        all.push(&path);
        run("mke2fs", &all);
        {
            let mounted = SourceMount::new(&scratch, Kind::Ext, &image, false);
            fill(mounted.path());
        }
        Self::of(Kind::Ext, scratch, image)
    }

    /// Makes an image of `mib` MiB by `mkfs.xfs` with these arguments, and fills it.
    pub fn xfs(arguments: &str, mib: u64, fill: impl FnOnce(&Path)) -> Self {
        let scratch = Scratch::new((2 * mib) << 20).unwrap();
        let image = scratch.image("xfs", mib << 20).unwrap();
        let mut all: Vec<&str> = vec!["-q", "-f"];
        all.extend(arguments.split_whitespace());
        let path = image.to_str().unwrap().to_owned();
        all.push(&path);
        run("mkfs.xfs", &all);
        {
            let mounted = SourceMount::new(&scratch, Kind::Xfs, &image, false);
            fill(mounted.path());
        }
        Self::of(Kind::Xfs, scratch, image)
    }

    /// Takes an image that is there.
    pub fn of(kind: Kind, scratch: Scratch, image: PathBuf) -> Self {
        let mut world = Self { kind, original: image.with_extension("original"), scratch, image };
        world.keep();
        world
    }

    /// Keeps a copy of the image as it is now.
    pub fn keep(&mut self) {
        copy(&self.image, &self.original);
    }

    pub fn device(&self) -> Arc<dyn Device> {
        // Another program that looks at all loop devices holds one up for a moment.
        for _ in 0..50 {
            if let Ok(device) = FileDevice::open(&self.image, Access::ReadWrite) {
                return Arc::new(device);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Arc::new(FileDevice::open(&self.image, Access::ReadWrite).unwrap())
    }

    pub fn plan(&self) -> Result<ConvertPlan, ConvertError> {
        plan(&self.device(), &ConvertOptions::new(), &mut |_| ())
    }

    pub fn convert_with(&self, options: &ConvertOptions) -> Result<Converted, ConvertError> {
        convert(&self.device(), options, &mut |_| ())
    }

    pub fn convert(&self) -> Converted {
        self.convert_with(&ConvertOptions::new()).unwrap()
    }

    pub fn roll_back(&self) -> Result<RolledBack, ConvertError> {
        rollback(&self.device(), &mut |_| ())
    }

    /// Checks the image as Btrfs, by `btrfs check` and by Papilio with all data.
    pub fn check_btrfs(&self) {
        let text = run("btrfs", &["check", "--check-data-csum", self.image.to_str().unwrap()]);
        assert!(text.contains("no error found"), "{text}");
        let report = check(&self.image, &OpenOptions::new(), &CheckOptions::new().data_csum(true)).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    /// Lets the kernel read everything, with its checksums.
    pub fn scrub(&self) {
        let (mount, _loop) = self.mount_btrfs(true);
        let text = run("btrfs", &["scrub", "start", "-B", "-r", mount.path().to_str().unwrap()]);
        assert!(text.contains("no errors found"), "{text}");
    }

    pub fn mount_btrfs(&self, read_only: bool) -> (Mount, LoopDevice) {
        let device = LoopDevice::attach(&self.image, read_only).unwrap();
        (Mount::btrfs(&self.scratch, device.path(), "", read_only).unwrap(), device)
    }

    /// Compares the kernel's view of the converted file system with that of the original.
    pub fn compare_btrfs(&self, left_out: &[&str]) {
        let source = SourceMount::new(&self.scratch, self.kind, &self.original, true);
        let (btrfs, _loop) = self.mount_btrfs(true);
        compare_trees(source.path(), btrfs.path(), left_out);
        self.compare_image(btrfs.path());
    }

    /// Compares the saved image with the original: bytes where it has any, and everything that the
    /// kernel shows of the file system in it.
    pub fn compare_image(&self, btrfs: &Path) {
        let saved = btrfs.join(self.kind.saved()).join("image");
        self.kind.check(&saved);
        assert_same_data(&saved, &self.original);
        self.compare_mounts(&saved);
    }

    /// Checks that the image is the original again, with the same bytes in every block in use.
    pub fn check_back(&self) {
        self.kind.check(&self.image);
        self.compare_mounts(&self.image);
        self.compare_used_blocks();
    }

    /// Compares what the kernel shows of the original and of another image of the source.
    fn compare_mounts(&self, other: &Path) {
        let [original, other] =
            [&self.original, other].map(|image| SourceMount::new(&self.scratch, self.kind, image, true));
        compare_same(original.path(), other.path());
    }

    /// Compares the bytes of all blocks that the source uses.
    pub fn compare_used_blocks(&self) {
        let files = [&self.original, &self.image].map(|path| File::open(path).unwrap());
        let mut buffers = [vec![0; 4096], vec![0; 4096]];
        for block in self.kind.used_blocks(&self.original) {
            for (file, buffer) in files.iter().zip(&mut buffers) {
                file.read_exact_at(buffer, block * 4096).unwrap();
            }
            assert!(buffers[0] == buffers[1], "block {block} differs");
        }
    }
}

/// Returns the blocks that `dumpe2fs` does not list as free.
pub fn used_blocks(image: &Path) -> Vec<u64> {
    let text = run("dumpe2fs", &[image.to_str().unwrap()]);
    let number = |field: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split(':').nth(1).unwrap().trim().parse().unwrap()
    };
    assert_eq!(number("Block size"), 4096);
    let mut used = vec![true; number("Block count") as usize];
    let lists = text.lines().filter_map(|line| line.trim_start().strip_prefix("Free blocks: "));
    for range in lists.flat_map(|list| list.split(',')).map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        used[first..=last].fill(false);
    }
    (0..used.len() as u64).filter(|block| used[*block as usize]).collect()
}

/// Returns the blocks that `xfs_db` does not list as free.
fn used_blocks_of_xfs(image: &Path) -> Vec<u64> {
    let text = run(
        "xfs_db",
        &[
            "-r",
            "-c",
            "sb 0",
            "-c",
            "p dblocks agblocks blocksize",
            "-c",
            "freesp -d",
            image.to_str().unwrap(),
        ],
    );
    let number = |field: &str| -> usize {
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split('=').nth(1).unwrap().trim().parse().unwrap()
    };
    assert_eq!(number("blocksize"), 4096);
    let (mut used, group) = (vec![true; number("dblocks")], number("agblocks"));
    for line in text.lines() {
        let fields: Vec<usize> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        if let [number, first, count] = fields[..]
            && line.split_whitespace().count() == 3
        {
            let start = number * group + first;
            used[start..start + count].fill(false);
        }
    }
    assert!(used.contains(&false));
    (0..used.len() as u64).filter(|block| used[*block as usize]).collect()
}

/// Copies an image, with its holes.
pub fn copy(from: &Path, to: &Path) {
    run("cp", &["--sparse=auto", from.to_str().unwrap(), to.to_str().unwrap()]);
}

/// Compares trees of a source and Btrfs, whose directories differ in size and link count.
pub fn compare_trees(source: &Path, btrfs: &Path, left_out: &[&str]) {
    let options = CompareOptions {
        inode_numbers: false,
        flags: false,
        segments: false,
        keep: 100_000,
        ..CompareOptions::SAME_IMAGE
    };
    let report = compare(&HostTree::new(source), &HostTree::new(btrfs), &options);
    assert!(report.entries > 1);
    let wrong: Vec<_> = report
        .differences
        .iter()
        .filter(|found| {
            let is_directory = source.join(&found.path).is_dir();
            !([papilio_convert::SAVED, papilio_convert::SAVED_XFS].iter().any(|name| found.path == Path::new(name))
                // XFS shows access control lists in its own format, too.
                || found.fact.starts_with("xattr \"trusted.SGI_ACL_")
                || is_directory && matches!(&*found.fact, "nlink" | "size")
                || left_out.iter().any(|fact| found.fact.starts_with(fact)))
        })
        .collect();
    assert!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}

/// Compares trees that are to be equal in everything.
pub fn compare_same(a: &Path, b: &Path) {
    compare(&HostTree::new(a), &HostTree::new(b), &CompareOptions::SAME_IMAGE).assert_equal(1);
}

/// Compares a file with another, where the first has data.
fn assert_same_data(part: &Path, whole: &Path) {
    use rustix::fs::SeekFrom;
    let (part, whole) = (File::open(part).unwrap(), File::open(whole).unwrap());
    assert_eq!(part.metadata().unwrap().len(), whole.metadata().unwrap().len());
    let (mut at, mut compared) = (0, 0);
    while let Ok(start) = rustix::fs::seek(&part, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&part, SeekFrom::Hole(start)).unwrap();
        let mut from = start;
        while from < end {
            let length = (end - from).min(1 << 20) as usize;
            let (mut a, mut b) = (vec![0; length], vec![0; length]);
            part.read_exact_at(&mut a, from).unwrap();
            whole.read_exact_at(&mut b, from).unwrap();
            assert!(a == b, "bytes from {from} on differ");
            from += length as u64;
            compared += length;
        }
        at = end;
    }
    assert!(compared > 0);
}
