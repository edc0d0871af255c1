//! Random bytes of the data, and every extent of it.
//!
//! Owns [`Sampler`] and [`look_up_all`].

use super::resolver::{Found, Resolver};
use super::tally::Tally;
use crate::tree_source::{TreeSource, UsedChunk};
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::extent::{ExtentFlags, ExtentItem};
use papilio::format::{ItemType, Key, objectid};

/// Random addresses that are tried for each sample that is wanted, as long as they are unused.
const ATTEMPTS: u64 = 200;

/// Takes random bytes of the data chunks.
pub struct Sampler<'s> {
    resolver: Resolver<'s>,
    /// Start and length of the chunks with data.
    chunks: Vec<(u64, u64)>,
    length: u64,
    random: fastrand::Rng,
}

impl<'s> Sampler<'s> {
    /// Creates a sampler whose random numbers follow from `seed`.
    pub fn new(source: &'s TreeSource, chunks: &[UsedChunk], seed: u64) -> Self {
        let is_data = |chunk: &&UsedChunk| chunk.item.flags.contains(BlockGroupFlags::DATA) && chunk.used > 0;
        let chunks: Vec<_> =
            chunks.iter().filter(is_data).map(|chunk| (chunk.start.0, chunk.item.length)).collect();
        let length = chunks.iter().map(|(_, length)| length).sum();
        Self { resolver: Resolver::new(source), chunks, length, random: fastrand::Rng::with_seed(seed) }
    }

    /// Returns the use of the next random byte that has data; `None` if next to no byte has.
    ///
    /// # Errors
    /// As [`Resolver::find`].
    pub fn next(&mut self) -> anyhow::Result<Option<Found>> {
        if self.length == 0 {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            let mut at = self.random.u64(..self.length);
            let mut chunks = self.chunks.iter();
            let address = loop {
                let (start, length) = chunks.next().expect("the number is below the sum of lengths");
                match at.checked_sub(*length) {
                    Some(rest) => at = rest,
                    None => break start + at,
                }
            };
            match self.resolver.find(address, false)? {
                Found::NoData => {}
                found => return Ok(Some(found)),
            }
        }
        Ok(None)
    }

    /// Returns the messages about what was left out.
    pub fn left_out(&self) -> Vec<String> {
        self.resolver.left_out()
    }
}

/// Returns a tally without weights.
pub fn empty_tally(chunks: &[UsedChunk], exact: bool) -> Tally {
    let used = |kind: BlockGroupFlags| {
        chunks.iter().filter(|chunk| chunk.item.flags.intersects(kind)).map(|chunk| chunk.used).sum::<u64>()
    };
    let data = used(BlockGroupFlags::DATA);
    let metadata = chunks.iter().map(|chunk| chunk.used).sum::<u64>() - data;
    Tally { data, metadata, exact, ..Tally::default() }
}

/// Looks up every extent, and calls `progress` after each. Returns the messages about what was left
/// out.
///
/// # Errors
/// As [`Resolver::find`]; an extent tree that cannot be read.
pub fn look_up_all(
    source: &TreeSource,
    tally: &mut Tally,
    mut progress: impl FnMut(),
) -> anyhow::Result<Vec<String>> {
    let mut resolver = Resolver::new(source);
    source.search(objectid::EXTENT_TREE, (Key::MIN, Key::MAX), 0, |key, item| {
        if key.item_type != ItemType::EXTENT_ITEM {
            return Ok(());
        }
        let extent = ExtentItem::parse(key.item_type, item)
            .map_err(|reason| anyhow::anyhow!("extent {}: {reason}", key.objectid))?;
        if !extent.header.flags.contains(ExtentFlags::DATA) {
            return Ok(());
        }
        tally.count(&resolver.find(key.objectid, true)?, key.offset);
        progress();
        Ok(())
    })?;
    Ok(resolver.left_out())
}
