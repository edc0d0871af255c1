//! `papilio subvolume`: subvolumes and snapshots. Owns the list of its commands.

mod create;
mod delete;
mod list;
mod set_default;
mod show;
mod snapshot;
mod sync;

use crate::context::Context;
use crate::output::json_bytes;
use crate::time;
use papilio::Subvolume;
use papilio::format::{TreeId, Uuid};
use serde_json::{Map, Value, json};

/// List, show, make and delete subvolumes and snapshots
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// List subvolumes and snapshots
    List(list::Args),
    /// Show what is known of a subvolume
    Show(show::Args),
    /// Make empty subvolumes
    Create(create::Args),
    /// Make a snapshot of a subvolume
    Snapshot(snapshot::Args),
    /// Delete subvolumes and snapshots
    Delete(delete::Args),
    /// Choose the subvolume that a mount without options shows
    SetDefault(set_default::Args),
    /// Wait until deleted subvolumes are cleaned up
    Sync(sync::Args),
}

impl Args {
    /// Does it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::List(command) => command.run(context),
            Subcommand::Show(command) => command.run(context),
            Subcommand::Create(command) => command.run(context),
            Subcommand::Snapshot(command) => command.run(context),
            Subcommand::Delete(command) => command.run(context),
            Subcommand::SetDefault(command) => command.run(context),
            Subcommand::Sync(command) => command.run(context),
        }
    }
}

/// A UUID, or `-` for none.
fn uuid_text(uuid: Uuid) -> String {
    if uuid.is_nil() { "-".to_owned() } else { uuid.to_string() }
}

/// What JSON output says of a subvolume.
fn to_json(subvolume: &Subvolume) -> Value {
    let mut object = Map::new();
    object.insert("id".into(), subvolume.id.0.into());
    match &subvolume.path {
        Some(path) => json_bytes(&mut object, "path", path),
        None => drop(object.insert("path".into(), Value::Null)),
    }
    json_bytes(&mut object, "name", &subvolume.name);
    let uuid = |uuid: Uuid| (!uuid.is_nil()).then(|| uuid.to_string());
    let moment = |moment: papilio::Timespec| (moment.seconds != 0).then(|| time::rfc3339(moment));
    let facts = json!({
        "parent_id": subvolume.parent.map(TreeId::get),
        "directory_inode": subvolume.directory.map(|inode| inode.0),
        "uuid": uuid(subvolume.uuid),
        "parent_uuid": uuid(subvolume.parent_uuid),
        "received_uuid": uuid(subvolume.received_uuid),
        "generation": subvolume.generation.0,
        "creation_generation": subvolume.created.0,
        "change_generation": subvolume.changed.0,
        "send_transid": subvolume.sent.0,
        "receive_transid": subvolume.received.0,
        "creation_time": moment(subvolume.creation_time),
        "change_time": moment(subvolume.change_time),
        "send_time": moment(subvolume.send_time),
        "receive_time": moment(subvolume.receive_time),
        "read_only": subvolume.is_read_only(),
        "snapshot": subvolume.is_snapshot(),
        "being_deleted": subvolume.is_being_deleted(),
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    object.into()
}
