//! A file system that the kernel writes, and copies of its images as power losses leave them.

use crate::images::open;
use papilio::{MkfsOptions, OpenOptions};
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Scratch, Time};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a device.
const SIZE: u64 = 512 << 20;

/// The disk after a power loss.
pub struct PowerCut {
    /// The history before the power loss.
    pub name: String,
    /// The images, one for each device.
    pub images: Vec<PathBuf>,
    /// The time of the power loss.
    pub moment: Time,
}

impl PowerCut {
    /// Whether the disk has a log to replay.
    pub fn has_log(&self) -> bool {
        open(&self.images, &OpenOptions::new().replay_log(false))
            .expect("the last commit can be read")
            .has_log()
    }

    /// Removes the images.
    pub fn remove(&self) {
        self.images.iter().for_each(|image| std::fs::remove_file(image).unwrap());
    }
}

/// A mounted file system that commits on request, or when the kernel has to.
pub struct Machine {
    // Fields drop in this order: the unmount comes first.
    mounted: Mounted,
    images: ImageSet,
    pub scratch: Scratch,
}

impl Machine {
    /// Makes and mounts a file system of a preset; Papilio makes the one named "papilio".
    pub fn new(shape: &str) -> Self {
        Self::sized(shape, SIZE)
    }

    /// As [`Machine::new`], with devices of `size` bytes.
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
        // The first mount enables quotas, if the preset has them.
        images.mount().unwrap().unmount().unwrap();
        let mut options = vec!["subvolid=5".to_owned(), "commit=3600".to_owned()];
        options.extend(images.spec().mount_options.iter().cloned());
        let mounted = images.mount_with(&options, false).unwrap();
        // Makes the data chunk that the history needs: a new chunk would force commits.
        // The stored image of `carried.rs` has a file of this name.
        let filler = mounted.path().join("room");
        std::fs::write(&filler, vec![1; 24 << 20]).unwrap();
        mounted.sync().unwrap();
        std::fs::write(&filler, b"").unwrap();
        mounted.sync().unwrap();
        Self { mounted, images, scratch }
    }

    /// Returns the mount point.
    pub fn root(&self) -> &Path {
        self.mounted.path()
    }

    /// Commits.
    pub fn commit(&self) {
        self.mounted.sync().unwrap();
    }

    /// Copies the disk as a power loss would leave it now.
    pub fn cut(&self, name: &str) -> PowerCut {
        let images = copy(self.images.paths(), &self.scratch);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let moment = Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
        PowerCut { name: name.to_owned(), images, moment }
    }

    /// Unmounts, so that copies can be mounted: the kernel mounts one file system of a UUID at a
    /// time.
    pub fn stop(self) -> Scratch {
        self.mounted.unmount().unwrap();
        self.scratch
    }
}

/// Copies images, and keeps their holes.
pub fn copy(images: &[PathBuf], scratch: &Scratch) -> Vec<PathBuf> {
    let copied = images.iter().map(|from| {
        let to = scratch.unique("copy");
        let done = Command::new("cp").arg("--sparse=auto").args([from, &to]).status().expect("cp runs");
        assert!(done.success(), "cp {} {}", from.display(), to.display());
        to
    });
    copied.collect()
}
