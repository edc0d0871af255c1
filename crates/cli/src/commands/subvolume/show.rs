//! `papilio subvolume show`, in the format of `btrfs subvolume show`.

use super::format::{to_json, uuid_text};
use crate::context::Context;
use crate::mounted::Target;
use crate::output::{Output, json_bytes};
use crate::time;
use crate::usage_error::UsageError;
use papilio::Subvolume;
use papilio::format::{TreeId, Uuid, objectid};
use serde_json::{Map, Value};
use std::ffi::OsString;

/// Show the properties of a subvolume
///
/// The path names the subvolume, or only its file system if an id or a UUID is given. Times are
/// local.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume; IMAGE alone means its top level
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::FilePath)]
    path: OsString,
    /// Show the subvolume with this id
    #[arg(short = 'r', long = "rootid", value_name = "ID", conflicts_with = "uuid")]
    id: Option<u64>,
    /// Show the subvolume with this UUID
    #[arg(short = 'u', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows the subvolume.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (all, own) = self.subvolumes(context)?;
        let subvolume = self.find(&all, own)?;
        let snapshots: Vec<&Subvolume> = all
            .iter()
            .filter(|other| !subvolume.uuid.is_nil() && other.parent_uuid == subvolume.uuid)
            .collect();
        let mut output = Output::new()?;
        if self.json {
            print_json(&mut output, subvolume, &snapshots)?;
        } else {
            print(&mut output, subvolume, &snapshots)?;
        }
        Ok(output.finish()?)
    }

    /// Returns all subvolumes, and the id of the one that the path names, unless an option names
    /// one.
    fn subvolumes(&self, context: &Context) -> anyhow::Result<(Vec<Subvolume>, Option<TreeId>)> {
        let by_path = self.id.is_none() && self.uuid.is_none();
        let none = || UsageError::new(format_args!("{}: not a subvolume", self.path.display()));
        match Target::parse(&self.path)? {
            Target::Image(path) => {
                let all = context.open(&path.image)?.subvolumes()?;
                if !by_path {
                    return Ok((all, None));
                }
                let inode = context.inode(&path, true)?;
                if inode.number() != objectid::FIRST_INODE || inode.is_subvolume_stub() {
                    return Err(none().into());
                }
                Ok((all, Some(inode.tree())))
            }
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                let with_path = |error: std::io::Error| mounted.at(&error);
                if by_path && !mount.is_subvolume_root().map_err(with_path)? {
                    return Err(none().into());
                }
                let own = by_path.then(|| mount.subvolume_id()).transpose().map_err(with_path)?;
                Ok((mount.subvolumes().map_err(with_path)?, own))
            }
        }
    }

    fn find<'a>(&self, all: &'a [Subvolume], own: Option<TreeId>) -> anyhow::Result<&'a Subvolume> {
        let path = self.path.display();
        if let Some(uuid) = self.uuid {
            let found = all.iter().find(|subvolume| subvolume.uuid == uuid);
            return found.ok_or_else(|| anyhow::anyhow!("{path}: no subvolume with UUID {uuid}"));
        }
        let id = own.unwrap_or(TreeId(self.id.unwrap_or_default()));
        let found = all.iter().find(|subvolume| subvolume.id == id);
        found.ok_or_else(|| anyhow::anyhow!("{path}: no subvolume with id {id}"))
    }
}

fn print_json(output: &mut Output, subvolume: &Subvolume, snapshots: &[&Subvolume]) -> anyhow::Result<()> {
    let mut value = to_json(subvolume);
    let snapshots = snapshots.iter().map(|snapshot| {
        let mut object = Map::new();
        object.insert("id".into(), snapshot.id.0.into());
        json_bytes(&mut object, "path", snapshot.path.as_deref().unwrap_or_default());
        Value::Object(object)
    });
    value["snapshots"] = snapshots.collect();
    Ok(output.text(format_args!("{value:#}\n"))?)
}

fn print(output: &mut Output, subvolume: &Subvolume, snapshots: &[&Subvolume]) -> anyhow::Result<()> {
    let top_level = subvolume.id == objectid::FS_TREE;
    match &subvolume.path {
        _ if top_level => output.bytes(b"/")?,
        Some(path) => output.name(path)?,
        None => output.bytes(b"DELETED")?,
    }
    output.bytes(b"\n\tName: \t\t\t")?;
    output.name(if top_level { b"<FS_TREE>" } else { &subvolume.name })?;
    let moment = |moment: papilio::Timespec| match moment.seconds {
        0 => "-".to_owned(),
        _ => time::to_second_with_zone(moment),
    };
    let parent = subvolume.parent.map_or(0, |parent| parent.0);
    let flags = if subvolume.is_read_only() { "readonly" } else { "-" };
    output.text(format_args!(
        "\n\tUUID: \t\t\t{}\n\tParent UUID: \t\t{}\n\tReceived UUID: \t\t{}\n\tCreation time: \t\t{}\n",
        uuid_text(subvolume.uuid),
        uuid_text(subvolume.parent_uuid),
        uuid_text(subvolume.received_uuid),
        moment(subvolume.creation_time),
    ))?;
    output.text(format_args!(
        "\tSubvolume ID: \t\t{}\n\tGeneration: \t\t{}\n\tGen at creation: \t{}\n",
        subvolume.id, subvolume.generation, subvolume.created,
    ))?;
    output.text(format_args!(
        "\tParent ID: \t\t{parent}\n\tTop level ID: \t\t{parent}\n\tFlags: \t\t\t{flags}\n"
    ))?;
    output.text(format_args!(
        "\tSend transid: \t\t{}\n\tSend time: \t\t{}\n\tReceive transid: \t{}\n\tReceive time: \t\t{}\n",
        subvolume.sent,
        moment(subvolume.send_time),
        subvolume.received,
        moment(subvolume.receive_time),
    ))?;
    output.bytes(b"\tSnapshot(s):\n")?;
    for snapshot in snapshots {
        output.bytes(b"\t\t\t\t")?;
        output.name(snapshot.path.as_deref().unwrap_or(b"DELETED"))?;
        output.bytes(b"\n")?;
    }
    Ok(())
}
