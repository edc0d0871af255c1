//! Trees that a repair writes anew, and random damage.

use super::repaired::same;
use crate::in_memory::{check, crashed, formatted, open, open_read_only};
use papilio::{OpenOptions, RepairOptions};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use std::sync::Arc;

/// A file system with files, snapshots and a clone, so that blocks and extents are shared.
fn sample() -> Arc<MemoryDevice> {
    let device = formatted(256 << 20);
    let fs = open(&device);
    for number in 0..300 {
        fs.write(format!("/file-{number}"), vec![number as u8; 300 * (number % 50) + 1]).unwrap();
    }
    fs.snapshot("/", "/before", false).unwrap();
    for number in 0..40 {
        fs.write(format!("/file-{number}"), vec![7; 9000]).unwrap();
    }
    fs.close().unwrap();
    device
}

fn contents(device: &Arc<MemoryDevice>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let fs = open_read_only(device);
    let mut all = Vec::new();
    for entry in fs.walk("/").unwrap().flatten() {
        let data = fs.read(std::ffi::OsStr::new(std::str::from_utf8(&entry.path).unwrap())).ok();
        all.push((entry.path, data));
    }
    all.sort();
    all
}

#[test]
fn trees_are_written_anew_on_demand() {
    let device = sample();
    let (sound, before) = (contents(&device), device.snapshot());
    let devices = vec![device.clone() as Arc<dyn Device>];
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("extents", RepairOptions::new().init_extent_tree(true)),
        ("checksums", RepairOptions::new().init_csum_tree(true)),
    ];
    for (name, options) in cases {
        let open = OpenOptions::new();
        let plan = papilio::plan_repair_with(&devices, &open, &options).unwrap();
        assert!(plan.better, "{name}: {:#?} {:#?}", plan.refused, plan.after.findings);
        assert!(plan.changes.iter().any(|change| change.contains("write it anew")), "{name}");
        let undo = folder.path().join(name);
        papilio::repair(&devices, &open, &plan, &undo).unwrap();
        assert!(check(&device).counts.is_empty(), "{name}: {:#?}", check(&device).findings);
        assert!(contents(&device) == sound, "{name}: other data");
        assert!(!same(&device, &before), "{name}: something was written");
        papilio::undo_repair(&devices, &undo).unwrap();
        assert!(same(&device, &before), "{name}: the undo file restores every byte");
        if name == "checksums" {
            assert!(!plan.losses.is_empty(), "the files that nothing verifies are listed");
        }
    }
}

#[test]
fn an_undo_file_is_refused_after_a_change() {
    let device = sample();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let open_options = OpenOptions::new();
    let options = RepairOptions::new().init_extent_tree(true);
    let plan = papilio::plan_repair_with(&devices, &open_options, &options).unwrap();
    papilio::repair(&devices, &open_options, &plan, &undo).unwrap();
    // A log of an fsync keeps the generation.
    let fs = open(&device);
    let file = fs.create_file("/new").unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    let changed = crashed(&device);
    let devices = vec![changed.clone() as Arc<dyn Device>];
    let left = changed.snapshot();
    let error = papilio::undo_repair(&devices, &undo).unwrap_err().to_string();
    assert!(error.contains("changed since"), "{error}");
    assert!(same(&changed, &left), "nothing was written");
}

/// Returns a number that looks random, and moves the state on.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Breaks bytes, sectors or blocks in metadata, in the first copy and mostly also in the second.
fn break_some(device: &MemoryDevice, seed: u64) {
    let report = check(&crashed(device));
    assert!(report.counts.is_empty());
    let mut state = seed;
    let chunks = papilio_places(device);
    for _ in 0..1 + next(&mut state) % 8 {
        let (size, fill) = match next(&mut state) % 3 {
            0 => (1, next(&mut state) as u8 | 1),
            1 => (4096, next(&mut state) as u8),
            _ => (16384, 0),
        };
        let copies = &chunks[next(&mut state) as usize % chunks.len()];
        let within = if size == 1 { next(&mut state) % 16384 } else { 0 };
        let both = !next(&mut state).is_multiple_of(4);
        for copy in copies.iter().take(if both { 2 } else { 1 }) {
            let mut bytes = vec![fill; size];
            if size == 1 {
                device.read_at(&mut bytes, PhysicalAddress(copy + within)).unwrap();
                bytes[0] ^= fill;
            }
            device.write_at(&bytes, PhysicalAddress(copy + within)).unwrap();
        }
    }
}

/// Returns the places of the copies of blocks that hold metadata.
fn papilio_places(device: &MemoryDevice) -> Vec<Vec<u64>> {
    let image = super::image::Image::new(device.snapshot());
    let trees = [1u64, 2, 3, 4, 5, 7, 9, 10, 256].map(papilio::format::TreeId);
    let blocks = trees.into_iter().filter(|tree| image.has(*tree)).flat_map(|tree| image.blocks(tree));
    blocks.map(|block| image.copies(block).into_iter().map(|place| place.0).collect()).collect()
}

/// Returns whether the losses name the file of the sample at `path`, by its inode number or in a
/// range of keys.
fn is_listed(losses: &[String], path: &str) -> bool {
    let (tree, name) = path.strip_prefix("before/").map_or(("FS_TREE", path), |name| ("256", name));
    let inode = 257 + name.strip_prefix("file-").unwrap().parse::<u64>().unwrap();
    let number = |text: &str| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    losses.iter().filter_map(|loss| loss.strip_prefix(&format!("tree {tree}"))).any(|loss| {
        if let Some(one) = loss.strip_prefix(", inode ") {
            return one.starts_with(&format!("{inode}:"));
        }
        if let Some(key) = loss.strip_prefix(": item (") {
            return number(key) == inode;
        }
        let range = loss.strip_prefix(": all items from (").or(loss.strip_prefix(": items from ("));
        let Some((from, to)) = range.and_then(|range| range.split_once(") to ")) else { return false };
        number(from) <= inode && to.strip_prefix('(').is_none_or(|to| inode <= number(to))
    })
}

/// `PAPILIO_DAMAGED` is the number of file systems (8), `PAPILIO_SEED` the first seed (1).
#[test]
fn random_damage_is_never_made_worse() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (count, first) = (number("PAPILIO_DAMAGED", 8u64), number("PAPILIO_SEED", 1u64));
    let sound = sample();
    let known: std::collections::BTreeMap<_, _> = contents(&sound).into_iter().collect();
    let (mut clean, mut better, mut refused, mut kept, mut total, mut wrong) = (0, 0, 0, 0, 0, 0);
    for seed in first..first + count {
        let device = Arc::new(sound.snapshot());
        break_some(&device, seed);
        let damaged = device.snapshot();
        let devices = vec![device.clone() as Arc<dyn Device>];
        let open = OpenOptions::new();
        let folder = tempfile::tempdir().unwrap();
        let undo = folder.path().join("undo");
        let Ok(plan) = papilio::plan_repair(&devices, &open) else {
            refused += 1;
            continue;
        };
        if !plan.better {
            assert!(papilio::repair(&devices, &open, &plan, &undo).is_err());
            assert!(same(&device, &damaged), "seed {seed}: nothing was written");
            if plan.before.is_clean() {
                clean += 1
            } else {
                refused += 1
            }
            println!("seed {seed}: not better: {:?} {:?}", plan.before.counts, plan.refused.first());
            continue;
        }
        papilio::repair(&devices, &open, &plan, &undo).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if plan.after.is_clean() {
            clean += 1;
            for (path, data) in contents(&device) {
                total += 1;
                match known.get(&path) {
                    Some(before) if *before == data => kept += 1,
                    Some(_) if data.is_some() => {
                        wrong += 1;
                        let name = String::from_utf8_lossy(&path);
                        assert!(is_listed(&plan.losses, &name), "seed {seed}: {name}: {:#?}", plan.losses);
                    }
                    _ => {}
                }
            }
            total += known.len() - total.min(known.len());
        } else {
            better += 1;
            println!("seed {seed}: {:?} is left of {:?}", plan.after.counts, plan.before.counts);
        }
        papilio::undo_repair(&devices, &undo).unwrap();
        assert!(same(&device, &damaged), "seed {seed}: the undo file restores every byte");
    }
    println!("{count} file systems: {clean} clean, {better} better, {refused} not repaired");
    println!("of {total} names in the clean ones, {kept} have the same content, {wrong} other content");
    assert_eq!(clean + better + refused, count);
}
