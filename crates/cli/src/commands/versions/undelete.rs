//! `papilio versions --undelete` of a directory: the files that only snapshots still have.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::{JsonArray, Output, json_bytes, kind_words};
use crate::sought::{LeftOut, read_past, shown_gap};
use crate::time;
use crate::units::Units;
use papilio::{HistoryGap, SnapshotOnly, only_in_snapshots_leaving_out};
use serde_json::{Map, Value};

/// Lists the paths below a directory that only snapshots have.
pub fn list(context: &Context, target: &Target, json: bool, units: Units) -> anyhow::Result<()> {
    let mut left_out = LeftOut::default();
    let found = read_past(context, target, false, |place| {
        left_out = LeftOut::default();
        let mut failed = |gap: HistoryGap<'_>| {
            let what = shown_gap(&gap);
            left_out.add(place, &what, gap.error)
        };
        let (system, path) = (&place.system, &place.path);
        only_in_snapshots_leaving_out(system, place.subvolume, path, &mut failed)
    });
    left_out.tell(context);
    let (_, found) = found?;
    let mut output = Output::new()?;
    if json {
        let mut array = JsonArray::begin(&mut output)?;
        for one in &found {
            array.push(&mut output, &to_json(one))?;
        }
        array.end(&mut output)?;
        return Ok(output.finish()?);
    }
    output.text(format_args!(
        "{:<19} {:>12}  Path, and the newest snapshot that has it\n",
        "Modified", "Size"
    ))?;
    for one in &found {
        let (modified, size) = (time::to_second(one.metadata.mtime()), units.text(one.metadata.size()));
        output.text(format_args!("{modified:<19} {size:>12}  "))?;
        let slash: &[u8] = if one.metadata.is_dir() { b"/" } else { b"" };
        output.name(&[b"/", &one.path[..], slash].concat())?;
        output.text(format_args!(" in "))?;
        output.name(&holder(one))?;
        output.bytes(b"\n")?;
    }
    Ok(output.finish()?)
}

/// Returns the path of the snapshot.
fn holder(one: &SnapshotOnly) -> Vec<u8> {
    match &one.subvolume_path {
        Some(path) => [b"/", &path[..]].concat(),
        None => format!("<subvolume {}>", one.subvolume).into_bytes(),
    }
}

fn to_json(one: &SnapshotOnly) -> Value {
    let mut object = Map::new();
    json_bytes(&mut object, "path", &[b"/", &one.path[..]].concat());
    object.insert("kind".into(), kind_words(one.metadata.file_type()).into());
    object.insert("size".into(), one.metadata.size().into());
    object.insert("modified".into(), time::rfc3339(one.metadata.mtime()).into());
    object.insert("subvolume".into(), one.subvolume.0.into());
    json_bytes(&mut object, "snapshot", &holder(one));
    object.into()
}
