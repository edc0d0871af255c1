//! `papilio inspect layers`: the devices over devices in images.

use crate::context::Context;
use crate::output::{JsonArray, Output, escaped};
use papilio_layers::{KeySource, LayerOptions, Stack, StackEntry};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Draw the layers over images or devices: partitions, md arrays, LUKS and LVM2
///
/// Members of an array or group are looked for beside an image, or among the block devices.
/// Encrypted volumes stay locked unless --key-file or --key-fd gives a key. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The images or devices
    #[arg(required = true, value_name = "DEVICE", value_hint = clap::ValueHint::FilePath)]
    devices: Vec<PathBuf>,
    /// Print one JSON array, with an object for each device of a stack
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Draws the layers over each device. A layer that cannot be opened is a failure of its own.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let given = context.arguments().layer_options();
        let is_locked = given.key == KeySource::Terminal;
        let options =
            LayerOptions { key: if is_locked { KeySource::Nowhere } else { given.key.clone() }, ..given };
        let image = context.arguments().image_options();
        context.confine_to_images(self.devices.clone());
        let mut output = Output::new()?;
        let mut array = if self.json { Some(JsonArray::begin(&mut output)?) } else { None };
        for device in &self.devices {
            let stack = match Stack::read(device, &options, &image) {
                Ok(stack) => stack,
                Err(error) => {
                    context.error(error);
                    continue;
                }
            };
            match &mut array {
                Some(array) => {
                    for (at, entry) in stack.entries.iter().enumerate() {
                        array.push(&mut output, &to_json(&device.display().to_string(), at, entry))?;
                    }
                }
                None => {
                    for line in stack.draw() {
                        let line = escaped(line.as_bytes());
                        output.text(format_args!("{}\n", String::from_utf8_lossy(&line)))?;
                    }
                }
            }
            for fault in &stack.faults {
                // A locked volume is drawn as one.
                if !(is_locked && matches!(fault, papilio_layers::LayerError::NoKey(_))) {
                    context.error(fault);
                }
            }
        }
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

fn to_json(image: &str, at: usize, entry: &StackEntry) -> Value {
    json!({
        "image": image,
        "number": at,
        "name": entry.name,
        "layer": entry.made_by,
        "content": entry.content,
        "bytes": entry.size,
        "below": entry.below,
        "read_only": entry.read_only,
        "btrfs": entry.is_btrfs,
    })
}
