//! Descriptions of items of every type, close to those of `btrfs inspect-internal dump-tree`.

use super::details::{Details, Line};
use super::flags::flags_text;
use super::key_text::object_name;
use crate::time;
use papilio::Timespec;
use papilio::format::items::any::AnyItem;
use papilio::format::items::back_ref::BackRef;
use papilio::format::items::balance::{BalanceArgs, BalanceItem};
use papilio::format::items::chunk::ChunkItem;
use papilio::format::items::csum::CsumItem;
use papilio::format::items::dev_replace::DevReplaceItem;
use papilio::format::items::device::{DeviceItem, DeviceStat, DeviceStats};
use papilio::format::items::dir_item::{DirEntry, FileType};
use papilio::format::items::extent::ExtentItem;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::items::free_space::FreeSpaceBitmap;
use papilio::format::items::inode::InodeItem;
use papilio::format::items::qgroup::{QgroupInfo, QgroupLimit, QgroupStatus, QgroupStatusFlags};
use papilio::format::items::raid_stripe::RaidStripeItem;
use papilio::format::items::root::RootItem;
use papilio::format::items::root_ref::RootRef;
use papilio::format::{ChecksumType, Geometry, ItemType, Key};
use serde_json::json;

/// Options of the description of items.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Whether to omit names and values of attributes.
    pub hide_names: bool,
    /// Whether to show data checksums.
    pub checksums: bool,
}

/// Describes the item with `key`.
pub fn describe(key: &Key, item: &AnyItem<'_>, geometry: &Geometry, choice: Choice) -> Details {
    let mut details = Details::default();
    match item {
        AnyItem::Inode(inode) => describe_inode(&mut details, inode),
        AnyItem::InodeRefs(refs) => details.list(
            "names",
            refs.clone().map(|entry| {
                let mut details = Details::default();
                let line = details.line();
                line.number("index", entry.index).labelled("name_length", "namelen", entry.name.len() as u64);
                name(line, "name", "name:", entry.name, choice);
                details
            }),
        ),
        AnyItem::InodeExtrefs(refs) => details.list(
            "names",
            refs.clone().map(|entry| {
                let mut details = Details::default();
                let line = details.line();
                line.number("index", entry.index).number("parent", entry.parent.0);
                line.labelled("name_length", "namelen", entry.name.len() as u64);
                name(line, "name", "name:", entry.name, choice);
                details
            }),
        ),
        AnyItem::DirEntries(entries) | AnyItem::Xattrs(entries) => {
            details.list("entries", entries.clone().map(|entry| dir_entry(&entry, choice)));
        }
        AnyItem::DirLog(log) => drop(details.line().labelled("end", "dir log end", log.end)),
        AnyItem::OrphanInode(_) | AnyItem::OrphanSubvolume(_) => {
            details.line().field("orphan", "orphan item", String::new(), true.into());
        }
        AnyItem::FileExtent(extent) => describe_file_extent(&mut details, extent),
        AnyItem::Csum(csum) => describe_csum(&mut details, csum, geometry, choice),
        AnyItem::Root(root) => describe_root(&mut details, root),
        AnyItem::RootRef(reference) => describe_root_ref(&mut details, key, reference, choice),
        AnyItem::VerityDescriptor(descriptor) => {
            let line = details.line();
            line.labelled("size", "verity descriptor size", descriptor.size);
            line.number("encryption", descriptor.encryption);
        }
        AnyItem::VerityDescriptorBytes(data) => {
            details.line().labelled("bytes", "verity descriptor bytes", data.len() as u64);
        }
        AnyItem::VerityMerkle(data) => {
            details.line().labelled("bytes", "verity merkle tree bytes", data.len() as u64);
        }
        other => describe_of_space_tree(&mut details, key, other, geometry),
    }
    details
}

/// Describes items of trees that account for space, and all remaining types.
fn describe_of_space_tree(details: &mut Details, key: &Key, item: &AnyItem<'_>, geometry: &Geometry) {
    match item {
        AnyItem::Extent(extent) => describe_extent(details, key, extent),
        AnyItem::BackRefs(refs) => details.list(
            "references",
            refs.clone().map(|reference| {
                let mut details = Details::default();
                back_ref(details.line(), &reference);
                details
            }),
        ),
        AnyItem::BlockGroup(group) => {
            let line = details.line();
            line.labelled("used", "block group used", group.used);
            line.number("chunk_objectid", group.chunk_objectid).words(
                "flags",
                "flags",
                flags_text(group.flags),
            );
        }
        AnyItem::FreeSpaceInfo(info) => {
            let line = details.line();
            line.labelled("extent_count", "free space info extent count", info.extent_count);
            line.number("flags", info.flags.bits());
        }
        AnyItem::FreeSpaceExtent { start, length } => {
            details.line().labelled("start", "free space extent start", start.0).number("length", *length);
        }
        AnyItem::FreeSpaceBitmap(bitmap) => describe_bitmap(details, bitmap, geometry),
        AnyItem::FreeSpaceHeader(header) => {
            details.line().key("location", "location", &header.location);
            let line = details.line();
            line.labelled("generation", "cache generation", header.generation.0);
            line.number("entries", header.num_entries).number("bitmaps", header.num_bitmaps);
        }
        AnyItem::DeviceExtent(extent) => {
            details.line().labelled("chunk_tree", "dev extent chunk_tree", extent.chunk_tree.0);
            let line = details.line();
            line.number("chunk_objectid", extent.chunk_objectid);
            line.number("chunk_offset", extent.chunk_offset.0).number("length", extent.length);
            details.line().words("chunk_tree_uuid", "chunk_tree_uuid", extent.chunk_tree_uuid);
        }
        AnyItem::Device(device) => describe_device(details, device),
        AnyItem::DeviceStats(stats) => describe_device_stats(details, key, stats),
        AnyItem::DevReplace(replace) => describe_replace(details, replace),
        AnyItem::Chunk(chunk) => describe_chunk(details, chunk),
        AnyItem::RaidStripe(stripe) => describe_raid_stripe(details, stripe),
        AnyItem::QgroupStatus(status) => describe_qgroup_status(details, status),
        AnyItem::QgroupInfo(_, info) => describe_qgroup_info(details, info),
        AnyItem::QgroupLimit(_, limit) => describe_qgroup_limit(details, limit),
        AnyItem::QgroupRelation(..) => {}
        AnyItem::Balance(balance) => describe_balance(details, balance),
        AnyItem::Uuid(uuid, subvolumes) => {
            details.line().words("uuid", "uuid", uuid);
            details.list(
                "subvolumes",
                subvolumes.subvolumes().map(|id| {
                    let mut details = Details::default();
                    details.line().number("subvol_id", id.0);
                    details
                }),
            );
        }
        AnyItem::String(data) => drop(details.line().bytes("value", "item data", data)),
        AnyItem::Unknown(data) => {
            details.line().labelled("bytes", "unknown item, bytes", data.len() as u64);
        }
        // The enum is non-exhaustive; all its variants of today are above.
        _ => drop(details.line().field("unknown", "unknown item", String::new(), true.into())),
    }
}

fn describe_raid_stripe(details: &mut Details, stripe: &RaidStripeItem<'_>) {
    let strides = stripe.strides().enumerate();
    details.list(
        "stripes",
        strides.map(|(index, stride)| {
            let mut details = Details::default();
            let line = details.line();
            line.labelled("index", "stripe", index as u64);
            line.number("devid", stride.devid.0).number("physical", stride.physical.0);
            details
        }),
    );
}

/// Adds a name, unless names are hidden.
fn name(line: &mut Line, key: &'static str, label: &'static str, bytes: &[u8], choice: Choice) {
    match choice.hide_names {
        true => drop(line.words(key, label, "HIDDEN")),
        false => drop(line.bytes(key, label, bytes)),
    }
}

/// Adds a time as `ctime 1700000000.5 (2023-11-14 22:13:20)`.
fn moment(details: &mut Details, key: &'static str, moment: Timespec) {
    let text = format!("{}.{} ({})", moment.seconds, moment.nanoseconds, time::to_second(moment));
    let json = json!({ "seconds": moment.seconds, "nanoseconds": moment.nanoseconds });
    details.line().field(key, key, text, json);
}

fn describe_inode(details: &mut Details, inode: &InodeItem) {
    let line = details.line();
    line.number("generation", inode.generation.0).number("transid", inode.transid.0);
    line.number("size", inode.size).number("nbytes", inode.nbytes);
    let line = details.line();
    line.labelled("block_group", "block group", inode.block_group);
    line.field("mode", "mode", format!("{:o}", inode.mode), inode.mode.into());
    line.number("links", inode.nlink).number("uid", inode.uid).number("gid", inode.gid);
    line.number("rdev", inode.rdev);
    let line = details.line();
    line.number("sequence", inode.sequence);
    flags_field(line, inode.flags.bits(), flags_text(inode.flags));
    let moments =
        [("atime", inode.atime), ("ctime", inode.ctime), ("mtime", inode.mtime), ("otime", inode.otime)];
    for (key, at) in moments {
        moment(details, key, at);
    }
}

/// Adds flags as `flags 0x10(PREALLOC)`.
fn flags_field(line: &mut Line, bits: u64, names: String) {
    let json = json!({ "bits": bits, "names": names });
    line.field("flags", "flags", format!("{bits:#x}({names})"), json);
}

fn dir_entry(entry: &DirEntry<'_>, choice: Choice) -> Details {
    let kind = match entry.file_type {
        FileType::Regular => "FILE",
        FileType::Directory => "DIR",
        FileType::CharacterDevice => "CHRDEV",
        FileType::BlockDevice => "BLKDEV",
        FileType::Fifo => "FIFO",
        FileType::Socket => "SOCK",
        FileType::Symlink => "SYMLINK",
        FileType::Xattr => "XATTR",
    };
    let mut details = Details::default();
    let line = details.line();
    line.key("location", "location", &entry.location).words("type", "type", kind);
    if entry.encrypted {
        line.field("encrypted", "encrypted", String::new(), true.into());
    }
    let line = details.line();
    line.number("transid", entry.transid.0).labelled("data_length", "data_len", entry.data.len() as u64);
    line.labelled("name_length", "name_len", entry.name.len() as u64);
    name(details.line(), "name", "name:", entry.name, choice);
    if !entry.data.is_empty() {
        name(details.line(), "value", "data", entry.data, choice);
    }
    details
}

fn describe_file_extent(details: &mut Details, extent: &FileExtentItem<'_>) {
    let (number, kind) = match extent.content {
        FileExtentContent::Inline(_) => (0, "inline"),
        FileExtentContent::Regular(_) => (1, "regular"),
        FileExtentContent::Prealloc(_) => (2, "prealloc"),
    };
    let line = details.line();
    line.number("generation", extent.generation.0);
    line.field("type", "type", format!("{number} ({kind})"), kind.into());
    let compression = extent.compression;
    let compression_text = format!("{} ({compression})", compression as u8);
    let compression_json = compression.name().into();
    match extent.content {
        FileExtentContent::Inline(data) => {
            let line = details.line();
            line.labelled("data_size", "inline extent data size", data.len() as u64);
            line.number("ram_bytes", extent.ram_bytes);
            line.field("compression", "compression", compression_text, compression_json);
        }
        FileExtentContent::Prealloc(part) => {
            let line = details.line();
            line.labelled("disk_address", "prealloc data disk byte", part.disk_address.0);
            line.labelled("disk_length", "nr", part.disk_length);
            let line = details.line();
            line.labelled("offset", "prealloc data offset", part.offset).labelled(
                "length",
                "nr",
                part.length,
            );
        }
        FileExtentContent::Regular(part) => {
            let line = details.line();
            line.labelled("disk_address", "extent data disk byte", part.disk_address.0);
            line.labelled("disk_length", "nr", part.disk_length);
            let line = details.line();
            line.labelled("offset", "extent data offset", part.offset).labelled("length", "nr", part.length);
            line.labelled("ram_bytes", "ram", extent.ram_bytes);
            details.line().field("compression", "extent compression", compression_text, compression_json);
        }
    }
}

fn describe_csum(details: &mut Details, csum: &CsumItem<'_>, geometry: &Geometry, choice: Choice) {
    let line = details.line();
    line.labelled("start", "range start", csum.start().0).number("end", csum.end().0);
    line.number("length", csum.length());
    if !choice.checksums {
        return;
    }
    let sector = u64::from(geometry.sector_size);
    let sums = csum.as_bytes().chunks_exact(geometry.checksum_type.size());
    let starts = (0..).map(|index: u64| csum.start().0 + index * sector);
    let entries = starts.zip(sums).map(|(start, sum)| {
        let mut details = Details::default();
        let sum = geometry.checksum_type.stored(sum).to_string();
        let text = format!("[{start}] {sum}");
        details.line().field("address", "", text, start.into()).field(
            "checksum",
            "",
            String::new(),
            sum.into(),
        );
        details
    });
    details.list("checksums", entries);
}

fn describe_root(details: &mut Details, root: &RootItem) {
    let line = details.line();
    line.number("generation", root.generation.0).number("root_dirid", root.root_dirid.0);
    line.labelled("address", "bytenr", root.address.0).number("byte_limit", root.byte_limit);
    line.number("bytes_used", root.bytes_used);
    let line = details.line();
    line.number("last_snapshot", root.last_snapshot.0);
    flags_field(line, root.flags.bits(), flags_text(root.flags));
    line.number("refs", root.refs);
    let line = details.line();
    line.key("drop_progress", "drop_progress", &root.drop_progress).number("drop_level", root.drop_level);
    let line = details.line();
    line.number("level", root.level).number("generation_v2", root.generation_v2.0);
    for (key, uuid) in
        [("uuid", root.uuid), ("parent_uuid", root.parent_uuid), ("received_uuid", root.received_uuid)]
    {
        details.line().words(key, key, uuid);
    }
    let line = details.line();
    line.number("ctransid", root.ctransid.0).number("otransid", root.otransid.0);
    line.number("stransid", root.stransid.0).number("rtransid", root.rtransid.0);
    for (key, at) in
        [("ctime", root.ctime), ("otime", root.otime), ("stime", root.stime), ("rtime", root.rtime)]
    {
        moment(details, key, at);
    }
}

fn describe_root_ref(details: &mut Details, key: &Key, reference: &RootRef<'_>, choice: Choice) {
    let label = match key.item_type {
        ItemType::ROOT_BACKREF => "root backref key dirid",
        _ => "root ref key dirid",
    };
    let line = details.line();
    line.labelled("directory", label, reference.directory.0).number("sequence", reference.sequence);
    name(line, "name", "name", reference.name, choice);
}

fn describe_extent(details: &mut Details, key: &Key, extent: &ExtentItem<'_>) {
    let line = details.line();
    line.number("refs", extent.header.refs).labelled("generation", "gen", extent.header.generation.0);
    line.words("flags", "flags", flags_text(extent.header.flags));
    if let Some(info) = &extent.tree_block {
        let line = details.line();
        line.key("first_key", "tree block", &info.first_key).number("level", info.level);
    } else if key.item_type == ItemType::METADATA_ITEM {
        details.line().labelled("level", "tree block skinny level", key.offset);
    }
    details.list(
        "references",
        extent.inline_refs().map(|reference| {
            let mut details = Details::default();
            match reference {
                Ok(reference) => {
                    let line = details.line();
                    let (kind, sequence) = (reference.item_type().0, reference.sequence());
                    line.field("sequence", "", format!("({kind} {sequence:#x})"), sequence.into());
                    back_ref(line, &reference);
                }
                Err(reason) => drop(details.line().words("error", "BAD:", reason)),
            }
            details
        }),
    );
}

fn back_ref(line: &mut Line, reference: &BackRef) {
    let kind = reference.item_type().to_string();
    line.field("type", "", String::new(), kind.into());
    let root = |line: &mut Line, label, root: u64| {
        line.field("root", label, object_name(root), root.into());
    };
    match *reference {
        BackRef::Owner { root: id } => root(line, "extent owner root", id.0),
        BackRef::TreeBlock { root: id } => root(line, "tree block backref root", id.0),
        BackRef::SharedBlock { parent } => {
            line.labelled("parent", "shared block backref parent", parent.0);
        }
        BackRef::SharedData { parent, count } => {
            line.labelled("parent", "shared data backref parent", parent.0).number("count", count);
        }
        BackRef::Data { root: id, inode, offset, count } => {
            root(line, "extent data backref root", id.0);
            line.labelled("inode", "objectid", inode.0).number("offset", offset.0).number("count", count);
        }
    }
}

fn describe_bitmap(details: &mut Details, bitmap: &FreeSpaceBitmap<'_>, geometry: &Geometry) {
    let sector = u64::from(geometry.sector_size);
    let (mut runs, mut sectors) = (0_u64, 0_u64);
    for run in bitmap.free_runs() {
        runs += 1;
        sectors += run.length;
    }
    let line = details.line();
    line.labelled("start", "free space bitmap start", bitmap.start().0);
    line.number("sectors", bitmap.sectors()).labelled("free_ranges", "free ranges", runs);
    line.labelled("free_bytes", "free bytes", sectors * sector);
}

fn describe_device(details: &mut Details, device: &DeviceItem) {
    let line = details.line();
    line.number("devid", device.devid.0).number("total_bytes", device.total_bytes);
    line.number("bytes_used", device.bytes_used);
    let line = details.line();
    line.number("io_align", device.io_align).number("io_width", device.io_width);
    line.number("sector_size", device.sector_size).number("type", device.device_type);
    let line = details.line();
    line.number("generation", device.generation.0).number("start_offset", device.start_offset);
    line.number("dev_group", device.dev_group);
    details.line().number("seek_speed", device.seek_speed).number("bandwidth", device.bandwidth);
    details.line().words("uuid", "uuid", device.uuid);
    details.line().words("fsid", "fsid", device.fsid);
}

fn describe_device_stats(details: &mut Details, key: &Key, stats: &DeviceStats<'_>) {
    let line = details.line();
    line.words("objectid", "persistent item objectid", "DEV_STATS").labelled("devid", "offset", key.offset);
    details.line().words("kind", "", "device stats");
    let line = details.line();
    let labels = [
        (DeviceStat::WriteErrors, "write_errs"),
        (DeviceStat::ReadErrors, "read_errs"),
        (DeviceStat::FlushErrors, "flush_errs"),
        (DeviceStat::CorruptionErrors, "corruption_errs"),
        (DeviceStat::GenerationErrors, "generation"),
    ];
    for (stat, label) in labels {
        line.labelled(stat.name(), label, stats.get(stat));
    }
}

fn describe_replace(details: &mut Details, replace: &DevReplaceItem) {
    let mode = match replace.avoid_source {
        0 => "ALWAYS".to_owned(),
        1 => "AVOID".to_owned(),
        other => format!("unknown({other})"),
    };
    let state = match replace.state() {
        Ok(state) => format!("{state:?}"),
        Err(_) => format!("unknown({})", replace.state),
    };
    let line = details.line();
    line.labelled("source", "src devid", replace.source.0);
    line.labelled("cursor_left", "cursor left", replace.cursor_left);
    line.labelled("cursor_right", "cursor right", replace.cursor_right).words("mode", "mode", mode);
    let line = details.line();
    line.words("state", "state", state).labelled("write_errors", "write errors", replace.write_errors);
    line.labelled(
        "uncorrectable_read_errors",
        "uncorrectable read errors",
        replace.uncorrectable_read_errors,
    );
    for (key, label, seconds) in [
        ("time_started", "start time", replace.time_started),
        ("time_stopped", "stop time", replace.time_stopped),
    ] {
        let at = Timespec { seconds: seconds.cast_signed(), nanoseconds: 0 };
        details.line().field(key, label, format!("{seconds} ({})", time::to_second(at)), seconds.into());
    }
}

/// Describes a chunk, of the chunk tree or of a superblock.
pub fn describe_chunk(details: &mut Details, chunk: &ChunkItem) {
    let line = details.line();
    line.number("length", chunk.length).number("owner", chunk.owner);
    line.labelled("stripe_length", "stripe_len", chunk.stripe_length);
    line.words("type", "type", flags_text(chunk.flags));
    let line = details.line();
    line.number("io_align", chunk.io_align).number("io_width", chunk.io_width);
    line.number("sector_size", chunk.sector_size);
    let line = details.line();
    line.number("num_stripes", chunk.stripes.len() as u64).number("sub_stripes", chunk.sub_stripes);
    details.list(
        "stripes",
        chunk.stripes.iter().enumerate().map(|(index, stripe)| {
            let mut details = Details::default();
            let line = details.line();
            line.labelled("index", "\tstripe", index as u64).number("devid", stripe.devid.0);
            line.number("offset", stripe.offset.0);
            details.line().words("device_uuid", "\tdev_uuid", stripe.device_uuid);
            details
        }),
    );
}

fn describe_qgroup_status(details: &mut Details, status: &QgroupStatus) {
    let header = &status.header;
    let mut flags = vec![if header.flags.contains(QgroupStatusFlags::ON) { "ON" } else { "OFF" }.to_owned()];
    let rest = header.flags.difference(QgroupStatusFlags::ON);
    flags.extend(super::flags::flag_names(rest));
    let line = details.line();
    line.number("version", header.version).number("generation", header.generation.0);
    line.words("flags", "flags", flags.join("|")).labelled("rescan", "scan", header.rescan);
    if let Some(generation) = status.enable_generation {
        line.labelled("enable_generation", "enable_gen", generation.0);
    }
}

fn describe_qgroup_info(details: &mut Details, info: &QgroupInfo) {
    details.line().number("generation", info.generation.0);
    let line = details.line();
    line.number("referenced", info.referenced).number("referenced_compressed", info.referenced_compressed);
    let line = details.line();
    line.number("exclusive", info.exclusive).number("exclusive_compressed", info.exclusive_compressed);
}

fn describe_qgroup_limit(details: &mut Details, limit: &QgroupLimit) {
    let bits = limit.flags.bits();
    details.line().field("flags", "flags", format!("{bits:x}"), bits.into());
    let line = details.line();
    line.number("max_referenced", limit.max_referenced).number("max_exclusive", limit.max_exclusive);
    let line = details.line();
    line.labelled("reserved_referenced", "rsv_referenced", limit.reserved_referenced);
    line.labelled("reserved_exclusive", "rsv_exclusive", limit.reserved_exclusive);
}

fn describe_balance(details: &mut Details, balance: &BalanceItem) {
    details
        .line()
        .words("objectid", "temporary item objectid", "BALANCE")
        .labelled("offset", "offset", 0_u64);
    details.line().labelled("flags", "balance status flags", balance.flags.bits());
    let parts = [("DATA", &balance.data), ("METADATA", &balance.metadata), ("SYSTEM", &balance.system)];
    details.list("filters", parts.into_iter().map(|(kind, args)| balance_args(kind, args)));
}

fn balance_args(kind: &'static str, args: &BalanceArgs) -> Details {
    let mut details = Details::default();
    details.line().words("kind", "", kind);
    let line = details.line();
    line.number("profiles", args.profiles).number("devid", args.devid.0).number("target", args.target);
    line.number("flags", args.flags.bits());
    let line = details.line();
    line.number("usage", args.usage).labelled("physical_start", "pstart", args.physical_start.0);
    line.labelled("physical_end", "pend", args.physical_end.0);
    let line = details.line();
    line.labelled("virtual_start", "vstart", args.virtual_start.0);
    line.labelled("virtual_end", "vend", args.virtual_end.0).number("limit", args.limit);
    details.line().number("stripes_min", args.stripes_min).number("stripes_max", args.stripes_max);
    details
}

/// Returns the number and name of a checksum algorithm.
pub fn checksum_type_text(raw: u16) -> String {
    match ChecksumType::from_raw(raw) {
        Ok(kind) => format!("{raw} ({kind})"),
        Err(_) => format!("{raw} (unknown)"),
    }
}
