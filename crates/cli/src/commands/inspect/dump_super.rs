//! `papilio inspect dump-super`, in the format of `btrfs inspect-internal dump-super`.
//!
//! It shows the raw fields, even of superblocks that cannot be mounted.

use super::details::{Details, write_text};
use super::flags::flag_names;
use super::items::{checksum_type_text, describe_chunk};
use super::key_text::key_text;
use crate::context::Context;
use crate::output::{JsonArray, Output, escaped, json_bytes};
use papilio::format::superblock::{RawSuperblock, RootBackup, SUPERBLOCK_MIRRORS};
use papilio::format::{ItemType, Key, LogicalAddress, PhysicalAddress, objectid};
use papilio::{ChecksumState, SuperblockCopy};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Show superblocks, even invalid ones
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The images or devices
    #[arg(value_name = "IMAGE", required = true, value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// Show the system chunks and backup roots too
    #[arg(short = 'f', long)]
    full: bool,
    /// Show all copies
    #[arg(short = 'a', long, conflicts_with_all = ["copy", "bytenr"])]
    all: bool,
    /// Show copy N: 0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB
    #[arg(
        short = 's',
        short_alias = 'i',
        long = "super",
        id = "copy",
        value_name = "N",
        default_value_t = 0
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=2))]
    copy: u8,
    /// Show the bytes at this offset as a superblock
    #[arg(long, value_name = "OFFSET", conflicts_with = "copy")]
    bytenr: Option<u64>,
    /// Show a superblock without Btrfs's magic number
    #[arg(short = 'F', long)]
    force: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows the superblocks.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_images(self.images.clone());
        let mut output = Output::new()?;
        let mut array = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        for image in &self.images {
            let copies = match self.copies(context, image) {
                Ok(copies) => copies,
                Err(error) => {
                    context.failure(&error);
                    continue;
                }
            };
            for copy in copies {
                if !copy.has_magic() && !self.force {
                    context.error(format_args!(
                        "{}: bad magic on the superblock at {}; show it anyway with --force",
                        image.display(),
                        copy.place
                    ));
                    continue;
                }
                match &mut array {
                    Some(array) => array.push(&mut output, &to_json(image, &copy))?,
                    None => print(&mut output, image, &copy, self.full)?,
                }
            }
        }
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }

    fn copies(&self, context: &Context, image: &Path) -> anyhow::Result<Vec<SuperblockCopy>> {
        let missing = |what: String| anyhow::anyhow!("{}: too small for {what}", image.display());
        if let Some(offset) = self.bytenr {
            let copy = SuperblockCopy::read_at(image, PhysicalAddress(offset))?;
            return Ok(vec![copy.ok_or_else(|| missing(format!("a superblock at {offset}")))?]);
        }
        if !self.all {
            let copy = SuperblockCopy::read(image, self.copy.into())?;
            // btrfs-progs pass over a copy that the device has no room for.
            if copy.is_none() && context.arguments().drop_in && self.copy > 0 {
                return Ok(Vec::new());
            }
            return Ok(vec![copy.ok_or_else(|| missing(format!("superblock copy {}", self.copy)))?]);
        }
        let mut copies = Vec::new();
        for mirror in 0..SUPERBLOCK_MIRRORS {
            copies.extend(SuperblockCopy::read(image, mirror)?);
        }
        Ok(copies)
    }
}

fn checksum_text(copy: &SuperblockCopy) -> String {
    match copy.checksum() {
        ChecksumState::Match(sum) => format!("{sum} [match]"),
        ChecksumState::Mismatch { stored, .. } => format!("{stored} [DON'T MATCH]"),
        ChecksumState::UnknownType => {
            let bytes: String = copy.raw.csum.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{bytes} [UNKNOWN TYPE]")
        }
    }
}

fn magic_text(copy: &SuperblockCopy) -> String {
    let bytes = copy.raw.magic.to_le_bytes();
    let printable = bytes.map(|byte| if byte.is_ascii_graphic() { char::from(byte) } else { '.' });
    let state = if copy.has_magic() { "[match]" } else { "[DON'T MATCH]" };
    format!("{} {state}", String::from_iter(printable))
}

fn label(raw: &RawSuperblock) -> &[u8] {
    raw.label.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Prints flags, with their names below.
fn print_flags(output: &mut Output, name: &str, bits: u64, names: &[String]) -> anyhow::Result<()> {
    output.text(format_args!("{name}{bits:#x}\n"))?;
    if !names.is_empty() {
        output.text(format_args!("\t\t\t( {} )\n", names.join(" |\n\t\t\t  ")))?;
    }
    Ok(())
}

fn print(output: &mut Output, image: &Path, copy: &SuperblockCopy, full: bool) -> anyhow::Result<()> {
    let raw = &copy.raw;
    let title = format!("superblock: bytenr={}, device={}", copy.place, image.display());
    output.name(title.as_bytes())?;
    output.text(format_args!("\n{}\n", "-".repeat(57)))?;
    output.text(format_args!("csum_type\t\t{}\n", checksum_type_text(raw.csum_type)))?;
    let size = copy.checksum_type().map_or("unknown".to_owned(), |kind| kind.size().to_string());
    output.text(format_args!("csum_size\t\t{size}\ncsum\t\t\t{}\n", checksum_text(copy)))?;
    output.text(format_args!("bytenr\t\t\t{}\n", raw.bytenr))?;
    print_flags(output, "flags\t\t\t", raw.flags.bits(), &flag_names(raw.flags))?;
    output.text(format_args!("magic\t\t\t{}\n", magic_text(copy)))?;
    output.text(format_args!("fsid\t\t\t{}\nmetadata_uuid\t\t{}\n", raw.fsid, shown_metadata_uuid(raw)))?;
    output.bytes(b"label\t\t\t")?;
    output.bytes(&escaped(label(raw)))?;
    output.bytes(b"\n")?;
    for (name, value) in fields_before_flags(raw) {
        output.text(format_args!("{name}{value}\n"))?;
    }
    output.text(format_args!("compat_flags\t\t{:#x}\n", raw.compat_flags))?;
    let (compat_ro, incompat) = (raw.compat_ro_flags, raw.incompat_flags);
    print_flags(output, "compat_ro_flags\t\t", compat_ro.bits(), &flag_names(compat_ro))?;
    print_flags(output, "incompat_flags\t\t", incompat.bits(), &flag_names(incompat))?;
    let device = &raw.dev_item;
    let matches = if device.fsid == shown_metadata_uuid(raw) { "[match]" } else { "[DON'T MATCH]" };
    output.text(format_args!(
        "cache_generation\t{}\nuuid_tree_generation\t{}\n",
        raw.cache_generation, raw.uuid_tree_generation
    ))?;
    output.text(format_args!(
        "dev_item.uuid\t\t{}\ndev_item.fsid\t\t{} {matches}\n",
        device.uuid, device.fsid
    ))?;
    for (name, value) in device_fields(raw) {
        output.text(format_args!("{name}{value}\n"))?;
    }
    if full {
        print_full(output, copy)?;
    }
    Ok(output.bytes(b"\n")?)
}

/// Returns the UUID in the tree blocks.
fn shown_metadata_uuid(raw: &RawSuperblock) -> papilio::format::Uuid {
    use papilio::format::features::IncompatFeatures;
    match raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
        true => raw.metadata_uuid,
        false => raw.fsid,
    }
}

fn fields_before_flags(raw: &RawSuperblock) -> [(&'static str, u64); 18] {
    [
        ("generation\t\t", raw.generation.0),
        ("root\t\t\t", raw.root.0),
        ("sys_array_size\t\t", raw.sys_chunk_array_size.into()),
        ("chunk_root_generation\t", raw.chunk_root_generation.0),
        ("root_level\t\t", raw.root_level.into()),
        ("chunk_root\t\t", raw.chunk_root.0),
        ("chunk_root_level\t", raw.chunk_root_level.into()),
        ("log_root\t\t", raw.log_root.0),
        ("log_root_transid (deprecated)\t", raw.log_root_transid),
        ("log_root_level\t\t", raw.log_root_level.into()),
        ("total_bytes\t\t", raw.total_bytes),
        ("bytes_used\t\t", raw.bytes_used),
        ("sectorsize\t\t", raw.sector_size.into()),
        ("nodesize\t\t", raw.node_size.into()),
        ("leafsize (deprecated)\t", raw.leaf_size.into()),
        ("stripesize\t\t", raw.stripe_size.into()),
        ("root_dir\t\t", raw.root_dir_objectid),
        ("num_devices\t\t", raw.num_devices),
    ]
}

fn device_fields(raw: &RawSuperblock) -> [(&'static str, u64); 11] {
    let device = &raw.dev_item;
    [
        ("dev_item.type\t\t", device.device_type),
        ("dev_item.total_bytes\t", device.total_bytes),
        ("dev_item.bytes_used\t", device.bytes_used),
        ("dev_item.io_align\t", device.io_align.into()),
        ("dev_item.io_width\t", device.io_width.into()),
        ("dev_item.sector_size\t", device.sector_size.into()),
        ("dev_item.devid\t\t", device.devid.0),
        ("dev_item.dev_group\t", device.dev_group.into()),
        ("dev_item.seek_speed\t", device.seek_speed.into()),
        ("dev_item.bandwidth\t", device.bandwidth.into()),
        ("dev_item.generation\t", device.generation.0),
    ]
}

fn print_full(output: &mut Output, copy: &SuperblockCopy) -> anyhow::Result<()> {
    output.text(format_args!("sys_chunk_array[{}]:\n", copy.raw.sys_chunk_array.len()))?;
    let (chunks, fault) = copy.system_chunks();
    for (index, (start, chunk)) in chunks.iter().enumerate() {
        output.text(format_args!("\titem {index} {}\n", key_text(&chunk_key(*start))))?;
        let mut details = Details::default();
        describe_chunk(&mut details, chunk);
        write_text(output, &details, 2)?;
    }
    if let Some(fault) = fault {
        output.text(format_args!("\tBAD: {fault}\n"))?;
    }
    output.text(format_args!("backup_roots[{}]:\n", copy.raw.super_roots.len()))?;
    for (index, backup) in copy.raw.super_roots.iter().enumerate() {
        output.text(format_args!("\tbackup {index}:\n"))?;
        write_text(output, &backup_details(backup), 2)?;
        output.bytes(b"\n")?;
    }
    Ok(())
}

fn chunk_key(start: LogicalAddress) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0)
}

/// Returns the trees of a backup: JSON name, label, address, generation, level.
fn backup_trees(backup: &RootBackup) -> [(&'static str, &'static str, u64, u64, u8); 6] {
    let row = |key, label, address: LogicalAddress, generation: papilio::format::Generation, level| {
        (key, label, address.0, generation.0, level)
    };
    [
        row(
            "tree_root",
            "backup_tree_root:\t",
            backup.tree_root,
            backup.tree_root_generation,
            backup.tree_root_level,
        ),
        row(
            "chunk_root",
            "backup_chunk_root:\t",
            backup.chunk_root,
            backup.chunk_root_generation,
            backup.chunk_root_level,
        ),
        row(
            "extent_root",
            "backup_extent_root:\t",
            backup.extent_root,
            backup.extent_root_generation,
            backup.extent_root_level,
        ),
        row(
            "fs_root",
            "backup_fs_root:\t\t",
            backup.fs_root,
            backup.fs_root_generation,
            backup.fs_root_level,
        ),
        row(
            "dev_root",
            "backup_dev_root:\t",
            backup.dev_root,
            backup.dev_root_generation,
            backup.dev_root_level,
        ),
        row(
            "csum_root",
            "csum_root:\t",
            backup.csum_root,
            backup.csum_root_generation,
            backup.csum_root_level,
        ),
    ]
}

/// Describes a backup root.
pub fn backup_details(backup: &RootBackup) -> Details {
    let mut details = Details::default();
    for (key, label, address, generation, level) in backup_trees(backup) {
        let text = format!("{label}{address}\tgen: {generation}\tlevel: {level}");
        let json = json!({ "address": address, "generation": generation, "level": level });
        details.line().field(key, "", text, json);
    }
    for (key, label, value) in [
        ("total_bytes", "backup_total_bytes:\t", backup.total_bytes),
        ("bytes_used", "backup_bytes_used:\t", backup.bytes_used),
        ("num_devices", "backup_num_devices:\t", backup.num_devices),
    ] {
        details.line().field(key, "", format!("{label}{value}"), value.into());
    }
    details
}

fn to_json(image: &Path, copy: &SuperblockCopy) -> Value {
    let raw = &copy.raw;
    let mut object = Map::new();
    object.insert("device".into(), image.to_string_lossy().into());
    object.insert("place".into(), copy.place.0.into());
    object.insert("valid".into(), copy.verify().is_ok().into());
    let error = copy.verify().err().map(|error| error.to_string());
    object.insert("error".into(), error.into());
    object.insert("magic_matches".into(), copy.has_magic().into());
    let matches = match copy.checksum() {
        ChecksumState::Match(_) => Value::Bool(true),
        ChecksumState::Mismatch { .. } => Value::Bool(false),
        ChecksumState::UnknownType => Value::Null,
    };
    object.insert("csum_matches".into(), matches);
    object.insert("csum_type".into(), raw.csum_type.into());
    object.insert("csum_type_name".into(), copy.checksum_type().map(|kind| kind.name()).into());
    object.insert("bytenr".into(), raw.bytenr.0.into());
    object.insert("fsid".into(), raw.fsid.to_string().into());
    object.insert("metadata_uuid".into(), shown_metadata_uuid(raw).to_string().into());
    json_bytes(&mut object, "label", label(raw));
    let numbers = fields_before_flags(raw).into_iter().chain(device_fields(raw));
    for (name, value) in numbers {
        // Some labels have remarks, such as "log_root_transid (deprecated)\t".
        let name = name.trim_end().split(' ').next().unwrap_or_default().replace('.', "_");
        object.insert(name, value.into());
    }
    for (name, bits, names) in [
        ("flags", raw.flags.bits(), flag_names(raw.flags)),
        ("compat_flags", raw.compat_flags, Vec::new()),
        ("compat_ro_flags", raw.compat_ro_flags.bits(), flag_names(raw.compat_ro_flags)),
        ("incompat_flags", raw.incompat_flags.bits(), flag_names(raw.incompat_flags)),
    ] {
        object.insert(name.into(), json!({ "bits": bits, "names": names }));
    }
    object.insert("cache_generation".into(), raw.cache_generation.into());
    object.insert("uuid_tree_generation".into(), raw.uuid_tree_generation.into());
    object.insert("dev_item_uuid".into(), raw.dev_item.uuid.to_string().into());
    object.insert("dev_item_fsid".into(), raw.dev_item.fsid.to_string().into());
    let (chunks, fault) = copy.system_chunks();
    let chunks = chunks.iter().map(|(start, chunk)| {
        let mut details = Details::default();
        details.line().number("logical", start.0);
        describe_chunk(&mut details, chunk);
        Value::Object(details.to_json())
    });
    object.insert("system_chunks".into(), chunks.collect());
    object.insert("system_chunks_error".into(), fault.map(|fault| fault.to_string()).into());
    let backups = raw.super_roots.iter().map(|backup| Value::Object(backup_details(backup).to_json()));
    object.insert("backup_roots".into(), backups.collect());
    object.into()
}
