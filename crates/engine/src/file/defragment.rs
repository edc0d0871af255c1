//! Defragmenting an open file: small extents are written anew as larger ones.
//!
//! Owns [`OpenFile::defragment`] and [`DefragmentOptions`].
//!
//! Invariants:
//! - Neither the bytes of the file nor its times change. A writer comes before or after a step.
//! - Only whole extents are rewritten, so that no part of an old one stays in use by this file.
//!   Extents that snapshots or clones share are copied: they keep the old ones.
//! - Holes, preallocated and inline extents stay as they are.
//! - A run of extents is only rewritten if fewer can result, or to store it as the options ask.
//!
//! Locks, for one step at a time: those of [`super::write`]. Kernel counterpart:
//! `btrfs_defrag_file`, `defrag_collect_targets` (`fs/btrfs/defrag.c`).

use crate::data::extent_map::{Extent, ExtentKind, FileExtents};
use crate::data::file_edit::{FileEdit, Touch};
use crate::data::write::PreparedWrite;
use crate::data::write_rules::{CompressionPlan, WriteOptions};
use crate::errors::Result;
use crate::file::change::EXTENT_ITEMS;
use crate::file::open_file::OpenFile;
use crate::options::CompressionChoice;
use papilio_format::FileOffset;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeFlags;
use papilio_pagecache::Invalidate;
use std::ops::Range;

/// The most bytes of a step.
const STEP: u64 = 32 << 20;
/// The most bytes of a step that is compressed: each piece has an item.
const COMPRESSED_STEP: u64 = 8 << 20;
/// The most bytes of a compressed extent.
const PIECE: u64 = 128 << 10;

/// How a file is defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragmentOptions {
    /// Extents of so many bytes or more stay as they are, unless they are to be compressed.
    pub threshold: u64,
    /// Writes all extents anew and compresses them in this way, whatever property the file has.
    /// With [`CompressionChoice::NONE`] compressed ones are stored without compression.
    pub compression: Option<CompressionChoice>,
}

/// 32 MiB, and the file's own compression.
impl Default for DefragmentOptions {
    fn default() -> Self {
        Self { threshold: 32 << 20, compression: None }
    }
}

/// The next part of a file to look at.
enum Next {
    /// Extents to rewrite.
    Rewrite(Range<u64>),
    /// Nothing to do before this offset.
    Skip(u64),
    End,
}

impl OpenFile {
    /// Writes small extents in `range` anew as larger ones. Calls `progress` with the offset that
    /// is reached; `false` stops. Returns the bytes that were rewritten.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`]. The steps before the failing one stay.
    pub fn defragment(
        &self,
        range: Range<u64>,
        options: &DefragmentOptions,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<u64> {
        let (mut at, mut rewritten) = (range.start, 0);
        loop {
            match self.defragment_step(at..range.end, options)? {
                Next::End => return Ok(rewritten),
                Next::Skip(to) => at = to,
                Next::Rewrite(done) => {
                    rewritten += done.end - done.start;
                    at = done.end;
                }
            }
            if !progress(at) {
                return Ok(rewritten);
            }
        }
    }

    fn defragment_step(&self, range: Range<u64>, options: &DefragmentOptions) -> Result<Next> {
        let (open, fs) = (&self.open, &self.fs);
        let exclusive = self.exclusive()?;
        let trees = self.begin_change(&exclusive)?;
        let mut context = trees.context(&**fs.transactions()?);
        let chosen = options.compression.map(|choice| WriteOptions {
            compression: Some(choice),
            force_compression: true,
            ..*context.rules.options
        });
        if let Some(chosen) = &chosen {
            context.rules.options = chosen;
        }
        let next = trees.prepare(|file| {
            let file = chosen_file(file, options);
            next_run(&file, range.clone(), context.rules.sector(), context.compression_of(&file), options)
        })?;
        let Next::Rewrite(run) = next else { return Ok(next) };
        self.charge(run.start, run.end - run.start)?;
        let changed = open.changed_range(fs, run.start, run.end - run.start)?;
        let mut write = trees.prepare(|file| {
            let file = chosen_file(file, options);
            let mut bytes = vec![0; (run.end.min(file.item.size) - run.start) as usize];
            context.read_as(&file, file.item.size, run.start, &mut bytes)?;
            PreparedWrite::elsewhere(&context, &file, FileOffset(run.start), &bytes)
        })?;
        let items = EXTENT_ITEMS + ((run.end - run.start) >> 20);
        self.publish_change(&changed, items, |context, file| {
            file.touched = Some(Touch { mtime: None, ctime: None, sequence: file.item.sequence });
            write.publish(context, file)
        })?;
        if let Some(mapping) = &open.mapping {
            // The pages stay right; their extents are looked up again.
            mapping.invalidate(run.clone(), Invalidate::All);
        }
        Ok(Next::Rewrite(run))
    }
}

/// Returns the file with the compression that the options ask for.
fn chosen_file<'a>(file: &FileEdit<'a>, options: &DefragmentOptions) -> FileEdit<'a> {
    let mut item = file.item;
    let stored_plain = options.compression.is_some_and(|choice| choice.algorithm() == Compression::None);
    if stored_plain {
        item.flags.remove(InodeFlags::COMPRESS);
    }
    FileEdit {
        tree: file.tree,
        inode: file.inode,
        item,
        property: if options.compression.is_some() { None } else { file.property },
        touched: None,
    }
}

/// Finds the next run of extents in a range that is worth to be rewritten.
fn next_run(
    file: &FileEdit<'_>,
    range: Range<u64>,
    sector: u64,
    plan: Option<CompressionPlan>,
    options: &DefragmentOptions,
) -> Result<Next> {
    let end = range.end.min(file.item.size.next_multiple_of(sector));
    if range.start >= end {
        return Ok(Next::End);
    }
    let tree = file.tree.tree();
    let most = if plan.is_some() { COMPRESSED_STEP } else { STEP };
    let (start, end) = (FileOffset(range.start), FileOffset(end));
    let mut run: Option<Range<u64>> = None;
    let (mut fragments, mut follows, mut otherwise) = (0u64, None, false);
    for extent in FileExtents::whole(&tree, file.inode, sector as u32, start, end) {
        let extent = extent?;
        let length = extent.end.0 - extent.start.0;
        let disk = match extent.kind {
            ExtentKind::Regular(disk) if is_candidate(&extent, plan, options) => disk,
            _ if run.is_some() => break,
            _ => return Ok(Next::Skip(extent.end.0)),
        };
        match &run {
            Some(run) if extent.end.0 - run.start > most => break,
            None if length > most && converts(&extent, plan, options) => {
                return Ok(Next::Rewrite(extent.start.0..extent.start.0 + most));
            }
            None if length > most => return Ok(Next::Skip(extent.end.0)),
            _ => {}
        }
        let place = (disk.disk_address.0, disk.offset);
        fragments += u64::from(follows != Some(place));
        follows = (disk.compression == Compression::None).then(|| (place.0, place.1 + length));
        otherwise |= converts(&extent, plan, options);
        run = Some(run.map_or(extent.start.0, |run| run.start)..extent.end.0);
    }
    let Some(run) = run else { return Ok(Next::End) };
    let length = run.end - run.start;
    let best = if plan.is_some() { length.div_ceil(PIECE) } else { 1 };
    Ok(if otherwise || fragments > best { Next::Rewrite(run) } else { Next::Skip(run.end) })
}

/// Whether an extent is stored in another way than the options ask for. The level of a compressed
/// extent is not known, so to compress means to write all extents anew, as in the kernel.
fn converts(extent: &Extent, plan: Option<CompressionPlan>, options: &DefragmentOptions) -> bool {
    let ExtentKind::Regular(disk) = extent.kind else { return false };
    let wanted = plan.map_or(Compression::None, |plan| plan.choice.algorithm());
    options.compression.is_some() && (wanted != Compression::None || disk.compression != wanted)
}

fn is_candidate(extent: &Extent, plan: Option<CompressionPlan>, options: &DefragmentOptions) -> bool {
    let ExtentKind::Regular(disk) = extent.kind else { return false };
    let length = extent.end.0 - extent.start.0;
    let largest = if disk.compression == Compression::None { u64::MAX } else { PIECE };
    converts(extent, plan, options) || length < options.threshold.min(largest)
}
