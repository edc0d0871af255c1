//! `papilio rescue find-filesystems`: file systems on a disk without a partition table.

use crate::context::Context;
use crate::output::{JsonArray, Output, escaped};
use crate::scanning::new_bar;
use papilio::FoundFileSystem;
use papilio::device::{Access, DeviceOptions, split_partition};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Find Btrfs file systems anywhere on a disk, by their superblocks
///
/// Reads the whole disk. Each file system is named as DISK@+OFFSET, which all other commands take.
/// A line tells which copies of the superblock are there and agree, and whether the file system
/// lies inside another: an image in a file, or what an earlier use left. Nothing is written.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The disk or image
    #[arg(value_hint = clap::ValueHint::FilePath)]
    disk: PathBuf,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Searches the disk.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = context.arguments().image_options();
        let open = DeviceOptions::new(Access::ReadOnly).lock(false);
        context.confine_to_images([self.disk.clone()]);
        let device = match split_partition(&self.disk).1 {
            Some(_) => open.open_target(&self.disk, &options)?.into_device(),
            None => open.open_base(&self.disk, &options)?.disk,
        };
        context.seal();
        let bar = (context.verbosity >= 0 && std::io::stderr().is_terminal()).then(new_bar);
        if let Some(bar) = &bar {
            bar.set_length(device.size());
        }
        let (found, bad) = papilio::find_filesystems(&*device, |done| {
            if let Some(bar) = &bar {
                bar.set_position(done);
            }
            ControlFlow::Continue(())
        })?;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let name = self.disk.display().to_string();
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for one in &found {
                array.push(&mut output, &to_json(&name, one))?;
            }
            array.end(&mut output)?;
        } else {
            for one in &found {
                let line = line(&name, one);
                let line = escaped(line.as_bytes());
                output.text(format_args!("{}\n", String::from_utf8_lossy(&line)))?;
            }
        }
        output.finish()?;
        for (place, length) in bad {
            context.error(format_args!("{name}: {length} bytes at {place} cannot be read"));
        }
        if found.is_empty() {
            anyhow::bail!("{name}: no superblock of Btrfs was found in {} bytes", device.size());
        }
        Ok(())
    }
}

fn line(disk: &str, one: &FoundFileSystem) -> String {
    let label = match &one.label[..] {
        [] => String::new(),
        label => format!(" {:?}", String::from_utf8_lossy(label)),
    };
    let copies: Vec<String> =
        one.copies.iter().map(|copy| format!("{} (generation {})", copy.mirror, copy.generation)).collect();
    let agree = match (one.copies.len(), one.copies_agree()) {
        (1, _) => "",
        (_, true) => ", which agree",
        (_, false) => ", which DISAGREE",
    };
    let missing = match &one.missing[..] {
        [] => String::new(),
        missing => {
            format!("; missing {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    let inside = one.inside.map_or(String::new(), |outer| {
        format!("; inside the file system at {disk}@+{outer}: a file of it, or left by an earlier use")
    });
    let cut = if one.is_cut_off { "; it ends past the end of the disk" } else { "" };
    let (start, fsid, size, devid, devices) = (one.start, one.fsid, one.size, one.devid, one.devices);
    format!(
        "{disk}@+{start}: {fsid}{label}, {size} bytes, device {devid} of {devices}; superblocks {}{agree}{missing}{inside}{cut}",
        copies.join(", ")
    )
}

fn to_json(disk: &str, one: &FoundFileSystem) -> Value {
    let copies: Vec<Value> = one
        .copies
        .iter()
        .map(|copy| json!({"copy": copy.mirror, "place": copy.place.0, "generation": copy.generation.0}))
        .collect();
    json!({
        "disk": disk,
        "start": one.start.0,
        "fsid": one.fsid.to_string(),
        "label": String::from_utf8_lossy(&one.label),
        "bytes": one.size,
        "devid": one.devid.0,
        "devices": one.devices,
        "copies": copies,
        "agree": one.copies_agree(),
        "missing": one.missing,
        "inside": one.inside.map(|outer| outer.0),
        "cut_off": one.is_cut_off,
    })
}
