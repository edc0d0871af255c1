//! JSON as btrfs-progs print it, for commands under their names.
//!
//! Owns [`of_btrfs`], the frame, and [`FORMATTED`], the commands that have it there. Each command
//! makes its own content. docs/commands.md lists the keys, and a test compares them.

use serde_json::{Map, Value, json};

/// The commands of `btrfs` that have `--format json`.
pub const FORMATTED: [(&str, &str); 6] = [
    ("device", "stats"),
    ("filesystem", "df"),
    ("qgroup", "show"),
    ("subvolume", "get-default"),
    ("subvolume", "list"),
    ("subvolume", "show"),
];

/// Puts the header before the content.
pub fn of_btrfs(content: impl IntoIterator<Item = (String, Value)>) -> Value {
    let mut object = Map::new();
    object.insert("__header".to_owned(), json!({ "version": "1" }));
    object.extend(content);
    Value::Object(object)
}

/// As [`of_btrfs`], for one list.
pub fn list_of_btrfs(name: &str, rows: impl IntoIterator<Item = Value>) -> Value {
    of_btrfs([(name.to_owned(), rows.into_iter().collect())])
}
