//! Preparation of a sweep's file system: a file with a given number of extents, and snapshots.
//!
//! Owns [`Prepared`]. Papilio prepares the file system for all sides.
//!
//! The file's extents are reflinks: 10,000,000 extents of 4 KiB with data of their own would need
//! 40 GiB. The pieces of the file refer alternately to two groups of shared extents, so that
//! neighbouring pieces are never contiguous on disk. The file's tree has its full size; the
//! checksum and extent trees stay small.

use super::bench::Bench;
use crate::job::ScaledJob;
use papilio::{FileSystem, OpenOptions};

/// Size in bytes of a window of the file, which is also the size of each shared extent.
pub const WINDOW: u64 = 8 << 20;
/// Number of windows with shared extents of their own; later windows are reflinks of these.
const OWN_WINDOWS: u64 = 16;
/// Size of the smallest piece in bytes.
pub const SECTOR: u64 = 4096;
/// Total size of the shared extents in bytes: two for each of those windows.
pub const SHARED_BYTES: u64 = 2 * OWN_WINDOWS * WINDOW;

/// The preparation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Extents in each window of the job's one file; `None` means files written sequentially.
    pub extents: Option<u64>,
    /// Number of snapshots of the whole file system.
    pub snapshots: u64,
}

impl Bench<'_> {
    /// Makes a new file system, writes all files of a job, and takes snapshots.
    ///
    /// # Errors
    /// The engine is missing, or the engine or the library fails.
    pub fn prepare(&self, job: &ScaledJob, prepared: &Prepared) -> anyhow::Result<()> {
        self.mkfs()?;
        match prepared.extents {
            Some(per_window) => {
                let fs = self.open_for_writing()?;
                let name = job.file.value("filename").unwrap_or_default();
                make_extents(&fs, name, job.file_bytes / WINDOW, per_window)?;
                fs.close()?;
            }
            None => {
                let stem = self.output.join(format!("{}-preparation", job.job.id));
                self.engine_fill(job, stem)?;
            }
        }
        if prepared.snapshots > 0 {
            let fs = self.open_for_writing()?;
            for number in 0..prepared.snapshots {
                fs.snapshot("/", format!("/snapshot{number}"), true)?;
            }
            fs.close()?;
        }
        Ok(())
    }

    fn open_for_writing(&self) -> anyhow::Result<FileSystem> {
        Ok(FileSystem::open_with(self.backing.path(), &OpenOptions::new().write(true))?)
    }
}

/// Makes a file of `windows` windows with `per_window` extents each.
fn make_extents(fs: &FileSystem, name: &str, windows: u64, per_window: u64) -> papilio::Result<()> {
    let own = windows.min(OWN_WINDOWS);
    let shared = fs.create_file("/shared")?;
    let mut noise = fastrand::Rng::with_seed(5);
    let mut bytes = vec![0; WINDOW as usize];
    for number in 0..2 * own {
        noise.fill(&mut bytes);
        // Each call writes one extent.
        shared.write_all_at(&bytes, number * WINDOW)?;
    }
    let file = fs.create_file(format!("/{name}"))?;
    let border = |piece: u64| piece % per_window * (WINDOW / SECTOR) / per_window * SECTOR;
    for piece in 0..own * per_window {
        let (window, start) = (piece / per_window, border(piece));
        let end = if (piece + 1) % per_window == 0 { WINDOW } else { border(piece + 1) };
        let source = (piece % 2 * own + window) * WINDOW + start;
        file.clone_range(&shared, source, end - start, window * WINDOW + start)?;
    }
    let mut done = own;
    while done < windows {
        let more = done.min(windows - done);
        file.clone_range(&file, 0, more * WINDOW, done * WINDOW)?;
        done += more;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::{CheckOptions, MkfsOptions, RenameMode};

    #[test]
    fn the_file_has_the_requested_extents() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        papilio::mkfs(&image, &MkfsOptions::new().size(1 << 30)).unwrap();
        let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
        make_extents(&fs, "few", 3, 1).unwrap();
        fs.rename_with("/shared", "/before", RenameMode::NoReplace).unwrap();
        make_extents(&fs, "many", 2 * OWN_WINDOWS + 3, 100).unwrap();
        for (name, windows, extents) in [("/few", 3, 3), ("/many", 35, 3500)] {
            let file = fs.open_file(name).unwrap();
            assert_eq!(file.inode().metadata().size(), windows * WINDOW);
            assert_eq!(file.fiemap(0).unwrap().len(), extents, "{name}");
        }
        // Later windows have the contents of the first ones.
        let file = fs.open_file("/many").unwrap();
        let (mut first, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        for (window, at) in [(17, 5 << 20), (34, 0)] {
            file.read_at(&mut first, (window % OWN_WINDOWS) * WINDOW + at).unwrap();
            file.read_at(&mut other, window * WINDOW + at).unwrap();
            assert!(first == other && first.iter().any(|byte| *byte != 0), "{window}");
        }
        drop(file);
        fs.close().unwrap();
        let report = FileSystem::open(&image).unwrap().check(&CheckOptions::new().data_csum(true)).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}
