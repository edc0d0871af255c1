//! Access and modification times that depend only on the seed and the path.

use std::path::Path;

use anyhow::Context;

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
