//! `papilio device stats`.

use crate::btrfs_json::list_of_btrfs;
use crate::context::{Context, of_image};
use crate::devices::is_same_file;
use crate::holder;
use crate::kernel_devices::block_device;
use crate::mounted::{Mounted, Target};
use crate::output::{Output, escaped};
use papilio::DeviceErrors;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The exit code if a counter is not zero, with --check.
const NOT_ZERO: u8 = 64;

/// Show the error counters of the devices
///
/// They count failed reads, writes and flushes, and copies that were wrong, since they were last
/// reset. The kernel counts in the same places. With --check the exit status is 64 if a counter is
/// not zero.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A device or image of the file system, or a directory in its mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Set the counters to zero after printing them
    #[arg(short = 'z', long)]
    reset: bool,
    /// Fail if a counter is not zero
    #[arg(short = 'c', long)]
    check: bool,
    /// Fail if the file system is mounted
    #[arg(long)]
    offline: bool,
    /// Print a table with a line for each device
    #[arg(short = 'T')]
    table: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the counters.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        // A device that is mounted stands for its mount.
        let place = holder::place_of(&self.image);
        if let Target::Mounted(mounted) = Target::parse(place.as_os_str())? {
            if self.offline {
                anyhow::bail!("{mounted}: it is mounted; --offline is for images that are not");
            }
            return self.print(context, &self.of_mount(context, &mounted)?);
        }
        let fs = if self.reset { context.change(&self.image)? } else { context.open(&self.image)? };
        let named = |error| of_image(&self.image, error);
        let mut devices = fs.device_errors().map_err(named)?;
        devices.retain(|device| self.is_named(context, device.path.as_deref()));
        if self.reset {
            for device in &devices {
                fs.reset_device_errors(device.devid).map_err(named)?;
            }
            fs.sync().map_err(named)?;
        }
        self.print(context, &devices)
    }

    /// Returns whether a device is shown: all are, but for btrfs-progs a block device names itself.
    fn is_named(&self, context: &Context, device: Option<&str>) -> bool {
        let names_itself = context.arguments().drop_in && block_device(&self.image).is_some();
        !names_itself || device.is_some_and(|path| is_same_file(Path::new(path), &self.image))
    }

    fn of_mount(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<Vec<DeviceErrors>> {
        let (mount, named) = (mounted.open()?, |error: std::io::Error| mounted.at(&error));
        let mut devices = mount.usage().map_err(named)?.devices;
        devices.retain(|device| self.is_named(context, device.path.as_deref()));
        let read = |device: papilio::DeviceUsage| {
            let [write, read, flush, corruption, generation] =
                mount.device_stats(device.devid, self.reset).map_err(named)?;
            Ok(DeviceErrors {
                devid: device.devid,
                path: device.path,
                write_errors: write,
                read_errors: read,
                flush_errors: flush,
                corruption_errors: corruption,
                generation_errors: generation,
            })
        };
        devices.into_iter().map(read).collect()
    }

    fn print(&self, context: &Context, devices: &[DeviceErrors]) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        if self.json && context.arguments().drop_in {
            let rows = devices.iter().map(json_of);
            output.text(format_args!("{:#}\n", list_of_btrfs("device-stats", rows)))?;
        } else if self.json {
            let array = devices.iter().map(json_of).collect();
            output.text(format_args!("{:#}\n", Value::Array(array)))?;
        }
        if self.table && !self.json {
            print_table(devices, &mut output)?;
        }
        for device in devices.iter().filter(|_| !self.json && !self.table) {
            let name = device.path.clone().unwrap_or_else(|| format!("devid:{}", device.devid));
            for (counter, value) in device.named() {
                output.bytes(b"[")?;
                output.name(name.as_bytes())?;
                output.text(format_args!("].{counter:<16} {value}\n"))?;
            }
        }
        output.finish()?;
        let errors: u64 = devices.iter().flat_map(DeviceErrors::named).map(|(_, value)| value).sum();
        if self.check && errors > 0 {
            context
                .fail_with(NOT_ZERO, format_args!("{}: {errors} errors were counted", self.image.display()));
        }
        Ok(())
    }
}

/// Prints the columns of `btrfs device stats -T`.
fn print_table(devices: &[DeviceErrors], output: &mut Output) -> anyhow::Result<()> {
    let head = [
        "Id",
        "Path",
        "Write errors",
        "Read errors",
        "Flush errors",
        "Corruption errors",
        "Generation errors",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for device in devices {
        let path = device.path.clone().unwrap_or_else(|| "<missing disk>".to_owned());
        rows.push([
            device.devid.to_string(),
            String::from_utf8_lossy(&escaped(path.as_bytes())).into_owned(),
            device.write_errors.to_string(),
            device.read_errors.to_string(),
            device.flush_errors.to_string(),
            device.corruption_errors.to_string(),
            device.generation_errors.to_string(),
        ]);
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    rows.insert(1, std::array::from_fn(|at| "-".repeat(widths[at])));
    for row in rows {
        // The path is the only column of text.
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        output.text(format_args!("{}\n", cells.collect::<Vec<_>>().join(" ")))?;
    }
    Ok(())
}

fn json_of(device: &DeviceErrors) -> Value {
    let mut object = Map::new();
    object.insert("device".into(), device.path.clone().into());
    object.insert("devid".into(), device.devid.0.into());
    for (counter, value) in device.named() {
        object.insert(counter.into(), value.into());
    }
    Value::Object(object)
}
