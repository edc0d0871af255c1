//! The output of subvolumes: UUIDs in text, and JSON objects.

use crate::output::{escaped, json_bytes};
use crate::time;
use papilio::Subvolume;
use papilio::format::{TreeId, Uuid, objectid};
use serde_json::{Map, Value, json};

/// Returns a UUID as text, or `-` for none.
pub fn uuid_text(uuid: Uuid) -> String {
    if uuid.is_nil() { "-".to_owned() } else { uuid.to_string() }
}

/// The keys of a short description in the JSON of btrfs-progs.
pub const SHORT: &[&str] = &["id", "generation", "top_level", "path"];

/// Returns the facts of a subvolume by the keys of btrfs-progs' JSON.
pub fn btrfs_facts<'a>(
    subvolume: &'a Subvolume,
    keys: &'a [&'a str],
) -> impl Iterator<Item = (String, Value)> + 'a {
    keys.iter().map(|key| ((*key).to_owned(), btrfs_fact(subvolume, key)))
}

fn btrfs_fact(subvolume: &Subvolume, key: &str) -> Value {
    let uuid = |uuid: Uuid| if uuid.is_nil() { Value::Null } else { uuid.to_string().into() };
    let moment = |moment: papilio::Timespec| match moment.seconds {
        0 => "-".to_owned(),
        _ => time::to_second_with_zone(moment),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(&escaped(bytes)).into_owned();
    match key {
        "id" => subvolume.id.0.into(),
        "name" if subvolume.id == objectid::FS_TREE => "<FS_TREE>".into(),
        "name" => text(&subvolume.name).into(),
        "generation" => subvolume.generation.0.into(),
        "cgeneration" => subvolume.created.0.into(),
        "parent" | "top_level" => subvolume.parent.map_or(0, |parent| parent.0).into(),
        "otime" => moment(subvolume.creation_time).into(),
        "uuid" => uuid(subvolume.uuid),
        "parent_uuid" => uuid(subvolume.parent_uuid),
        "received_uuid" => uuid(subvolume.received_uuid),
        "path" => text(subvolume.path.as_deref().unwrap_or(b"DELETED")).into(),
        "flags" if subvolume.is_read_only() => json!(["readonly"]),
        "flags" => json!([]),
        "stransid" => subvolume.sent.0.into(),
        "stime" => moment(subvolume.send_time).into(),
        "rtransid" => subvolume.received.0.into(),
        "rtime" => moment(subvolume.receive_time).into(),
        _ => Value::Null,
    }
}

/// Returns the JSON object of a subvolume.
pub fn to_json(subvolume: &Subvolume) -> Value {
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
