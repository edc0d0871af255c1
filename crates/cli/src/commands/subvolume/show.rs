//! `papilio subvolume show`, in the format of `btrfs subvolume show`.

use super::format::{btrfs_facts, to_json, uuid_text};
use crate::btrfs_json::of_btrfs;
use crate::commands::quota::Quotas;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::{Output, escaped, json_bytes};
use crate::time;
use crate::units::{UnitArgs, Units};
use crate::usage_error::UsageError;
use papilio::format::{TreeId, Uuid, objectid};
use papilio::{QgroupUsage, Subvolume};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::Path;

/// Show the properties of a subvolume
///
/// The path names the subvolume, or only its file system if an id or a UUID is given. Times are
/// local.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
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
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
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
        if context.arguments().drop_in && !subvolume.received_uuid.is_nil() && !subvolume.is_read_only() {
            context.warning(
                "the subvolume can be written and has a received_uuid: an incremental stream that is \
                 applied to it may not fit",
            );
        }
        let mut output = Output::new()?;
        let quota = self.quota(context, subvolume.id)?;
        if self.json && context.arguments().drop_in {
            let value = json_of_btrfs(subvolume, &snapshots, quota.as_ref());
            output.text(format_args!("{value:#}\n"))?;
        } else if self.json {
            print_json(&mut output, subvolume, &snapshots, quota.as_ref())?;
        } else {
            print(&mut output, subvolume, &snapshots)?;
            print_quota(&mut output, quota.as_ref(), self.units.resolve())?;
        }
        Ok(output.finish()?)
    }

    /// Returns all subvolumes, and the id of the one that the path names, unless an option names
    /// one.
    fn subvolumes(&self, context: &Context) -> anyhow::Result<(Vec<Subvolume>, Option<TreeId>)> {
        let by_path = self.id.is_none() && self.uuid.is_none();
        let none = || UsageError::new(format_args!("{}: not a subvolume", self.path.display()));
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        match target {
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

    /// Returns the qgroup of a subvolume, if quotas are enabled and can be read.
    fn quota(&self, context: &Context, id: TreeId) -> anyhow::Result<Option<QgroupUsage>> {
        // Quotas may be off.
        let Ok((_, groups)) = Quotas::open(context, Path::new(&self.path), false)?.read() else {
            return Ok(None);
        };
        Ok(groups.into_iter().find(|group| group.id.0 == id.0))
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

/// The keys of `btrfs subvolume show`.
const KEYS: &[&str] = &[
    "name",
    "uuid",
    "parent_uuid",
    "received_uuid",
    "otime",
    "id",
    "generation",
    "cgeneration",
    "parent",
    "top_level",
    "flags",
    "stransid",
    "stime",
    "rtransid",
    "rtime",
];

/// One object, under the path of the subvolume.
fn json_of_btrfs(subvolume: &Subvolume, snapshots: &[&Subvolume], quota: Option<&QgroupUsage>) -> Value {
    let text = |path: Option<&[u8]>| String::from_utf8_lossy(&escaped(path.unwrap_or_default())).into_owned();
    let mut facts: Map<String, Value> = btrfs_facts(subvolume, KEYS).collect();
    let paths = snapshots.iter().map(|snapshot| Value::from(text(snapshot.path.as_deref())));
    facts.insert("snapshots".to_owned(), paths.collect());
    if let Some(group) = quota {
        let of_group = json!({
            "qgroupid": group.id.to_string(),
            "limit": {
                "referenced": group.max_referenced.unwrap_or(0),
                "exclusive": group.max_exclusive.unwrap_or(0),
            },
            "usage": { "referenced": group.referenced, "exclusive": group.exclusive },
        });
        facts.insert("qgroup".to_owned(), of_group);
    }
    let path = match subvolume.id {
        objectid::FS_TREE => "/".to_owned(),
        _ => text(subvolume.path.as_deref()),
    };
    of_btrfs([(path, Value::Object(facts))])
}

fn print_json(
    output: &mut Output,
    subvolume: &Subvolume,
    snapshots: &[&Subvolume],
    quota: Option<&QgroupUsage>,
) -> anyhow::Result<()> {
    let mut value = to_json(subvolume);
    let snapshots = snapshots.iter().map(|snapshot| {
        let mut object = Map::new();
        object.insert("id".into(), snapshot.id.0.into());
        json_bytes(&mut object, "path", snapshot.path.as_deref().unwrap_or_default());
        Value::Object(object)
    });
    value["snapshots"] = snapshots.collect();
    value["quota_group"] = quota.map_or(Value::Null, |group| {
        json!({
            "qgroupid": group.id.to_string(),
            "referenced": group.referenced,
            "exclusive": group.exclusive,
            "max_referenced": group.max_referenced,
            "max_exclusive": group.max_exclusive,
        })
    });
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

fn print_quota(output: &mut Output, quota: Option<&QgroupUsage>, units: Units) -> anyhow::Result<()> {
    let Some(group) = quota else {
        return Ok(output.text(format_args!("\tQuota group:\t\tn/a\n"))?);
    };
    let limit = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |bytes| units.text(bytes));
    Ok(output.text(format_args!(
        "\tQuota group:\t\t{}\n\t  Limit referenced:\t{}\n\t  Limit exclusive:\t{}\n\
         \t  Usage referenced:\t{}\n\t  Usage exclusive:\t{}\n",
        group.id,
        limit(group.max_referenced),
        limit(group.max_exclusive),
        units.text(group.referenced),
        units.text(group.exclusive),
    ))?)
}
