//! The checksums of all data that the source uses, in the order of the device.
//!
//! Owns [`add_all_checksums`]. Several threads read and compute, one batch ahead of the thread that
//! inserts; memory is bounded by two batches.

use crate::block_set::BlockSet;
use crate::error::Result;
use crate::places::{Moved, PlaceMap};
use crate::source::read;
use crate::target::Target;
use papilio_device::Device;
use papilio_engine::data::csum_edit::ChecksumRuns;
use papilio_format::LogicalAddress;

/// The most bytes that a thread reads at once.
const PIECE: u64 = 4 << 20;
/// The most bytes of the short pieces that one thread reads in a batch.
const SHARE: u64 = 4 << 20;
const THREADS_MAX: usize = 8;

/// Pieces for one thread.
type Share = Vec<Moved>;
/// The checksums of a share, each with the address of its first sector.
type Sums = Vec<(u64, Vec<u8>)>;

/// Reads all that the source uses, and inserts its checksums. Calls `progress` with the bytes that
/// are done.
///
/// # Errors
/// A device that fails; no space for checksums.
pub(crate) fn add_all_checksums(
    target: &Target,
    device: &dyn Device,
    used: &BlockSet,
    block_size: u64,
    places: &PlaceMap,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let pieces = used.runs().flat_map(|run| {
        places.parts(run.start * block_size, (run.end - run.start) * block_size).flat_map(|part| match part {
            Ok(part) => cut(part).map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    });
    let mut pieces = pieces.peekable();
    let mut done = 0;
    let mut ready: Option<Vec<Sums>> = None;
    loop {
        let mut shares: Vec<Share> = Vec::new();
        while shares.len() < threads && pieces.peek().is_some() {
            let (mut share, mut bytes) = (Share::new(), 0);
            while bytes < SHARE
                && let Some(piece) = pieces.next()
            {
                let piece = piece?;
                bytes += piece.length;
                share.push(piece);
            }
            shares.push(share);
        }
        let before = ready.take();
        let read = std::thread::scope(|scope| {
            let running: Vec<_> =
                shares.iter().map(|share| scope.spawn(|| sums_of(target, device, share))).collect();
            let inserted = before.map_or(Ok(0), |before| insert(target, &before));
            let results: Vec<_> = running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            inserted.map(|bytes| (bytes, results))
        });
        let (bytes, results) = read?;
        done += bytes;
        progress(done);
        if results.is_empty() {
            return Ok(());
        }
        ready = Some(results.into_iter().collect::<Result<_>>()?);
    }
}

/// Cuts a part into pieces that one thread reads at once.
fn cut(part: Moved) -> impl Iterator<Item = Moved> {
    (0..part.length.div_ceil(PIECE)).map(move |at| {
        let into = at * PIECE;
        let length = PIECE.min(part.length - into);
        Moved { place: part.place + into, length, logical: part.logical + into }
    })
}

fn sums_of(target: &Target, device: &dyn Device, share: &Share) -> Result<Sums> {
    let mut buffer = Vec::new();
    let mut found = Sums::new();
    for piece in share {
        buffer.resize(piece.length as usize, 0);
        read(device, &mut buffer, piece.place)?;
        found.push((piece.logical, target.sums_of(&buffer)));
    }
    Ok(found)
}

/// Inserts the checksums of a batch. Returns the bytes of data that they are of.
fn insert(target: &Target, shares: &[Sums]) -> Result<u64> {
    let mut runs = ChecksumRuns::new(&target.geometry);
    let size = target.geometry.checksum_type.size() as u64;
    let mut bytes = 0;
    for (logical, sums) in shares.iter().flatten() {
        runs.add(LogicalAddress(*logical), sums);
        bytes += sums.len() as u64 / size * u64::from(target.geometry.sector_size);
    }
    target.add_checksums(&runs, bytes)?;
    Ok(bytes)
}
