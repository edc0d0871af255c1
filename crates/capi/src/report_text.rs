//! The report of a check as JSON.
//!
//! Owns [`json`]. Its fields are those of `papilio check --json`, and a test compares the two.

use papilio::{CheckReport, Finding};
use serde_json::{Map, Value, json};

/// Returns a report as JSON.
pub(crate) fn json(report: &CheckReport) -> Value {
    let counts: Map<String, Value> =
        report.counts.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    let note = |note: &papilio::CheckNote| json!({ "code": note.code, "message": note.message });
    let seen = &report.statistics;
    json!({
        "verdict": report.verdict().map_or("clean".to_owned(), |worst| worst.to_string()),
        "errors": report.errors(),
        "warnings": report.warnings(),
        "counts": counts,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_not_kept": report.dropped(),
        "notes": report.notes.iter().map(note).collect::<Vec<_>>(),
        "statistics": {
            "trees": seen.trees,
            "blocks": seen.blocks,
            "metadata_bytes": seen.metadata_bytes,
            "data_extents": seen.data_extents,
            "data_bytes": seen.data_bytes,
            "subvolumes": seen.subvolumes,
            "inodes": seen.inodes,
            "files": seen.files,
            "csum_bytes": seen.csum_bytes,
            "data_bytes_read": seen.data_bytes_read,
        },
    })
}

/// Returns a finding without the fields that do not apply.
fn finding(finding: &Finding) -> Value {
    let place = &finding.place;
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            fields.insert(name.to_owned(), value);
        }
    };
    set("kind", json!(finding.kind.name()));
    set("severity", json!(finding.severity.to_string()));
    set("message", json!(finding.message));
    set("tree", json!(place.tree.map(|tree| tree.0)));
    set("logical", json!(place.address.map(|address| address.0)));
    set("inode", json!(place.inode.map(|inode| inode.0)));
    set("device", json!(place.device));
    set("physical", json!(place.offset.map(|offset| offset.0)));
    if let Some(key) = place.key {
        let key =
            json!({ "objectid": key.objectid, "type": key.item_type.to_string(), "offset": key.offset });
        set("key", key);
    }
    Value::Object(fields)
}
