//! Committing and closing.
//!
//! Owns [`FileSystem::sync`], [`FileSystem::commit`], [`FileSystem::close`], and the cleaning of
//! deleted subvolumes on request.

use crate::file_system::FileSystem;
use papilio_engine::errors::Result;
use papilio_engine::space::MetadataNeed;
use papilio_format::superblock::MAGIC;

/// Tree blocks that [`FileSystem::writable_bytes`] leaves for any change: one of each thread that
/// writes back.
const WRITABLE_BLOCKS: u64 = 256;
/// Bytes of data for each byte of metadata that [`FileSystem::writable_bytes`] leaves.
const WRITABLE_PER_METADATA: u64 = 32;

impl FileSystem {
    /// Makes all changes up to now durable, those of all files included, by a commit (`syncfs`).
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](papilio_engine::Error::ReadOnlyFileSystem) if the file system
    /// is open for reading only or an earlier failure made it read-only; the failure of the commit,
    /// after which it is read-only.
    pub fn sync(&self) -> Result<()> {
        self.info.heal();
        self.info.sync()
    }

    /// Commits: makes subvolumes, names, attributes, quotas, devices and labels durable, and all
    /// data that was written back. Data that open files still have in memory stays there, and no
    /// file's failure is reported; [`FileSystem::sync`] writes that data, too. Returns at once if
    /// another thread has committed the changes since.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit(&self) -> Result<()> {
        self.info.transactions()?.commit()
    }

    /// Commits if removed files give back much data, at most once a second: only after a commit
    /// does [`Self::statfs`] count their space as free.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_removals(&self) -> Result<()> {
        self.info.transactions()?.commit_removals()
    }

    /// Syncs, and gives the file system the magic by which everything recognizes it. This ends what
    /// [`MkfsOptions::unfinished`](papilio_progs::mkfs::MkfsOptions::unfinished) began.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn finish_making(&self) -> Result<()> {
        self.sync()?;
        let transactions = self.info.transactions()?;
        transactions.update_superblock(|superblock| superblock.magic = MAGIC);
        transactions.commit()
    }

    /// Syncs, and drops this handle. Dropping the last handle also syncs, but can only log a
    /// failure.
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; none if the file system is open for reading only.
    pub fn close(self) -> Result<()> {
        match self.info.trees.transactions() {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Returns how many bytes of new data can certainly be written now: whole sectors in runs of
    /// 32 KiB or more, uncompressed, with their metadata. It is a lower bound that costs less than
    /// a microsecond, for a server whose clients cache data before they write it.
    ///
    /// - Data and metadata reserved for dirty pages of this file system are subtracted already.
    ///   Data that clients have cached and not yet written is not: the caller subtracts it.
    /// - If all that the caller accepts from its clients after one call is at most the returned
    ///   number, then writing it back does not fail for want of space, unless other changes take
    ///   the space first. Each of these lowers the number for the next call.
    /// - Space of removed files counts only after the next commit. A caller that runs short may
    ///   call [`FileSystem::sync`] and ask again before it refuses its clients.
    /// - Where qgroups have limits, it is not more than the one with the least room has left.
    /// - The bound is 0 while free space is little beyond the reserve for deletions, although small
    ///   writes may still succeed then. It is 0 on a file system that is open for reading only.
    pub fn writable_bytes(&self) -> u64 {
        self.info.trees.transactions().map_or(0, |transactions| {
            let base = WRITABLE_BLOCKS * transactions.node_size();
            let need = MetadataNeed { base, data_per_metadata: WRITABLE_PER_METADATA };
            transactions.writable_bytes(&need).min(transactions.quotas().least_room())
        })
    }

    /// Returns why the file system became read-only, if a failure made it so.
    pub fn failure(&self) -> Option<String> {
        self.info.failure()
    }

    /// Cleans deleted subvolumes in the calling thread until none is left, except those of which
    /// files are open or inodes kept.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes(&self) -> Result<()> {
        self.info.clean_subvolumes()
    }

    /// Cleans about four thousand extents of a deleted subvolume, and returns whether more may be
    /// left.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes_step(&self) -> Result<bool> {
        self.info.clean_subvolumes_step()
    }
}
