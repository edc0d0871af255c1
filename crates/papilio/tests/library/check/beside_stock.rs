//! Planted faults in images of the kernel with compressed, shared and reflinked data, quotas and
//! extended attributes: repaired here and by `btrfs check --repair`, on copies.
//!
//! Takes minutes, so it runs on request:
//! `cargo test -p papilio --test library repairs_beside -- --ignored --nocapture`.
//! `PAPILIO_REPAIR_CUTS` is the share of the faults to try, one of so many.

use super::image::Image;
use super::planted::all_faults;
use super::repaired::agrees;
use crate::in_memory::{check, crashed};
use papilio::OpenOptions;
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::mkfs::Quota;
use papilio_oracle::{FileSystemSpec, Need, Scratch, TreeSpec, require};
use std::process::{Command, Stdio};
use std::sync::Arc;

fn make() -> MemoryDevice {
    let scratch = Scratch::new(256 << 20).unwrap();
    let spec = FileSystemSpec {
        nodesize: Some(4096),
        quota: Quota::Full,
        mount_options: vec!["compress=zstd".to_owned()],
        ..FileSystemSpec::default()
    };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    TreeSpec { files: 60, bytes: 4 << 20, seed: 11, subvolumes: true }.populate(mounted.path()).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).current_dir(mounted.path()).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    };
    std::fs::write(mounted.path().join("text"), "compressible ".repeat(60_000)).unwrap();
    run("cp", &["--reflink=always", "text", "clone"]);
    run("sync", &["-f", "."]);
    run("btrfs", &["-q", "subvolume", "snapshot", ".", "snapshot-of-all"]);
    std::fs::write(mounted.path().join("after"), vec![3; 50_000]).unwrap();
    mounted.unmount().unwrap();
    MemoryDevice::from_image(&images.paths()[0]).unwrap()
}

/// Says whether a device is clean, and the kernel reads all data of the sound one.
fn verdict(device: &Arc<MemoryDevice>, sound: &MemoryDevice) -> Result<(), String> {
    agrees(device, sound)
}

fn by_us(device: &Arc<MemoryDevice>, sound: &MemoryDevice) -> Result<(), String> {
    let devices = vec![device.clone() as Arc<dyn Device>];
    let plan = papilio::plan_repair(&devices, &OpenOptions::new()).map_err(|error| error.to_string())?;
    if !plan.better {
        return Err(plan.refused.first().cloned().unwrap_or_else(|| "nothing better".to_owned()));
    }
    let folder = tempfile::tempdir().unwrap();
    let made = papilio::repair(&devices, &OpenOptions::new(), &plan, &folder.path().join("undo"));
    made.map_err(|error| error.to_string())?;
    verdict(device, sound)
}

/// Repairs a copy with `btrfs check --repair`, in at most 60 seconds of processor time: a machine
/// that is paused meanwhile changes nothing.
pub fn by_stock(device: &MemoryDevice, sound: &MemoryDevice) -> Result<(), String> {
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("stock", device.size()).unwrap();
    device.write_image(&path).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 60; exec btrfs check --repair --force \"$0\""]).arg(&path);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let after = Arc::new(MemoryDevice::from_image(&path).unwrap());
    verdict(&after, sound).map_err(|error| match status.code() {
        Some(code) => format!("exit {code}; {error}"),
        None => format!("crashed; {error}"),
    })
}

pub fn short(result: &Result<(), String>) -> String {
    match result {
        Ok(()) => "yes".to_owned(),
        Err(reason) => {
            let reason: String = reason.replace(['\n', '|'], " ").chars().take(90).collect();
            format!("no: {reason}")
        }
    }
}

#[test]
#[ignore = "takes minutes"]
fn repairs_beside_btrfs_check() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let share = std::env::var("PAPILIO_REPAIR_CUTS").map_or(1, |share| share.parse().expect("a number"));
    let sound = make();
    assert!(check(&crashed(&sound)).counts.is_empty());
    let (mut faults, mut ours, mut stocks) = (0, 0, 0);
    println!("| planted fault | papilio check --repair | btrfs check --repair |\n|---|---|---|");
    for fault in all_faults().into_iter().step_by(share) {
        let mut image = Image::new(sound.snapshot());
        let plant = std::panic::AssertUnwindSafe(|| (fault.plant)(&mut image));
        if std::panic::catch_unwind(plant).is_err() {
            println!("| {} | not planted | |", fault.name);
            continue;
        }
        let device = image.device;
        let stock = by_stock(&device, &sound);
        let our = by_us(&device, &sound);
        faults += 1;
        ours += usize::from(our.is_ok());
        stocks += usize::from(stock.is_ok());
        println!("| {} | {} | {} |", fault.name, short(&our), short(&stock));
    }
    println!("{faults} faults: {ours} repaired here, {stocks} by btrfs check");
    assert!(faults > 0 && ours >= stocks, "{ours} of {faults}, btrfs check {stocks}");
}
