//! A file system that the kernel writes, and its images as losses of power leave them.

use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Scratch, Time};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a device.
const SIZE: u64 = 512 << 20;

/// The disk after a loss of power.
pub struct PowerCut {
    /// What went before.
    pub name: String,
    /// The images, one a device.
    pub images: Vec<PathBuf>,
    /// When the power went.
    pub moment: Time,
}

impl PowerCut {
    /// Whether the disk has a log, without which there is nothing to replay.
    pub fn has_log(&self) -> bool {
        open(&self.images, false).expect("the last commit can be read").has_log()
    }

    /// Removes the images.
    pub fn remove(&self) {
        self.images.iter().for_each(|image| std::fs::remove_file(image).unwrap());
    }
}

/// A mounted file system that commits only when it is asked to, or has to.
pub struct Machine {
    // The order matters: unmounted first.
    mounted: Mounted,
    images: ImageSet,
    pub scratch: Scratch,
}

impl Machine {
    /// A new one of the named shape; "papilio" is one that Papilio makes.
    pub fn new(shape: &str) -> Self {
        Self::sized(shape, SIZE)
    }

    /// The same on devices of so many bytes.
    pub fn sized(shape: &str, size: u64) -> Self {
        let scratch = Scratch::new(1 << 30).unwrap();
        let images = if shape == "papilio" {
            let image = scratch.image("made", size).unwrap();
            papilio::mkfs(&image, &MkfsOptions::new()).unwrap();
            ImageSet::open(&scratch, vec![image])
        } else {
            let spec = papilio_oracle::preset(shape).unwrap_or_else(|| panic!("no preset '{shape}'"));
            FileSystemSpec { device_size: size, ..spec }.make(&scratch).unwrap()
        };
        // Quotas, where the shape has them, are enabled by the first mount.
        images.mount().unwrap().unmount().unwrap();
        let mut options = vec!["subvolid=5".to_owned(), "commit=3600".to_owned()];
        options.extend(images.spec().mount_options.iter().cloned());
        let mounted = images.mount_with(&options, false).unwrap();
        // Room for what follows: a new chunk would force commits.
        let room = mounted.path().join("room");
        std::fs::write(&room, vec![1; 24 << 20]).unwrap();
        mounted.sync().unwrap();
        std::fs::write(&room, b"").unwrap();
        mounted.sync().unwrap();
        Self { mounted, images, scratch }
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        self.mounted.path()
    }

    /// Commits.
    pub fn commit(&self) {
        self.mounted.sync().unwrap();
    }

    /// The disk as a loss of power now would leave it.
    pub fn cut(&self, name: &str) -> PowerCut {
        let images = copy(self.images.paths(), &self.scratch);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let moment = Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
        PowerCut { name: name.to_owned(), images, moment }
    }

    /// Unmounts: no two file systems with one identity can be mounted at a time.
    pub fn stop(self) -> Scratch {
        self.mounted.unmount().unwrap();
        self.scratch
    }
}

/// Opens a file system of one or more images.
pub fn open(images: &[PathBuf], write: bool) -> papilio::Result<FileSystem> {
    let options = OpenOptions::new().write(write).commit_interval(None);
    let options = images[1..].iter().fold(options, |options, image| options.device(image));
    FileSystem::open_with(&images[0], &options)
}

/// Copies images, leaving holes holes.
pub fn copy(images: &[PathBuf], scratch: &Scratch) -> Vec<PathBuf> {
    let copied = images.iter().map(|from| {
        let to = scratch.unique("copy");
        let done = Command::new("cp").arg("--sparse=auto").args([from, &to]).status().expect("cp runs");
        assert!(done.success(), "cp {} {}", from.display(), to.display());
        to
    });
    copied.collect()
}
