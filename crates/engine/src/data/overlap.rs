//! Computation of a write's checksums, beside its I/O where that pays.
//!
//! Owns [`checksum_and_write`] and the worker threads: rayon's, one for each core but the writer's.
//! Rayon's scopes let the workers borrow the data, which therefore cannot change meanwhile.
//!
//! The writer computes the checksums of small writes itself, and all of them where the algorithm
//! keeps up with memory. A hand-over would cost more than it saves, and data that was just read for
//! its checksum is in the core's cache for the write.
//!
//! Locks: none. Kernel counterparts: `btrfs_bio_csum`, `btrfs_wq_submit_bio` (`fs/btrfs/bio.c`).

use crate::tuning::WriteChecksum;
use papilio_format::ChecksumType;
use rayon::{ThreadPool, ThreadPoolBuilder};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// The least bytes of a write whose checksums are handed to a worker.
const OFFLOAD_BYTES: usize = 128 << 10;

/// Checksums in a row; those of a small write need no allocation.
pub(crate) type ChecksumBytes = SmallVec<[u8; 128]>;

/// Returns the worker threads; `None` where there is one core, or where none can be started.
fn workers() -> Option<&'static ThreadPool> {
    static WORKERS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    WORKERS
        .get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let name = |number| format!("papilio-sum-{number}");
            let threads = cores.checked_sub(1).filter(|threads| *threads > 0)?;
            ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()
        })
        .as_ref()
}

/// Returns the checksums of `sectors`, slices of whole sectors, in a row.
pub(crate) fn checksums_of(algorithm: ChecksumType, sector_size: usize, sectors: &[&[u8]]) -> ChecksumBytes {
    let bytes: usize = sectors.iter().map(|part| part.len()).sum();
    let mut checksums = ChecksumBytes::with_capacity(bytes / sector_size * algorithm.size());
    for sector in sectors.iter().flat_map(|part| part.chunks_exact(sector_size)) {
        checksums.extend_from_slice(algorithm.compute(sector).as_bytes());
    }
    checksums
}

/// Runs `write` and computes the checksums of `sectors`, slices of whole sectors, at the time that
/// `how` says. Returns the checksums in a row, and what `write` returned.
pub(crate) fn checksum_and_write<R: Send>(
    how: WriteChecksum,
    algorithm: ChecksumType,
    sector_size: usize,
    sectors: &[&[u8]],
    write: impl FnOnce() -> R + Send,
) -> (ChecksumBytes, R) {
    let bytes: usize = sectors.iter().map(|part| part.len()).sum();
    let checksums = move || checksums_of(algorithm, sector_size, sectors);
    let inline =
        bytes < OFFLOAD_BYTES || (how == WriteChecksum::Overlapped && algorithm.keeps_up_with_memory());
    let workers = if inline { None } else { workers() };
    match (how, workers) {
        (_, None) => (checksums(), write()),
        #[cfg(feature = "ablation")]
        (WriteChecksum::BeforeSubmit, _) => (checksums(), write()),
        #[cfg(feature = "ablation")]
        (WriteChecksum::Offloaded, Some(workers)) => workers.install(|| (checksums(), write())),
        (WriteChecksum::Overlapped, Some(workers)) => {
            let mut computed = ChecksumBytes::new();
            let result = workers.in_place_scope(|scope| {
                scope.spawn(|_| computed = checksums());
                write()
            });
            (computed, result)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_modes_give_the_same_checksums() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 3) as u8).collect();
        let parts = [&bytes[..4096], &bytes[4096..65536], &bytes[65536..]];
        for (algorithm, parts) in [ChecksumType::Crc32c, ChecksumType::Sha256, ChecksumType::XxHash64]
            .into_iter()
            .flat_map(|algorithm| [(algorithm, &parts[..]), (algorithm, &parts[..1])])
        {
            let run = |how| {
                let mut written = Vec::new();
                let (checksums, result) = checksum_and_write(how, algorithm, 4096, parts, || {
                    parts.iter().for_each(|part| written.extend_from_slice(part));
                    42
                });
                (checksums, result, written)
            };
            let expected: Vec<u8> = parts
                .iter()
                .flat_map(|part| part.chunks(4096))
                .flat_map(|sector| algorithm.compute(sector).as_bytes().to_vec())
                .collect();
            for &how in WriteChecksum::ALL {
                let (checksums, result, written) = run(how);
                assert_eq!(
                    (checksums[..] == expected[..], result, written == parts.concat()),
                    (true, 42, true),
                    "{how:?}"
                );
            }
        }
    }
}
