//! `papilio stream info`: the subvolumes of streams, and the size of their parts.

use super::operands::scan_or_load;
use crate::context::Context;
use crate::output::{JsonArray, Output, json_bytes};
use crate::units::Units;
use papilio::stream::{LoadOptions, SentPart};
use papilio::{SendCommandKind, SentSubvolume};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

/// Show the subvolumes of streams: names, UUIDs, parents, commands, sizes
///
/// Every checksum is verified. The parents need not be among the streams.
#[derive(Debug, clap::Args)]
pub struct Info {
    /// The streams; - means standard input
    #[arg(value_name = "STREAM", required = true, value_hint = clap::ValueHint::FilePath)]
    streams: Vec<OsString>,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Info {
    /// Prints the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = LoadOptions::new().trees(false);
        let chain = scan_or_load(context, &self.streams, options)??;
        let stream = |part: &SentPart| match chain.inputs().get(part.stream) {
            Some(input) => input.name().to_owned(),
            None => "standard input".to_owned(),
        };
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for part in chain.parts() {
                array.push(&mut output, &to_json(&stream(part), part))?;
            }
            array.end(&mut output)?;
        } else {
            for (number, part) in chain.parts().iter().enumerate() {
                if number > 0 {
                    output.bytes(b"\n")?;
                }
                self.print(&mut output, &stream(part), part)?;
            }
        }
        Ok(output.finish()?)
    }

    fn print(&self, output: &mut Output, stream: &str, part: &SentPart) -> anyhow::Result<()> {
        let units = if self.bytes { Units::BYTES } else { Units::HUMAN };
        output.bytes(b"Subvolume:   ")?;
        output.name(&part.name)?;
        output.text(format_args!("\nStream:      {stream}, byte {} to {}\n", part.start, part.end))?;
        output.text(format_args!("Protocol:    {}\n", part.protocol as u32))?;
        let SentSubvolume { uuid, ctransid } = part.identity;
        output.text(format_args!("UUID:        {uuid}, transaction {}\n", ctransid.0))?;
        match part.parent {
            Some(SentSubvolume { uuid, ctransid }) => {
                output.text(format_args!("Parent:      {uuid}, transaction {}\n", ctransid.0))?;
            }
            None => output.text(format_args!("Parent:      none, a full stream\n"))?,
        }
        output.text(format_args!(
            "Data:        {} written, {} compressed to {}, {} cloned\n",
            units.text(part.written),
            units.text(part.decoded),
            units.text(part.encoded),
            units.text(part.cloned),
        ))?;
        let end = if part.complete { "" } else { ", no end" };
        output.text(format_args!("Commands:    {}{end}\n", part.command_count()))?;
        for (kind, count) in counts(part) {
            output.text(format_args!("  {:<15} {count:>10}\n", kind.name()))?;
        }
        Ok(())
    }
}

/// Returns the commands that appear, with their numbers.
fn counts(part: &SentPart) -> impl Iterator<Item = (SendCommandKind, u64)> + '_ {
    let counts = SendCommandKind::ALL.iter().map(|kind| (*kind, part.count_of(*kind)));
    counts.filter(|(_, count)| *count > 0)
}

fn to_json(stream: &str, part: &SentPart) -> Value {
    let mut object = Map::new();
    json_bytes(&mut object, "name", &part.name);
    let identity = |sent: SentSubvolume| json!({"uuid": sent.uuid.to_string(), "ctransid": sent.ctransid.0});
    let commands: Map<String, Value> =
        counts(part).map(|(kind, count)| (kind.name().to_owned(), count.into())).collect();
    object.insert("stream".into(), stream.into());
    object.insert("start".into(), part.start.into());
    object.insert("end".into(), part.end.into());
    object.insert("protocol".into(), (part.protocol as u32).into());
    object.insert("identity".into(), identity(part.identity));
    object.insert("parent".into(), part.parent.map_or(Value::Null, identity));
    object.insert("complete".into(), part.complete.into());
    object.insert("commands".into(), Value::Object(commands));
    object.insert("written_bytes".into(), part.written.into());
    object.insert("encoded_bytes".into(), part.encoded.into());
    object.insert("decoded_bytes".into(), part.decoded.into());
    object.insert("cloned_bytes".into(), part.cloned.into());
    object.into()
}
