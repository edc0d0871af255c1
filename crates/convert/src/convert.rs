//! The conversion.
//!
//! Owns [`Conversion`], [`plan`] and [`convert`].
//!
//! **Order**
//! 1. The source is read and checked in full. Nothing is written.
//! 2. An empty Btrfs is made in the free space of the source, and filled by the engine. Its
//!    superblocks stay in memory ([`crate::withheld`]).
//! 3. The new file system is checked, as it will be.
//! 4. The switch makes the device Btrfs: [`mod@crate::switch`].

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::reader::ExtFs;
use crate::image::{restore_root_times, save_image};
use crate::interrupted::find_interrupted;
use crate::items::{Converter, ItemRules, ItemSink};
use crate::layout::{Layout, Need, reserved_ranges};
use crate::losses::Losses;
use crate::names::Names;
use crate::options::{ConvertOptions, ConvertProgress, ConvertStage, Progress, TargetUuid};
use crate::places::{Moved, PlaceMap};
use crate::plan::{Census, ConvertPlan, no_room};
use crate::source::{Source, read};
use crate::sums::add_all_checksums;
use crate::switch::switch;
use crate::target::{Target, TreeSink};
use crate::withheld::WithheldDevice;
use crate::xfs::reader::XfsFs;
use crate::xfs::superblock::XfsSuperblock;
use papilio_device::Device;
use papilio_engine::errors::Error;
use papilio_engine::options::OpenOptions;
use papilio_engine::space::LogicalRange;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{LogicalAddress, Superblock, Uuid};
use papilio_fs::{FileSystem, check_devices};
use papilio_progs::check::{CheckOptions, Severity};
use papilio_progs::mkfs::in_place::{PlacedChunk, mkfs_in_place};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Trees of a file system, each of a block at least.
const TREES: u64 = 12;
/// Bytes of tree blocks that one transaction keeps in memory.
const DIRTY_BYTES: u64 = 64 * MIB;
/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 64 << 20;

/// The result of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Converted {
    /// The plan that was carried out.
    pub plan: ConvertPlan,
    /// The UUID of the new file system.
    pub fsid: Uuid,
    /// The label of the new file system.
    pub label: Vec<u8>,
    /// Bytes of metadata, one copy of each block.
    pub metadata_used: u64,
}

/// Everything that is known of a source after the first walk.
struct Surveyed<S> {
    fs: S,
    used: Arc<BlockSet>,
    /// The names of all inodes, if they fit into memory.
    names: Option<Names>,
    plan: ConvertPlan,
    layout: Layout,
    rules: ItemRules,
}

/// A source that was surveyed, by its kind.
enum AnySource {
    Ext(Box<Surveyed<ExtFs>>),
    Xfs(Box<Surveyed<XfsFs>>),
}

impl AnySource {
    /// Finds out what is on a device, reads all of it, and plans the layout.
    fn survey(device: &Arc<dyn Device>, options: &ConvertOptions, progress: Progress<'_>) -> Result<Self> {
        if let Some(state) = find_interrupted(device)? {
            return Err(ConvertError::Interrupted { device: device.name().to_owned(), state });
        }
        refuse_btrfs(&**device)?;
        let mut magic = [0; 4];
        if device.size() >= magic.len() as u64 {
            read(&**device, &mut magic, 0)?;
        }
        Ok(match XfsSuperblock::has_magic(&magic) {
            true => Self::Xfs(Box::new(survey(XfsFs::open(Arc::clone(device))?, options, progress)?)),
            false => Self::Ext(Box::new(survey(ExtFs::open(Arc::clone(device))?, options, progress)?)),
        })
    }

    fn plan(&self) -> &ConvertPlan {
        match self {
            Self::Ext(source) => &source.plan,
            Self::Xfs(source) => &source.plan,
        }
    }
}

/// A conversion that is planned: the source was read and checked in full, and nothing is written.
pub struct Conversion {
    device: Arc<dyn Device>,
    options: ConvertOptions,
    source: AnySource,
    fsid: Uuid,
}

impl Conversion {
    /// Reads and checks the ext2, ext3, ext4 or XFS on a device, and plans its conversion.
    ///
    /// # Errors
    /// A source that cannot be converted: see [`ConvertError`].
    pub fn prepare(
        device: &Arc<dyn Device>,
        options: &ConvertOptions,
        progress: &mut dyn FnMut(ConvertProgress),
    ) -> Result<Self> {
        let source = AnySource::survey(device, options, progress)?;
        let fsid = match options.uuid {
            TargetUuid::New => Uuid::new_v4(),
            TargetUuid::Copied => source.plan().source_uuid,
            TargetUuid::Given(uuid) => uuid,
        };
        Ok(Self { device: Arc::clone(device), options: options.clone(), source, fsid })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &ConvertPlan {
        self.source.plan()
    }

    /// Returns the UUID that the new file system will have.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// Carries the conversion out. The device is open for writing, and nothing else uses it or has
    /// changed it since the plan.
    ///
    /// # Errors
    /// No space, or a device that fails. Until the last step, an error leaves the source as it was.
    pub fn run(self, progress: &mut dyn FnMut(ConvertProgress)) -> Result<Converted> {
        let options = self.options.clone().uuid(TargetUuid::Given(self.fsid));
        let done = match self.source {
            AnySource::Ext(source) => carry_out(&self.device, &options, *source, progress),
            AnySource::Xfs(source) => carry_out(&self.device, &options, *source, progress),
        };
        // The switch allocates nothing.
        done.map_err(|error| match error {
            ConvertError::Engine(Error::NoSpace { what }) => ConvertError::NoRoom {
                device: self.device.name().to_owned(),
                reason: format!("the new file system needs more free space for {what} than was planned"),
            },
            other => other,
        })
    }
}

/// Plans a conversion. The device is only read.
///
/// # Errors
/// As [`Conversion::prepare`].
pub fn plan(
    device: &Arc<dyn Device>,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress),
) -> Result<ConvertPlan> {
    Ok(Conversion::prepare(device, options, progress)?.plan().clone())
}

/// Converts the ext2, ext3, ext4 or XFS on a device to Btrfs, in place.
///
/// # Errors
/// As [`Conversion::prepare`] and [`Conversion::run`].
pub fn convert(
    device: &Arc<dyn Device>,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress),
) -> Result<Converted> {
    Conversion::prepare(device, options, progress)?.run(progress)
}

fn carry_out<S: Source>(
    device: &Arc<dyn Device>,
    options: &ConvertOptions,
    source: Surveyed<S>,
    progress: Progress<'_>,
) -> Result<Converted> {
    let total = source.plan.total_bytes;
    let block_size = source.plan.block_size;
    let reserved = reserved_ranges(total);
    let withheld: Arc<WithheldDevice> = Arc::new(WithheldDevice::new(
        Arc::clone(device),
        Arc::clone(&source.used),
        block_size,
        reserved.clone(),
    ));
    let format = options.mkfs(&source.plan.source_label, source.plan.source_uuid)?;
    let made = mkfs_in_place(&*withheld, total, &format, &chunks_of(&source.layout))?;
    let fs = open(&withheld)?;
    let info = Arc::clone(fs.info.transactions()?);
    let target = Target {
        geometry: info.volume().geometry(),
        transactions: info,
        checksums: options.checksums,
        no_holes: options.has_no_holes(),
    };
    let mut places = PlaceMap { data: source.layout.data.clone(), reserved, moved: Vec::new() };
    claim(&target, &source.used, block_size, &places)?;
    places.moved = move_reserved(&target, &source, &**device, &places)?;
    fill(&target, &source, options, &places, progress)?;
    if options.checksums {
        let total = source.plan.used_bytes;
        let report = &mut |done| progress(ConvertProgress { stage: ConvertStage::Checksums, done, total });
        add_all_checksums(&target, &**device, &source.used, block_size, &places, report)?;
    }
    fs.commit()?;
    let report = &mut |done| {
        progress(ConvertProgress { stage: ConvertStage::Image, done, total: source.plan.used_bytes });
    };
    let saved = source.plan.saved;
    save_image(&fs, saved, &target, &source.used, block_size, total, &places, report)?;
    fs.commit()?;
    let root = source.fs.inode(source.fs.profile().root)?;
    let root = source.fs.facts(&root);
    restore_root_times(&target, [root.atime, root.mtime, root.ctime])?;
    fs.sync()?;
    let metadata_used = target.transactions.space().bytes_used().saturating_sub(source.plan.used_bytes);
    drop(target);
    fs.close()?;
    progress(ConvertProgress { stage: ConvertStage::Checking, done: 0, total: 0 });
    check(&withheld)?;
    progress(ConvertProgress { stage: ConvertStage::Switching, done: 0, total: 0 });
    switch(&**device, &withheld, &source.used, block_size, source.plan.source_uuid)?;
    Ok(Converted { plan: source.plan, fsid: made.fsid, label: made.label, metadata_used })
}

fn open(device: &Arc<WithheldDevice>) -> Result<FileSystem> {
    let options = OpenOptions::new()
        .write(true)
        .commit_interval(None)
        .dirty_bytes(DIRTY_BYTES)
        .node_cache_bytes(CACHE_BYTES)
        .heal_reads(false)
        .keep_empty_groups(true)
        .ignore_signatures(true);
    Ok(FileSystem::from_devices(vec![Arc::clone(device) as Arc<dyn Device>], &options)?)
}

/// Reads and checks the whole source, and plans the layout.
fn survey<S: Source>(fs: S, options: &ConvertOptions, progress: Progress<'_>) -> Result<Surveyed<S>> {
    let profile = fs.profile();
    // Wrong options are errors before anything else.
    let _ = options.mkfs(&profile.label, profile.uuid)?;
    let unowned = fs.used_blocks()?;
    let rules = ItemRules {
        node_size: options.node_size as usize,
        checksums: options.checksums,
        xattrs: options.xattrs,
        inline: options.inline,
    };
    let total = profile.inodes.saturating_sub(profile.free_inodes);
    let mut losses = Losses::default();
    fs.note_losses(&mut losses);
    let mut report = |done| progress(ConvertProgress { stage: ConvertStage::Reading, done, total });
    let mut census = Census::new(&fs, unowned, !options.has_no_holes(), &mut report)?;
    let names = walk(&fs, rules, options, None, &mut losses, &mut census)?;
    census.check_all()?;
    let counts = Counts {
        item_bytes: census.item_bytes,
        extents: census.extents,
        data_bytes: census.data_bytes,
        content_bytes: census.content_bytes,
        inodes: census.inodes,
    };
    drop(census);
    // The set was consumed, so that there is never more than one.
    let used = fs.used_blocks()?;
    let (plan, layout) = lay_out(&fs, &used, options, &counts, losses)?;
    let names = names.filter(Names::is_whole);
    Ok(Surveyed { fs, used: Arc::new(used), names, plan, layout, rules })
}

/// Walks the files of the source, window by window. Returns the names of the last window.
fn walk<S: Source>(
    fs: &S,
    rules: ItemRules,
    options: &ConvertOptions,
    known: Option<&Names>,
    losses: &mut Losses,
    sink: &mut dyn ItemSink,
) -> Result<Option<Names>> {
    let mut converter = Converter { fs, rules, losses };
    if let Some(names) = known {
        converter.run(names, sink)?;
        return Ok(None);
    }
    let mut first = 1;
    loop {
        let names = Names::read(fs, first, options.names_bytes)?;
        converter.run(&names, sink)?;
        if names.window.end > fs.profile().last_inode {
            return Ok(Some(names));
        }
        first = names.window.end;
    }
}

/// The counts of the first walk.
struct Counts {
    item_bytes: u64,
    extents: u64,
    data_bytes: u64,
    content_bytes: u64,
    inodes: u64,
}

fn lay_out<S: Source>(
    fs: &S,
    used: &BlockSet,
    options: &ConvertOptions,
    counts: &Counts,
    losses: Losses,
) -> Result<(ConvertPlan, Layout)> {
    let profile = fs.profile();
    let (block_size, total) = (profile.block_size, profile.bytes());
    let (runs, blocks) =
        used.runs().fold((0, 0), |(runs, blocks), run| (runs + 1, blocks + run.end - run.start));
    let used_bytes = blocks * block_size;
    let moved_bytes: u64 = reserved_ranges(total)
        .iter()
        .map(|range| used.count(range.start / block_size..range.end.div_ceil(block_size)) * block_size)
        .sum();
    let chunks = (total >> 30) + runs.min(total / (256 << 10)) + 64;
    // The image has an extent for each of the files', and one for each run of other blocks: those
    // lie between extents, and are a block each at least.
    let others = (counts.extents + runs).min(used_bytes.saturating_sub(counts.data_bytes) / block_size);
    let image = counts.extents + others + used_bytes / crate::layout::EXTENT_MAX + chunks;
    // The items of all trees: a file extent of the image and an extent item with two references
    // for each extent, checksums, and free space between runs.
    let extents = image * (53 + 25 + 24 + 58 + 25);
    let sums = match options.checksums {
        true => used_bytes / 4096 * options.checksum.size() as u64 * 51 / 50,
        false => 0,
    };
    let trees = TREES * u64::from(options.node_size);
    let expected = trees + counts.item_bytes + extents + sums + runs * 25 + total / (128 * MIB) * 512;
    let data = moved_bytes + counts.content_bytes;
    let system = (chunks * 4 * 256).clamp(MIB, 32 * MIB);
    let slack = 24 * u64::from(options.node_size) * 16;
    let generous = expected * 8 / 5 + extents + slack + 16 * MIB;
    // With less, the kernel's reserve would leave no room for a new file.
    let least = expected * 5 / 4 + extents / 2 + slack + 8 * MIB;
    let mut failure = (0, 0);
    let attempts = [(generous, 2), (generous, 1), (least, 1)];
    let found = attempts.into_iter().find_map(|(metadata, copies)| {
        let need = Need { metadata, data, system, node: options.node_size.into() };
        let made = Layout::new(used, block_size, total, need, copies);
        made.map_err(|missing| failure = missing).ok().map(|layout| (layout, copies))
    });
    let Some((layout, copies)) = found else {
        return Err(no_room(&profile.device, failure.0, failure.1));
    };
    let plan = ConvertPlan {
        variant: profile.variant,
        saved: profile.saved,
        source_label: profile.label.clone(),
        source_uuid: profile.uuid,
        block_size,
        total_bytes: total,
        free_bytes: total - used_bytes,
        used_bytes,
        inodes: (profile.inodes, profile.free_inodes),
        converted_inodes: counts.inodes,
        metadata_bytes: expected,
        metadata_room: layout.metadata_bytes(),
        metadata_copies: copies,
        moved_bytes,
        replayed: profile.is_replayed,
        losses,
        reading_time: if options.checksums { reading_time(fs, used, used_bytes) } else { None },
    };
    Ok((plan, layout))
}

/// Estimates the time to read everything, from samples.
fn reading_time<S: Source>(fs: &S, used: &BlockSet, bytes: u64) -> Option<Duration> {
    const SAMPLES: u64 = 8;
    const SAMPLE: u64 = MIB;
    let block_size = fs.profile().block_size;
    let mut buffer = vec![0; SAMPLE as usize];
    let (mut sampled, begun) = (0, Instant::now());
    for at in 0..SAMPLES {
        let from = fs.profile().blocks / SAMPLES * at;
        let Some(run) = used.runs_from(from).find(|run| (run.end - run.start) * block_size >= SAMPLE) else {
            continue;
        };
        read(&**fs.device(), &mut buffer, run.start * block_size).ok()?;
        sampled += SAMPLE;
    }
    (sampled > 0).then(|| begun.elapsed().mul_f64(bytes as f64 / sampled as f64))
}

fn chunks_of(layout: &Layout) -> Vec<PlacedChunk> {
    let data = layout.data.iter().map(|range| PlacedChunk {
        kind: BlockGroupFlags::DATA,
        logical: range.start,
        length: range.end - range.start,
        copies: vec![range.start],
    });
    let placed = |kind, chunk: &crate::layout::MetadataChunk| PlacedChunk {
        kind,
        logical: chunk.copies[0],
        length: chunk.length,
        copies: chunk.copies.clone(),
    };
    let metadata = layout.metadata.iter().map(|chunk| placed(BlockGroupFlags::METADATA, chunk));
    data.chain(metadata).chain([placed(BlockGroupFlags::SYSTEM, &layout.system)]).collect()
}

/// Allocates everything that the source uses, so that nothing else gets its place.
fn claim(target: &Target, used: &BlockSet, block_size: u64, places: &PlaceMap) -> Result<()> {
    for run in used.runs() {
        let (mut at, end) = (run.start * block_size, run.end * block_size);
        while at < end {
            if let Some(range) = places.reserved.iter().find(|range| range.contains(&at)) {
                at = range.end;
                continue;
            }
            let (start, length) = places.find(at, end - at)?;
            target.transactions.claim_data(LogicalRange { start: LogicalAddress(start), length })?;
            at += length;
        }
    }
    Ok(())
}

/// Copies what the source has in reserved ranges. Returns the new places.
fn move_reserved<S: Source>(
    target: &Target,
    source: &Surveyed<S>,
    device: &dyn Device,
    places: &PlaceMap,
) -> Result<Vec<Moved>> {
    let block_size = source.plan.block_size;
    let mut moved = Vec::new();
    for range in &places.reserved {
        let first = range.start / block_size;
        for run in source.used.runs_from(first) {
            let start = (run.start * block_size).max(range.start);
            let end = (run.end * block_size).min(range.end);
            if start >= range.end {
                break;
            }
            let mut bytes = vec![0; (end - start) as usize];
            // As it is, and not as the replay of a journal would leave it.
            read(device, &mut bytes, start)?;
            let mut place = start;
            for (logical, length) in target.write_data(&bytes)? {
                moved.push(Moved { place, length, logical });
                place += length;
            }
        }
    }
    Ok(moved)
}

/// Puts all files into the new file system.
fn fill<S: Source>(
    target: &Target,
    source: &Surveyed<S>,
    options: &ConvertOptions,
    places: &PlaceMap,
    progress: Progress<'_>,
) -> Result<()> {
    let total = source.plan.converted_inodes;
    let mut report = |done| progress(ConvertProgress { stage: ConvertStage::Inodes, done, total });
    let mut sink = TreeSink::new(target, places, source.plan.total_bytes, &mut report)?;
    let mut losses = Losses::default();
    walk(&source.fs, source.rules, options, source.names.as_ref(), &mut losses, &mut sink)?;
    sink.flush()
}

/// Checks the metadata of the new file system before the switch.
fn check(device: &Arc<WithheldDevice>) -> Result<()> {
    let open = OpenOptions::new().ignore_signatures(true).node_cache_bytes(CACHE_BYTES);
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    let report = check_devices(devices, &open, &CheckOptions::new().max_findings(10))?;
    match report.findings.iter().find(|finding| finding.severity == Severity::Error) {
        Some(finding) => Err(ConvertError::Invalid(format!(
            "{}: the new file system has a fault, and is given up; the source is as it was: {finding}",
            device.name()
        ))),
        None => Ok(()),
    }
}

/// Refuses a device that has Btrfs already.
fn refuse_btrfs(device: &dyn Device) -> Result<()> {
    let place = superblock_offset(0);
    if device.size() < place.0 + SUPERBLOCK_SIZE as u64 {
        return Ok(());
    }
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    read(device, &mut bytes, place.0)?;
    match Superblock::parse(&bytes, place) {
        Ok(superblock) => Err(ConvertError::NoSource {
            device: device.name().to_owned(),
            reason: format!("it is Btrfs already, with the UUID {}", superblock.raw.fsid),
        }),
        Err(_) => Ok(()),
    }
}
