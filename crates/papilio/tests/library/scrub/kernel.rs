//! The kernel's scrub, and its counters.

use papilio::ScrubCounts;
use papilio_oracle::Mounted;
use papilio_oracle::requirement::find_command;
use std::collections::BTreeMap;
use std::process::Command;

/// Runs the kernel's scrub on a mount, and returns the counters of each devid.
pub fn scrub(mounted: &Mounted, read_only: bool) -> BTreeMap<u64, ScrubCounts> {
    let mut command = Command::new(find_command("btrfs").expect("a requirement of the test"));
    command.args(["scrub", "start", "-B", "-d", "-R", "-f"]);
    if read_only {
        command.arg("-r");
    }
    // The exit status is 3 where errors are left.
    let output = command.arg(mounted.path()).output().expect("btrfs runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let devices = parse(&text);
    assert!(!devices.is_empty(), "{command:?}: {text}{errors}");
    devices
}

fn parse(text: &str) -> BTreeMap<u64, ScrubCounts> {
    let mut devices: BTreeMap<u64, ScrubCounts> = BTreeMap::new();
    let mut devid = 0;
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("(id ") {
            devid = rest.split(')').next().and_then(|id| id.parse().ok()).expect("a devid");
            devices.entry(devid).or_default();
        }
        let Some((name, value)) = line.trim().split_once(": ") else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        let counts = devices.entry(devid).or_default();
        match name {
            "data_extents_scrubbed" => counts.data_extents_scrubbed = value,
            "tree_extents_scrubbed" => counts.tree_extents_scrubbed = value,
            "data_bytes_scrubbed" => counts.data_bytes_scrubbed = value,
            "tree_bytes_scrubbed" => counts.tree_bytes_scrubbed = value,
            "read_errors" => counts.read_errors = value,
            "csum_errors" => counts.csum_errors = value,
            "verify_errors" => counts.verify_errors = value,
            "no_csum" => counts.no_csum = value,
            "super_errors" => counts.super_errors = value,
            "uncorrectable_errors" => counts.uncorrectable_errors = value,
            "corrected_errors" => counts.corrected_errors = value,
            _ => {}
        }
    }
    devices
}
