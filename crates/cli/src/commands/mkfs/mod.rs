//! `papilio mkfs`: creates a file system, empty or with content.
//!
//! Owns the options, which have the letters of mkfs.btrfs(8), and the output. [`content`] fills the
//! file system.

mod content;

use crate::context::Context;
use crate::new_secret::new_secret;
use crate::output::{Output, escaped, json_bytes};
use crate::units::{self, Units};
use crate::usage_error::UsageError;
use anyhow::Context as _;
use content::ContentArgs;
use papilio::device::{OpenError, is_store_url, object_stores};
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::chunk::RaidProfile;
use papilio::format::{ChecksumType, Uuid};
use papilio::{
    FeatureMeaning, FoundDevice, KernelVersion, Made, MadeBlockGroup, MadeDevice, MkfsFeature, MkfsOptions,
    Populated, Timespec, Updated,
};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The environment variable for the time of all new inodes (reproducible-builds.org).
const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Create a file system
///
/// IMAGE is a block device or a regular file, which --size creates or extends. The defaults are
/// those of mkfs.btrfs 6.19. Kernels before 6.1 cannot write a file system with a block-group tree;
/// -O ^block-group-tree leaves it out.
///
/// With --rootdir the file system is filled, and the content determines the size if there is no
/// --size. Until the copy is complete, the superblock has a temporary magic number, so that nothing
/// mounts the file system.
///
/// With several images the file system spans all of them, with metadata in RAID1 unless -m says
/// otherwise. --size is then the size on each. RAID0 needs 1 device; RAID1, RAID10 and RAID5 need
/// 2, RAID1C3 and RAID6 need 3, and RAID1C4 needs 4.
///
/// With a given UUID, and SOURCE_DATE_EPOCH in the environment (seconds since 1970), the same
/// options and content result in the same bytes. The time of the last access of each file is then
/// that of its last modification.
///
/// Sizes take the suffixes K, M, G, T, P and E, powers of 1024.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The images or devices
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    /// Overwrite an existing file system
    #[arg(short, long)]
    force: bool,
    /// Do not discard the old content of the device, nor punch holes in a file
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Encrypt the device of a URL with slatedb+: content, names, and the state of the file system
    ///
    /// The options --key-file, --key-fd and --key-command give the key; without them the terminal
    /// asks for a passphrase. papilio store key adds further ones.
    #[arg(long)]
    encrypt: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    // The last field, since its heading applies to all options that follow.
    #[command(flatten)]
    content: ContentArgs,
}

/// The properties of the file system.
#[derive(Debug, clap::Args)]
struct FormatArgs {
    /// The size of the file system on each IMAGE; without it, that of IMAGE
    #[arg(short = 'b', long, visible_alias = "byte-count", value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,
    /// The label, up to 255 bytes
    #[arg(short = 'L', long)]
    label: Option<OsString>,
    /// The UUID of the file system
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// The UUID of the first device
    #[arg(long, value_name = "UUID")]
    device_uuid: Option<Uuid>,
    /// The UUID in the tree blocks, if it differs from that of the file system
    #[arg(long, value_name = "UUID")]
    metadata_uuid: Option<Uuid>,
    /// The size of a tree block: 4K, 8K, 16K (default), 32K or 64K
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block_size)]
    nodesize: Option<u32>,
    /// Removed: use --nodesize
    #[arg(short = 'l', long, value_name = "SIZE", hide = true)]
    leafsize: Option<OsString>,
    /// The size of a sector: 4K (default), 8K, 16K, 32K or 64K. A kernel mounts 4K, and sizes up to
    /// that of its pages
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block_size)]
    sectorsize: Option<u32>,
    /// The checksum algorithm: crc32c (default), xxhash, sha256 or blake2
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = parse_checksum)]
    csum: Option<ChecksumType>,
    /// The features to switch on, or off with a leading ^: mixed-bg, extref, skinny-metadata,
    /// no-holes, free-space-tree, block-group-tree, quota, squota; list-all describes them all
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// Make a file system for this version of Linux and the tools of its time, such as 5.15
    ///
    /// Newer features are off, and options that need one are refused.
    #[arg(long, value_name = "VERSION")]
    kernel: Option<KernelVersion>,
    /// An older name of --features
    #[arg(short = 'R', long, value_name = "LIST", hide = true)]
    runtime_features: Vec<String>,
    /// The profile of data: single (default), dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or
    /// raid6
    #[arg(short, long, value_name = "PROFILE", value_parser = parse_profile)]
    data: Option<RaidProfile>,
    /// The profile of metadata, as for data; by default dup on one device and raid1 on several
    #[arg(short, long, value_name = "PROFILE", value_parser = parse_profile)]
    metadata: Option<RaidProfile>,
    /// Store data and metadata in the same block groups, for small devices
    #[arg(short = 'M', long)]
    mixed: bool,
}

impl Args {
    /// Creates the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let lists = self.format.features.iter().chain(&self.format.runtime_features);
        if lists.flat_map(|list| list.split(',')).any(|name| name == "list-all") {
            return list_features();
        }
        if self.images.is_empty() {
            return Err(UsageError::new("mkfs: name an image or a device").into());
        }
        if self.content.update {
            return self.update(context);
        }
        let sized = self.format.size.is_some();
        let mut options = self.format.options()?.force(self.force).discard(!self.nodiscard);
        let epoch = epoch()?;
        if let Some(epoch) = epoch {
            options = options.timestamp(epoch);
        }
        if epoch.is_some() && self.format.uuid.is_none() {
            context.warning(
                "the image is not reproducible: SOURCE_DATE_EPOCH fixes its times; \
                 --uuid would fix its UUIDs",
            );
        }
        let images = self.images(context);
        let profiles = [self.format.data, self.format.metadata];
        let has_parity =
            |profile: &Option<RaidProfile>| matches!(profile, Some(RaidProfile::Raid5 | RaidProfile::Raid6));
        if context.arguments().drop_in && profiles.iter().any(has_parity) {
            context.warning(super::balance::PARITY);
        }
        if let Some(uuid) = self.format.uuid {
            refuse_used(uuid, &images)?;
        }
        if self.encrypt {
            encrypt(context, &images)?;
        }
        let made = self.content.make(context, &images, options, epoch, sized);
        // With content, it may be the content that is refused.
        let options_alone = self.content.rootdir.is_empty();
        let (made, filled) = made.map_err(|error| if options_alone { as_usage(error) } else { error })?;
        context.changed_devices.note(images);
        let filled = (!self.content.rootdir.is_empty()).then_some(filled);
        let mut output = Output::new()?;
        if self.json {
            output.text(format_args!("{:#}\n", json_of(&made, filled)))?;
        } else if context.verbosity >= 0 {
            print(&made, filled, &mut output)?;
        }
        Ok(output.finish()?)
    }
}

impl Args {
    /// Returns the images. The option --device of all commands names further ones.
    fn images(&self, context: &Context) -> Vec<PathBuf> {
        [&self.images[..], &context.arguments().device].concat()
    }

    /// Updates the content of the file system.
    fn update(self, context: &Context) -> anyhow::Result<()> {
        let images = self.images(context);
        let updated = self.content.update(context, &images, epoch()?)?;
        context.changed_devices.note(images);
        let Updated { created, changed, removed, unchanged, bytes_written, bytes_equal, .. } = updated;
        let mut output = Output::new()?;
        if self.json {
            let json = json!({
                "created": created,
                "changed": changed,
                "removed": removed,
                "unchanged": unchanged,
                "bytes_written": bytes_written,
                "bytes_equal": bytes_equal,
            });
            output.text(format_args!("{json:#}\n"))?;
        } else if context.verbosity >= 0 {
            let [written, equal] = [bytes_written, bytes_equal].map(|bytes| Units::HUMAN.text(bytes));
            output.text(format_args!("Created:            {created} entries\n"))?;
            output.text(format_args!("Changed:            {changed} entries\n"))?;
            output.text(format_args!("Removed:            {removed} entries\n"))?;
            output.text(format_args!("Unchanged:          {unchanged} entries, {equal} of files\n"))?;
            output.text(format_args!("Written:            {written} of files\n"))?;
        }
        Ok(output.finish()?)
    }
}

/// Returns the time of all new inodes, if the environment gives one.
fn epoch() -> Result<Option<Timespec>, UsageError> {
    std::env::var_os(SOURCE_DATE_EPOCH).map(|value| parse_epoch(&value)).transpose()
}

impl FormatArgs {
    fn options(&self) -> anyhow::Result<MkfsOptions> {
        if self.leafsize.is_some() {
            return Err(UsageError::new("--leafsize: btrfs-progs 6.0 removed it; use --nodesize").into());
        }
        let mut options = MkfsOptions::new();
        for list in self.features.iter().chain(&self.runtime_features) {
            options = options.feature_list(list).map_err(UsageError::new)?;
        }
        if self.mixed {
            options = options.feature(MkfsFeature::MixedGroups, true);
        }
        options = or(options, self.kernel, MkfsOptions::kernel);
        options = or(options, self.size, MkfsOptions::size);
        options = or(options, self.label.clone().map(OsStringExt::into_vec), MkfsOptions::label);
        options = or(options, self.uuid, MkfsOptions::fsid);
        options = or(options, self.device_uuid, MkfsOptions::device_uuid);
        options = or(options, self.metadata_uuid, MkfsOptions::metadata_uuid);
        options = or(options, self.nodesize, MkfsOptions::node_size);
        options = or(options, self.sectorsize, MkfsOptions::sector_size);
        options = or(options, self.csum, MkfsOptions::checksum);
        options = or(options, self.data, MkfsOptions::data_profile);
        Ok(or(options, self.metadata, MkfsOptions::metadata_profile))
    }
}

/// Prepares the places of encrypted devices. One secret opens all of them.
fn encrypt(context: &Context, images: &[PathBuf]) -> anyhow::Result<()> {
    if let Some(other) = images.iter().find(|image| !is_store_url(image)) {
        let reason =
            format_args!("--encrypt: {}: only devices at URLs with slatedb+ are encrypted", other.display());
        return Err(UsageError::new(reason).into());
    }
    let source = context.arguments().layer_options().key;
    let place = images.first().map(|image| image.display().to_string()).unwrap_or_default();
    let secret = new_secret(&source, &place, "--key-file")?;
    let options = context.arguments().remote_options();
    for image in images {
        let url = image.to_str().with_context(|| format!("{}: a URL is UTF-8", image.display()))?;
        let encrypt = || object_stores()?.encrypt(url, &secret, &options);
        encrypt().map_err(|kind| OpenError { path: image.clone(), kind })?;
    }
    papilio_layers::keep_secret(secret, &source);
    Ok(())
}

/// Refuses the UUID of a file system on other devices of this machine: the kernel would take the
/// two for one.
fn refuse_used(uuid: Uuid, images: &[PathBuf]) -> anyhow::Result<()> {
    // Devices that cannot be searched are no reason to refuse.
    let found = FoundDevice::on_this_machine().unwrap_or_default();
    let is_target = |path: &Path| {
        let target = path.canonicalize().ok();
        images.iter().any(|image| image == path || image.canonicalize().ok() == target)
    };
    match found.into_iter().find(|device| device.fsid == uuid && !is_target(&device.path)) {
        Some(device) => anyhow::bail!("{uuid}: {} has a file system with this UUID", device.path.display()),
        None => Ok(()),
    }
}

pub(super) fn list_features() -> anyhow::Result<()> {
    let mut output = Output::new()?;
    output.text(format_args!("Filesystem features available:\n"))?;
    for line in MkfsFeature::names() {
        output.text(format_args!("{:<20}- {}", line.name, line.description))?;
        if let Some(versions) = line.versions {
            output.text(format_args!(" (compat={}", versions.compatible))?;
            for (mark, version) in [("safe", versions.safe), ("default", versions.default)] {
                if let Some(version) = version {
                    output.text(format_args!(", {mark}={version}"))?;
                }
            }
            output.text(format_args!(")"))?;
        }
        match line.meaning {
            FeatureMeaning::Refused(why) => output.text(format_args!("; not here: {why}\n"))?,
            _ => output.text(format_args!("\n"))?,
        }
    }
    Ok(output.finish()?)
}

/// Makes a refusal of the options wrong usage.
fn as_usage(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(papilio::Error::Invalid(text)) => UsageError::new(text).into(),
        _ => error,
    }
}

/// Sets an option if it has a value.
fn or<T>(options: MkfsOptions, value: Option<T>, set: fn(MkfsOptions, T) -> MkfsOptions) -> MkfsOptions {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    units::parse_size(text)?.try_into().map_err(|_| "too large for a block".to_owned())
}

pub(super) fn parse_checksum(text: &str) -> Result<ChecksumType, String> {
    let text = text.to_ascii_lowercase();
    let name = match text.as_str() {
        "xxhash" => "xxhash64",
        "blake2b" => "blake2",
        other => other,
    };
    let found = ChecksumType::ALL.into_iter().find(|checksum| checksum.name() == name);
    found.ok_or_else(|| "not one of crc32c, xxhash, sha256 and blake2".to_owned())
}

fn parse_profile(text: &str) -> Result<RaidProfile, String> {
    let found = RaidProfile::ALL.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| "not a profile".to_owned())
}

fn parse_epoch(value: &std::ffi::OsStr) -> Result<Timespec, UsageError> {
    let seconds = value.to_str().and_then(|text| text.parse().ok());
    let wrong = || UsageError::new(format_args!("{SOURCE_DATE_EPOCH} is not a number of seconds"));
    Ok(Timespec { seconds: seconds.ok_or_else(wrong)?, nanoseconds: 0 })
}

fn kind_name(group: &MadeBlockGroup) -> &'static str {
    match group.kind {
        BlockGroupFlags::DATA => "Data",
        BlockGroupFlags::METADATA => "Metadata",
        BlockGroupFlags::SYSTEM => "System",
        _ => "Data+Metadata",
    }
}

fn feature_names(made: &Made) -> Vec<&'static str> {
    made.features.iter().map(|feature| feature.name()).collect()
}

fn print(made: &Made, filled: Option<Populated>, output: &mut Output) -> anyhow::Result<()> {
    output.text(format_args!("Label:              "))?;
    output.bytes(&escaped(&made.label))?;
    output.text(format_args!("\nUUID:               {}\n", made.fsid))?;
    if made.metadata_uuid != made.fsid {
        output.text(format_args!("Metadata UUID:      {}\n", made.metadata_uuid))?;
    }
    output.text(format_args!("Device UUID:        {}\n", made.device_uuid))?;
    output.text(format_args!("Node size:          {}\n", made.node_size))?;
    output.text(format_args!("Sector size:        {}\n", made.sector_size))?;
    output.text(format_args!("Filesystem size:    {}\n", Units::HUMAN.text(made.total_bytes)))?;
    if made.devices.len() > 1 {
        output.text(format_args!("Number of devices:  {}\n", made.devices.len()))?;
        for (at, device) in made.devices.iter().enumerate() {
            let size = Units::HUMAN.text(device.total_bytes);
            output.text(format_args!("  {:>3} {size:>16}  ", at + 1))?;
            output.bytes(&escaped(device.name.as_bytes()))?;
            output.text(format_args!("\n"))?;
        }
    }
    output.text(format_args!("Block group profiles:\n"))?;
    for group in &made.block_groups {
        let (kind, size) = (format!("{}:", kind_name(group)), Units::HUMAN.text(group.length));
        output.text(format_args!("  {kind:<17} {:<8} {size:>16}\n", group.profile))?;
    }
    output.text(format_args!("Features:           {}\n", feature_names(made).join(", ")))?;
    output.text(format_args!("Checksum:           {}\n", made.checksum))?;
    if let Some(Populated { entries, bytes, .. }) = filled {
        let bytes = Units::HUMAN.text(bytes);
        output.text(format_args!("Content:            {entries} entries, {bytes} of files\n"))?;
    }
    Ok(())
}

fn json_of(made: &Made, filled: Option<Populated>) -> Value {
    let group = |group: &MadeBlockGroup| {
        json!({
            "type": kind_name(group),
            "profile": group.profile.name(),
            "length": group.length,
        })
    };
    let device = |(at, device): (usize, &MadeDevice)| {
        json!({
            "devid": at + 1,
            "uuid": device.uuid.to_string(),
            "path": device.name,
            "total_bytes": device.total_bytes,
        })
    };
    let mut object = Map::new();
    json_bytes(&mut object, "label", &made.label);
    let all = json!({
        "uuid": made.fsid.to_string(),
        "metadata_uuid": made.metadata_uuid.to_string(),
        "device_uuid": made.device_uuid.to_string(),
        "devices": made.devices.iter().enumerate().map(device).collect::<Vec<_>>(),
        "total_bytes": made.total_bytes,
        "bytes_used": made.bytes_used,
        "nodesize": made.node_size,
        "sectorsize": made.sector_size,
        "csum": made.checksum.name(),
        "features": feature_names(made),
        "block_groups": made.block_groups.iter().map(group).collect::<Vec<_>>(),
    });
    if let Value::Object(fields) = all {
        object.extend(fields);
    }
    if let Some(filled) = filled {
        object.insert("content".into(), json!({ "entries": filled.entries, "bytes": filled.bytes }));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_mkfs_btrfs() {
        assert_eq!(parse_checksum("xxhash"), Ok(ChecksumType::XxHash64));
        assert_eq!(parse_checksum("BLAKE2"), Ok(ChecksumType::Blake2b));
        assert!(parse_checksum("md5").is_err());
        assert_eq!(parse_profile("dup"), Ok(RaidProfile::Dup));
        assert!(parse_profile("mirror").is_err());
        assert_eq!(parse_block_size("16k"), Ok(16384));
        assert!(parse_block_size("8G").is_err());
    }

    #[test]
    fn epoch_is_in_seconds() {
        assert_eq!(parse_epoch("1700000000".as_ref()).unwrap().seconds, 1_700_000_000);
        assert!(parse_epoch("today".as_ref()).is_err());
    }
}
