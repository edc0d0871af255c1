//! The kernel checks logs that Papilio's fsyncs wrote. From a state after a power loss, the
//! kernel's replay must have everything acknowledged and equal Papilio's replay of the same state.
//! Both must be clean.
//!
//! `PAPILIO_KERNEL_STATES` sets the number of states to check, `PAPILIO_SEED` the first seed.

use papilio::{FileSystem, MkfsFeature, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Manifest, Need, Scratch, require};
use papilio_simulator::Configuration;
use papilio_simulator::crash::{InFlight, Survival};
use papilio_simulator::fsyncs::{FsyncRun, Shape, scope};
use std::path::PathBuf;
use std::sync::Arc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Everything, including extent locations, but not times: two replays happen at different times.
const COMPARED: CompareOptions =
    CompareOptions { mtime: false, ctime: false, atime: false, extents: true, ..CompareOptions::SAME_IMAGE };

/// Another file has the extent too. Deleted files share their extents until cleaning.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn read_manifest(images: &ImageSet, read_only: bool) -> Result<Manifest, Failure> {
    let mounted = if read_only { images.mount_read_only()? } else { images.mount()? };
    let options = ManifestOptions { extents: true, ..ManifestOptions::default() };
    let mut manifest = Manifest::read(&HostTree::new(mounted.path()), options)?;
    mounted.unmount()?;
    for entry in manifest.entries.values_mut() {
        for extent in entry.extents.iter_mut().flatten() {
            extent.flags &= !FIEMAP_EXTENT_SHARED;
        }
    }
    Ok(manifest)
}

/// Replays a state on both sides and compares them with each other and with the guarantees.
fn judge(
    run: &FsyncRun,
    scratch: &Scratch,
    open: &OpenOptions,
    device: &MemoryDevice,
) -> Result<(), Failure> {
    let image = |device: &MemoryDevice| -> Result<PathBuf, Failure> {
        let path = scratch.unique("image");
        device.write_image(&path)?;
        Ok(path)
    };
    let ours = Arc::new(device.snapshot());
    FileSystem::from_devices(vec![ours.clone() as Arc<dyn Device>], open)?.close()?;
    let (ours, theirs) = (image(&ours)?, image(device)?);
    let images = ImageSet::open(scratch, vec![theirs.clone()]);
    let by_kernel = read_manifest(&images, false).map_err(|error| format!("the kernel's replay: {error}"))?;
    images.btrfs_check().map_err(|error| format!("btrfs check of the kernel's replay: {error:#}"))?;
    let replayed: Arc<dyn Device> = Arc::new(MemoryDevice::from_image(&theirs)?);
    run.judge(&FileSystem::from_devices(vec![replayed], &OpenOptions::new())?)
        .map_err(|what| format!("of the kernel's replay: {what}"))?;
    std::fs::remove_file(&theirs)?;
    let images = ImageSet::open(scratch, vec![ours.clone()]);
    images.btrfs_check().map_err(|error| format!("btrfs check of Papilio's replay: {error:#}"))?;
    let by_papilio = read_manifest(&images, true)
        .map_err(|error| format!("the kernel's mount of Papilio's replay: {error}"))?;
    std::fs::remove_file(&ours)?;
    let differences = by_kernel.diff(&by_papilio, &COMPARED);
    if differences.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = differences.iter().take(8).map(ToString::to_string).collect();
    Err(format!("kernel | Papilio: {shown:#?}").into())
}

#[test]
fn kernel_replays_acknowledged_fsyncs() {
    let Some(_met) = require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let (wanted, first) = (setting("PAPILIO_KERNEL_STATES", 8), setting("PAPILIO_SEED", 1));
    let shapes = [
        (Configuration::new("default"), 1),
        (Configuration::new("cached").open(|open| open.cache_bytes(2 << 20)), 1),
        (
            Configuration::new("node 4096, explicit holes")
                .mkfs(|mkfs| mkfs.node_size(4096).feature(MkfsFeature::NoHoles, false)),
            1,
        ),
        (Configuration::new("shared"), 3),
    ];
    let share = wanted.div_ceil(shapes.len() as u64).min(12);
    let (mut states, mut logs, mut round) = (0, 0, 0);
    let mut failures = Vec::new();
    while states < wanted {
        for (configuration, threads) in &shapes {
            let seed = first + round;
            round += 1;
            let cached = configuration.name == "cached";
            // See `Scope::allocate_past_end` for the kernel's behaviour without NO_HOLES.
            let mut scope = scope();
            scope.moves = (round + round / shapes.len() as u64).is_multiple_of(2);
            scope.allocate_past_end = !configuration.name.contains("explicit holes");
            let shape = Shape { configuration: configuration.clone(), scope, threads: *threads, cached };
            let mut run = FsyncRun::new(shape, seed, 120).expect("a run without crashes succeeds");
            let scratch = Scratch::new(4 * configuration.size).expect("create a scratch folder for images");
            let stride = (run.len() as u64 / share).max(1) as usize;
            let (mut looked, mut position) = (0, stride / 2);
            while looked < share && position <= run.len() {
                run.advance(position);
                let survival = if looked % 2 == 0 {
                    Survival::Everything
                } else {
                    Survival::Some(seed ^ position as u64)
                };
                let device = run.device(survival, InFlight::Nothing);
                let fs = FileSystem::from_devices(
                    vec![Arc::new(device.snapshot()) as Arc<dyn Device>],
                    &OpenOptions::new().replay_log(false),
                );
                let logged = fs.expect("the last commit is readable").has_log();
                // Most states should have a log.
                if !logged && position % 4 != 0 && position < run.len() {
                    position += 1;
                    continue;
                }
                logs += u64::from(logged);
                if let Err(failure) = judge(&run, &scratch, &configuration.open, &device) {
                    let label =
                        format!("{}, seed {seed}, event {position}, {survival:?}", configuration.name);
                    failures.push(format!("{label}: {failure}"));
                    looked = share;
                }
                states += 1;
                looked += 1;
                position += stride;
            }
            assert!(failures.len() < 4, "{}", failures.join("\n\n"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{states} states, {logs} with a log");
    assert!(logs > 0, "no state had a log to replay");
}
