//! `papilio filesystem show`, in the format of `btrfs filesystem show`.
//!
//! Owns [`ShownFileSystem`], which comes from an open file system, a mount, or the superblocks of
//! devices.

use super::source::UsageSource;
use crate::context::Context;
use crate::output::{Output, json_bytes};
use crate::units::UnitArgs;
use anyhow::bail;
use papilio::FoundDevice;
use papilio::format::Uuid;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show the label, UUID and devices
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount; or the label or UUID of a file system on
    /// block devices. Without it, all file systems on the block devices of this machine
    #[arg(value_name = "IMAGE|PATH|LABEL|UUID", value_hint = clap::ValueHint::FilePath)]
    image: Option<PathBuf>,
    /// Search all block devices, as without an operand
    #[arg(short = 'd', long, conflicts_with = "image")]
    all_devices: bool,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON object, or an array of them without IMAGE
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A file system as the command shows it.
struct ShownFileSystem {
    label: Vec<u8>,
    uuid: Uuid,
    /// The UUID in the tree blocks, if it is known.
    metadata_uuid: Option<Uuid>,
    total_devices: u64,
    used: u64,
    /// Why a mount takes no more changes.
    failure: Option<String>,
    devices: Vec<ShownDevice>,
}

struct ShownDevice {
    devid: u64,
    uuid: Uuid,
    size: u64,
    used: u64,
    /// The path; `None` for a missing device.
    path: Option<Vec<u8>>,
}

impl Args {
    /// Shows the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(image) = self.image.as_ref().filter(|image| image.exists()) {
            context.confine_to_place(image);
        }
        let shown = match &self.image {
            Some(name) if !name.exists() && !self.all_devices => vec![ShownFileSystem::named(name)?],
            Some(image) => vec![ShownFileSystem::of(&UsageSource::open(context, image)?)?],
            None => ShownFileSystem::found()?,
        };
        let mut output = Output::new()?;
        if self.json {
            let mut values = shown.into_iter().map(ShownFileSystem::json);
            let value = match self.image {
                Some(_) => values.next().unwrap_or_default(),
                None => values.collect(),
            };
            output.text(format_args!("{value:#}\n"))?;
        } else {
            shown.iter().try_for_each(|shown| self.print(&mut output, shown))?;
        }
        Ok(output.finish()?)
    }

    fn print(&self, output: &mut Output, shown: &ShownFileSystem) -> anyhow::Result<()> {
        let units = self.units.resolve();
        match &shown.label[..] {
            [] => output.bytes(b"Label: none ")?,
            label => {
                output.bytes(b"Label: '")?;
                output.name(label)?;
                output.bytes(b"' ")?;
            }
        }
        output.text(format_args!(
            " uuid: {}\n\tTotal devices {} FS bytes used {}\n",
            shown.uuid,
            shown.total_devices,
            units.text(shown.used)
        ))?;
        for device in &shown.devices {
            output.text(format_args!(
                "\tdevid {:>4} size {} used {} path ",
                device.devid,
                units.text(device.size),
                units.text(device.used)
            ))?;
            match &device.path {
                Some(path) => output.name(path)?,
                None => output.bytes(b"<missing disk> MISSING")?,
            }
            output.bytes(b"\n")?;
        }
        if shown.is_incomplete() {
            output.bytes(b"\t*** Some devices missing\n")?;
        }
        if let Some(cause) = &shown.failure {
            output.bytes(b"\t*** Read-only: ")?;
            output.name(cause.as_bytes())?;
            output.bytes(b"\n")?;
        }
        Ok(output.bytes(b"\n")?)
    }
}

impl ShownFileSystem {
    /// Reads an open file system or a mount.
    fn of(system: &UsageSource) -> anyhow::Result<Self> {
        let (names, usage) = (system.names()?, system.usage()?);
        Ok(Self {
            label: names.label,
            uuid: names.uuid,
            metadata_uuid: Some(names.metadata_uuid),
            total_devices: names.devices,
            // All block groups together, which the superblock has too.
            used: usage.spaces.iter().map(|space| space.used).sum(),
            failure: system.failure()?,
            devices: usage
                .devices
                .into_iter()
                .map(|device| ShownDevice {
                    devid: device.devid.0,
                    uuid: device.uuid,
                    size: device.total,
                    used: device.allocated,
                    path: device.path.map(String::into_bytes),
                })
                .collect(),
        })
    }

    /// Reads the superblocks of all block devices.
    fn found() -> anyhow::Result<Vec<Self>> {
        let mut systems: BTreeMap<Uuid, Vec<FoundDevice>> = BTreeMap::new();
        for device in FoundDevice::without_twins(FoundDevice::on_this_machine()?) {
            systems.entry(device.fsid).or_default().push(device);
        }
        Ok(systems.into_values().filter_map(Self::of_devices).collect())
    }

    /// Finds a file system on block devices by its label or UUID.
    fn named(name: &Path) -> anyhow::Result<Self> {
        let is_meant = |shown: &Self| {
            shown.label == name.as_os_str().as_bytes() || name.to_str() == Some(&*shown.uuid.to_string())
        };
        match Self::found()?.into_iter().find(is_meant) {
            Some(shown) => Ok(shown),
            None => bail!("{}: no such file, and no file system has this label or UUID", name.display()),
        }
    }

    /// Describes a file system by the superblocks of its devices, of which the newest counts.
    fn of_devices(mut found: Vec<FoundDevice>) -> Option<Self> {
        found.sort_by_key(|device| device.devid);
        let newest = found.iter().max_by_key(|device| device.generation)?.clone();
        let devices = found.into_iter().map(|device| ShownDevice {
            devid: device.devid.0,
            uuid: device.uuid,
            size: device.size,
            used: device.allocated,
            path: Some(device.path.as_os_str().as_bytes().to_vec()),
        });
        Some(Self {
            label: newest.label,
            uuid: newest.fsid,
            metadata_uuid: None,
            total_devices: newest.devices,
            used: newest.used,
            failure: None,
            devices: devices.collect(),
        })
    }

    fn is_incomplete(&self) -> bool {
        let present = self.devices.iter().filter(|device| device.path.is_some()).count() as u64;
        present < self.total_devices || self.devices.iter().any(|device| device.path.is_none())
    }

    fn json(self) -> Value {
        let mut object = Map::new();
        json_bytes(&mut object, "label", &self.label);
        object.insert("uuid".into(), self.uuid.to_string().into());
        if let Some(uuid) = self.metadata_uuid {
            object.insert("metadata_uuid".into(), uuid.to_string().into());
        }
        object.insert("total_devices".into(), self.total_devices.into());
        object.insert("bytes_used".into(), self.used.into());
        if let Some(cause) = self.failure {
            object.insert("read_only".into(), cause.into());
        }
        let devices = self.devices.into_iter().map(|device| {
            json!({
                "devid": device.devid,
                "uuid": device.uuid.to_string(),
                "path": device.path.as_deref().map(String::from_utf8_lossy),
                "missing": device.path.is_none(),
                "size": device.size,
                "used": device.used,
            })
        });
        object.insert("devices".into(), devices.collect());
        Value::Object(object)
    }
}
