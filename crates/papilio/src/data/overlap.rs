//! Checksums of a write, and when they are computed beside its I/O.
//!
//! Owns [`sum_and_write`] and the worker threads. The data may not change meanwhile, which borrowing it sees
//! to. Small writes are summed by the writer, and all where summing keeps up with memory: handing over costs more
//! than it saves, and what was just summed lies in the near cache for the write. The workers are rayon's, one for
//! each core but the writer's, whose scopes let them borrow what the writer holds. Locks: none.
//! Kernel counterpart: `btrfs_bio_csum` and `btrfs_wq_submit_bio` (`fs/btrfs/bio.c`).

use crate::tuning::WriteChecksum;
use papilio_format::ChecksumType;
use rayon::{ThreadPool, ThreadPoolBuilder};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// Bytes from which on it is worth to hand the sums over.
const WORTH_IT: usize = 128 << 10;

/// Sums one behind the other; those of a small write are no allocation.
pub(crate) type Sums = SmallVec<[u8; 128]>;

/// The threads that compute sums; absent where there is one core, or none can be started.
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

/// Runs `write` and computes the sums of `sectors`, pieces of whole sectors, in the way that `how` says.
/// Returns the sums one behind the other, and what `write` returned.
pub(crate) fn sum_and_write<R: Send>(
    how: WriteChecksum,
    algorithm: ChecksumType,
    sector_size: usize,
    sectors: &[&[u8]],
    write: impl FnOnce() -> R + Send,
) -> (Sums, R) {
    let bytes: usize = sectors.iter().map(|piece| piece.len()).sum();
    let sums = move || {
        let mut sums = Sums::with_capacity(bytes / sector_size * algorithm.size());
        for sector in sectors.iter().flat_map(|piece| piece.chunks_exact(sector_size)) {
            sums.extend_from_slice(algorithm.compute(sector).as_bytes());
        }
        sums
    };
    let inline = bytes < WORTH_IT || (how == WriteChecksum::Overlapped && algorithm.keeps_up_with_memory());
    let workers = if inline { None } else { workers() };
    match (how, workers) {
        (WriteChecksum::BeforeSubmit, _) | (_, None) => (sums(), write()),
        (WriteChecksum::Offloaded, Some(workers)) => workers.install(|| (sums(), write())),
        (WriteChecksum::Overlapped, Some(workers)) => {
            let mut computed = Sums::new();
            let result = workers.in_place_scope(|scope| {
                scope.spawn(|_| computed = sums());
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
    fn all_ways_sum_and_write_alike() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 3) as u8).collect();
        let pieces = [&bytes[..4096], &bytes[4096..65536], &bytes[65536..]];
        for (algorithm, pieces) in [ChecksumType::Crc32c, ChecksumType::Sha256, ChecksumType::XxHash64]
            .into_iter()
            .flat_map(|algorithm| [(algorithm, &pieces[..]), (algorithm, &pieces[..1])])
        {
            let run = |how| {
                let mut written = Vec::new();
                let (sums, result) = sum_and_write(how, algorithm, 4096, pieces, || {
                    pieces.iter().for_each(|piece| written.extend_from_slice(piece));
                    42
                });
                (sums, result, written)
            };
            let expected: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| piece.chunks(4096))
                .flat_map(|sector| algorithm.compute(sector).as_bytes().to_vec())
                .collect();
            for how in [WriteChecksum::Overlapped, WriteChecksum::BeforeSubmit, WriteChecksum::Offloaded] {
                let (sums, result, written) = run(how);
                assert_eq!(
                    (sums[..] == expected[..], result, written == pieces.concat()),
                    (true, 42, true),
                    "{how:?}"
                );
            }
        }
    }
}
