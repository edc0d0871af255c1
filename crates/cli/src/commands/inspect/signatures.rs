//! `papilio inspect signatures`: the owners of devices, by the signatures at both ends.

use crate::context::Context;
use crate::output::{JsonArray, Output};
use anyhow::Context as _;
use papilio::device::{Access, Device, DeviceOptions, ImageTarget, Signature, SignatureUse, signatures};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// List the signatures at both ends of devices
///
/// A signature shows what a device belongs to: a file system, an array, a volume group, an
/// encrypted volume, swap, a disk with partitions. A weak one is a magic number whose header does
/// not agree, such as data that looks like one. The others keep `mkfs`, and beside a Btrfs file
/// system also every command that writes, from the device. IMAGE@N is a partition.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The images or devices
    #[arg(required = true, value_name = "DEVICE", value_hint = clap::ValueHint::FilePath)]
    devices: Vec<PathBuf>,
    /// Print one JSON array, with an object for each signature
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Lists the signatures of all devices. A device that cannot be read is a failure of its own.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_images(self.devices.clone());
        let mut output = Output::new()?;
        let mut array = if self.json { Some(JsonArray::begin(&mut output)?) } else { None };
        let mut rows = vec![["Device", "Offset", "At", "Header", "Meaning"].map(str::to_owned)];
        for device in &self.devices {
            let found = match self.read(device, context) {
                Ok(found) => found,
                Err(error) => {
                    context.error(format_args!("{error:#}"));
                    continue;
                }
            };
            let name = device.display().to_string();
            for signature in &found {
                match &mut array {
                    Some(array) => array.push(&mut output, &to_json(&name, signature))?,
                    None => rows.push(row(&name, signature)),
                }
            }
        }
        match array {
            Some(array) => array.end(&mut output)?,
            None if rows.len() > 1 => print(&rows, &mut output)?,
            None => {}
        }
        Ok(output.finish()?)
    }

    fn read(&self, path: &PathBuf, context: &Context) -> anyhow::Result<Vec<Signature>> {
        let options = context.arguments().image_options();
        let target = DeviceOptions::new(Access::ReadOnly).open_target(path, &options)?;
        let device: Arc<dyn Device> = match target {
            ImageTarget::File(file) => Arc::from(file as Box<dyn Device>),
            ImageTarget::Inside(device) => device,
        };
        signatures(&*device).with_context(|| format!("reading {}", path.display()))
    }
}

fn end_of(signature: &Signature) -> &'static str {
    if signature.is_at_end { "end" } else { "start" }
}

fn row(device: &str, signature: &Signature) -> [String; 5] {
    let meaning = match signature.advice {
        "" => signature.name.to_owned(),
        advice => format!("{}: {advice}", signature.name),
    };
    let header = if signature.is_good { "good" } else { "weak" };
    [device, &signature.offset.to_string(), end_of(signature), header, &meaning].map(str::to_owned)
}

fn print(rows: &[[String; 5]], output: &mut Output) -> anyhow::Result<()> {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let (device, offset, at, header) = (width(0), width(1), width(2), width(3));
    for row in rows {
        let [a, b, c, d, e] = row;
        let text = format!("{a:<device$}  {b:>offset$}  {c:<at$}  {d:<header$}  {e}");
        output.text(format_args!("{}\n", text.trim_end()))?;
    }
    Ok(())
}

fn to_json(device: &str, signature: &Signature) -> Value {
    json!({
        "device": device,
        "name": signature.name,
        "offset": signature.offset,
        "at": end_of(signature),
        "good": signature.is_good,
        "use": match signature.usage {
            SignatureUse::Btrfs => "btrfs",
            SignatureUse::FileSystem => "file system",
            SignatureUse::Member => "member",
            SignatureUse::Partitions => "partitions",
        },
        "advice": signature.advice,
    })
}
