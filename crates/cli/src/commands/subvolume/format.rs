//! The output of subvolumes: UUIDs in text, and JSON objects.

use crate::output::json_bytes;
use crate::time;
use papilio::Subvolume;
use papilio::format::{TreeId, Uuid};
use serde_json::{Map, Value, json};

/// Returns a UUID as text, or `-` for none.
pub fn uuid_text(uuid: Uuid) -> String {
    if uuid.is_nil() { "-".to_owned() } else { uuid.to_string() }
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
