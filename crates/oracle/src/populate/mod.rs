//! A seeded tree with everything that a Btrfs can hold, written through a kernel mount.
//!
//! The same [`TreeSpec`] writes the same tree, byte for byte and name for name, except for change
//! times, creation times and extent layout. The parts:
//!
//! - `many/`: one directory of many small files;
//! - `tree/`: the rest of the small files, in nested directories;
//! - `big/`: the bulk of the bytes;
//! - `extents/`: holes, preallocation, overwrites, shared extents;
//! - `links/`, `names/`, `attributes/`: links and special inodes, odd names, modes and xattrs;
//! - `subvolumes/`: subvolumes, and snapshots whose origin changed afterwards.
//!
//! A last pass sets the modification times of all entries from the seed.

mod attributes;
mod bulk;
mod content;
mod extents;
mod links;
pub mod names;
mod subvolumes;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

pub use content::{Data, Writer};

/// How much to write, and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// Approximate number of files; a few hundred special cases come on top.
    pub files: u64,
    /// Approximate bytes of file content, before compression and sharing.
    pub bytes: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether to write subvolumes and snapshots, which only Btrfs supports.
    pub subvolumes: bool,
}

impl Default for TreeSpec {
    fn default() -> Self {
        Self { files: 300, bytes: 16 << 20, seed: 1, subvolumes: true }
    }
}

/// Counts of written entries and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Populated {
    /// Files, directories and other inodes created, without snapshots.
    pub entries: u64,
    /// Bytes of content written.
    pub bytes: u64,
}

impl TreeSpec {
    /// Writes the tree into the empty folder `root`, the root of a mounted file system.
    ///
    /// # Errors
    /// The file system's, with the part that was being written.
    pub fn populate(&self, root: &Path) -> anyhow::Result<Populated> {
        let mut writer = Writer::new(root, self.seed);
        let parts: [(&str, Part); 6] = [
            ("many", bulk::many),
            ("tree", bulk::tree),
            ("extents", extents::write),
            ("links", links::write),
            ("names", names::write),
            ("attributes", attributes::write),
        ];
        for (name, write) in parts {
            let folder = root.join(name);
            writer.directory(&folder)?;
            write(&mut writer, &folder, self).with_context(|| format!("populate {name}"))?;
            // Each part gets its own generation.
            sync(root)?;
        }
        let big = root.join("big");
        writer.directory(&big)?;
        bulk::big(&mut writer, &big, self).context("populate big")?;
        if self.subvolumes {
            let folder = root.join("subvolumes");
            writer.directory(&folder)?;
            subvolumes::write(&mut writer, &folder, self).context("populate subvolumes")?;
        }
        set_times(root, self.seed)?;
        sync(root)?;
        Ok(writer.done())
    }
}

type Part = fn(&mut Writer, &Path, &TreeSpec) -> anyhow::Result<()>;

/// Commits the file system that holds `path`.
pub(crate) fn sync(path: &Path) -> anyhow::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Sets access and modification times of all entries under `root`, each derived from the seed and
/// the path. Entries that cannot be changed (in read-only snapshots) are skipped.
pub(crate) fn set_times(root: &Path, seed: u64) -> anyhow::Result<()> {
    let mut stack = vec![root.to_owned()];
    let mut directories = Vec::new();
    while let Some(path) = stack.pop() {
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                stack.push(entry.path());
            } else {
                set_time(root, &entry.path(), seed)?;
            }
        }
        directories.push(path);
    }
    // Nothing is created after this, so the order no longer matters.
    directories.iter().try_for_each(|path| set_time(root, path, seed))
}

fn set_time(root: &Path, path: &Path, seed: u64) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let name = path.strip_prefix(root).unwrap_or(path).as_os_str().as_bytes();
    let mut random = fastrand::Rng::with_seed(xxhash_rust::xxh3::xxh3_64_with_seed(name, seed));
    let mut stamp = || rustix::fs::Timespec {
        tv_sec: match random.u8(..) {
            0..16 => random.i64(-10_000_000_000..0),
            // Past the end of signed 32-bit seconds, in 2038.
            16..32 => random.i64(1 << 31..1 << 35),
            32..36 => 0,
            _ => random.i64(1_000_000_000..1_800_000_000),
        },
        tv_nsec: random.i64(0..1_000_000_000),
    };
    let times = rustix::fs::Timestamps { last_access: stamp(), last_modification: stamp() };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    match rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags) {
        Ok(()) | Err(rustix::io::Errno::ROFS | rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("times of {}", path.display())),
    }
}

/// Builds a path below `folder` from a prefix and a number.
fn numbered(folder: &Path, prefix: &str, number: u64) -> PathBuf {
    folder.join(format!("{prefix}{number}"))
}
