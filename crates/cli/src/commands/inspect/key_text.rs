//! Keys in the format of `btrfs inspect-internal dump-tree`, such as `(256 INODE_ITEM 0)`. Some
//! numbers have names, and the item type determines the form of the others.

use papilio::format::items::qgroup::QgroupId;
use papilio::format::objectid::{self, Objectid};
use papilio::format::{ItemType, Key, TreeId};
use serde_json::{Value, json};

/// Returns a key as text, after the word `key` and in parentheses.
pub fn key_text(key: &Key) -> String {
    format!("key ({} {} {})", objectid_text(key), type_name(key), offset_text(key))
}

/// Returns the JSON object of a key: its numbers, and the name of its type.
pub fn key_json(key: &Key) -> Value {
    json!({
        "objectid": key.objectid,
        "type": key.item_type.0,
        "type_name": type_name(key),
        "offset": key.offset,
    })
}

/// Returns the name of a key's item type.
pub fn type_name(key: &Key) -> String {
    match key.item_type {
        ItemType(0) if key.objectid == objectid::FREE_SPACE => "UNTYPED".to_owned(),
        ItemType::UUID_SUBVOL => "UUID_KEY_SUBVOL".to_owned(),
        ItemType::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the name of a tree or other object, or its number.
pub fn object_name(number: u64) -> String {
    match number {
        u64::MAX => "-1".to_owned(),
        number if TreeId(number) == objectid::TREE_LOG_FIXUP => "LOG_FIXUP".to_owned(),
        number => Objectid(number).to_string(),
    }
}

fn objectid_text(key: &Key) -> String {
    let number = key.objectid;
    match key.item_type {
        ItemType::PERSISTENT_ITEM if number == objectid::DEV_STATS => "DEV_STATS".to_owned(),
        ItemType::PERSISTENT_ITEM | ItemType::DEV_EXTENT => number.to_string(),
        ItemType::QGROUP_RELATION => QgroupId(number).to_string(),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => format!("{number:#018x}"),
        ItemType::DEV_ITEM if number == objectid::DEV_ITEMS => "DEV_ITEMS".to_owned(),
        ItemType::CHUNK_ITEM if number == objectid::FIRST_CHUNK_TREE => "FIRST_CHUNK_TREE".to_owned(),
        _ => object_name(number),
    }
}

fn offset_text(key: &Key) -> String {
    let number = key.offset;
    match key.item_type {
        ItemType::QGROUP_RELATION | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => {
            QgroupId(number).to_string()
        }
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => format!("{number:#018x}"),
        ItemType::ROOT_ITEM if TreeId(key.objectid) == objectid::TREE_RELOC => object_name(number),
        ItemType::ROOT_ITEM => number.to_string(),
        _ if number == u64::MAX => "-1".to_owned(),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_btrfs_progs() {
        let cases = [
            (Key::new(5, ItemType::ROOT_ITEM, 0), "key (FS_TREE ROOT_ITEM 0)"),
            (Key::new(1, ItemType::DEV_ITEM, 1), "key (DEV_ITEMS DEV_ITEM 1)"),
            (Key::new(256, ItemType::CHUNK_ITEM, 9), "key (FIRST_CHUNK_TREE CHUNK_ITEM 9)"),
            (Key::new(256, ItemType::INODE_ITEM, 0), "key (256 INODE_ITEM 0)"),
            (Key::new(0, ItemType::QGROUP_INFO, 1 << 48 | 7), "key (0 QGROUP_INFO 1/7)"),
            (Key::new(0, ItemType::PERSISTENT_ITEM, 1), "key (DEV_STATS PERSISTENT_ITEM 1)"),
            (Key::new(objectid::FREE_SPACE, ItemType(0), 8), "key (FREE_SPACE UNTYPED 8)"),
            (
                Key::new(0x12, ItemType::UUID_SUBVOL, 0xff),
                "key (0x0000000000000012 UUID_KEY_SUBVOL 0x00000000000000ff)",
            ),
            (Key::new(7, ItemType(3), u64::MAX), "key (CSUM_TREE UNKNOWN.3 -1)"),
        ];
        for (key, text) in cases {
            assert_eq!(key_text(&key), text);
        }
    }
}
