//! The whole table of docs/planted-faults.md: each planted fault, the findings of the check,
//! whether `papilio check --repair` mends it, and whether `btrfs check --repair` does, on the same
//! image.
//!
//! Takes minutes, so it runs on request: `make planted`. Rows go to a file, and a run that was
//! stopped goes on behind the last one. Nothing depends on time: a pause changes no row.

use super::beside_stock::{by_stock, short};
use super::planted::{Images, all_faults};
use super::repaired;
use crate::in_memory::{check, crashed};
use papilio_oracle::{Need, require};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Reads the rows of earlier runs, by the name of the fault. A line that was cut short is left out.
fn rows(path: &PathBuf) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = |line: &&str| line.starts_with("| ") && line.ends_with(" |") && line.split('|').count() == 7;
    let name = |line: &str| line.split('|').nth(1).map(|name| name.trim().to_owned());
    text.lines().filter(whole).filter_map(|line| Some((name(line)?, line.to_owned()))).collect()
}

#[test]
#[ignore = "takes minutes"]
fn the_whole_table() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let folder = std::env::var_os("PAPILIO_PLANTED_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("planted.md");
    let mut done = rows(&path);
    let mut images = Images::default();
    let faults = all_faults();
    for fault in faults.iter().filter(|fault| !rows(&path).contains_key(&fault.name)) {
        let device = images.plant(fault);
        let report = check(&device);
        let stock = by_stock(&crashed(&device), images.get(images.last));
        let ours = repaired::judge(&device, images.get(images.last));
        let kinds: Vec<String> =
            report.counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let (name, expected) = (&fault.name, fault.expected);
        assert!(report.counts.contains_key(&expected), "{name}: {kinds:?}");
        let row =
            format!("| {name} | {expected} | {} | {} | {} |", kinds.join(", "), short(&ours), short(&stock));
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        file.write_all(format!("{row}\n").as_bytes()).unwrap();
        done.insert(name.clone(), row);
    }
    println!(
        "| planted fault | expected | found | repaired | `btrfs check --repair` |\n|---|---|---|---|---|"
    );
    let (mut ours, mut stock) = (0, 0);
    for fault in &faults {
        let row = &done[&fault.name];
        let is_yes = |column| row.split('|').nth(column).is_some_and(|text| text.trim() == "yes");
        ours += usize::from(is_yes(4));
        stock += usize::from(is_yes(5));
        println!("{row}");
    }
    println!("of {} faults {ours} are repaired here, {stock} by btrfs check", faults.len());
    assert!(ours >= stock);
}
