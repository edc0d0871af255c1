//! Random damage: 1 to 100 bytes, sectors or blocks of file systems that the kernel wrote are
//! broken; then the files are read, and the file system repaired and cloned.
//!
//! No panic, no hang, bounded memory, never a wrong byte called right, and the undo file restores
//! every byte.
//!
//! A few seeds by default. `make damage` runs many: `PAPILIO_DAMAGE=N` seeds of each shape,
//! `PAPILIO_DAMAGE_STOCK=N` of them with btrfs-progs as well, and the images and the ledger in
//! `PAPILIO_DAMAGE_DIR`. A run that was stopped goes on where it ended. `PAPILIO_DAMAGE_SEED=N`
//! runs one seed of each shape.
//!
//! Images are snapshots of one device in memory, so that a seed copies nothing but what it changes.
//! The table of times at the end says what the seeds spent them on.

use crate::ledger::{self, Row};
use crate::stock;
use crate::world::{World, break_some, contents, open, shapes};
use papilio::device::{Device, MemoryDevice};
use papilio::{CheckOptions, FileSystem, OpenOptions, RescueCloneOptions};
use papilio_oracle::{Need, Scratch, require};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Seeds of each shape by default.
const SEEDS: u64 = 6;
/// Every so manieth seed makes a clone.
const CLONES: u64 = 5;
/// Seconds for one seed. They are counted one by one, so that a process that is stopped meanwhile
/// counts one.
const LIMIT: u32 = 120;
/// The same where btrfs-progs work on the image, too.
const LIMIT_WITH_STOCK: u32 = 600;
/// Most memory of the process, in KiB.
const MEMORY: u64 = 512 << 10;

/// The time that each part of the seeds took.
static TIMES: Mutex<BTreeMap<&str, Duration>> = Mutex::new(BTreeMap::new());

fn timed<T>(part: &'static str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    *TIMES.lock().unwrap().entry(part).or_default() += start.elapsed();
    result
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn nothing_breaks_on_random_damage() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let folder = std::env::var_os("PAPILIO_DAMAGE_DIR").map(PathBuf::from);
    if let Some(folder) = &folder {
        std::fs::create_dir_all(folder).unwrap();
    }
    let path = folder.as_ref().map(|folder| folder.join("ledger.jsonl"));
    let mut rows = path.as_deref().map(ledger::read).unwrap_or_default();
    let done: BTreeSet<_> = rows.iter().map(|row| (row.shape.clone(), row.seed)).collect();
    let (seeds, stock) = (number("PAPILIO_DAMAGE", SEEDS), number("PAPILIO_DAMAGE_STOCK", 0));
    let until = Instant::now() + Duration::from_secs(number("PAPILIO_DAMAGE_SECONDS", 1 << 30));
    let one = std::env::var("PAPILIO_DAMAGE_SEED").ok().map(|text| text.parse::<u64>().unwrap());
    let worlds: Vec<Arc<World>> =
        (0..shapes().len()).map(|number| Arc::new(World::make(number, folder.as_deref()))).collect();
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        for world in &worlds {
            if done.contains(&(world.name.to_owned(), seed)) || Instant::now() > until {
                continue;
            }
            let row = within_limit(world, seed, seed < stock);
            if let Some(path) = &path {
                ledger::append(path, &row);
            } else {
                println!("{row:?}");
            }
            rows.push(row);
            let peak = peak_memory();
            assert!(peak < MEMORY, "{} seed {seed}: {peak} KiB of memory", world.name);
        }
    }
    ledger::print_table(&rows);
    for (part, time) in TIMES.lock().unwrap().iter() {
        println!("{part}: {} ms", time.as_millis());
    }
    println!("peak memory {} MiB", peak_memory() >> 10);
}

/// Runs one seed; a panic names it, and so does a run that takes too long.
fn within_limit(world: &Arc<World>, seed: u64, with_stock: bool) -> Row {
    let (sender, receiver) = channel();
    let worker = {
        let world = Arc::clone(world);
        std::thread::spawn(move || {
            let _ = sender.send(run(&world, seed, with_stock));
        })
    };
    for _ in 0..if with_stock { LIMIT_WITH_STOCK } else { LIMIT } {
        match receiver.recv_timeout(Duration::from_secs(1)) {
            Ok(row) => return row,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let panic = worker.join().expect_err("it sent nothing");
                eprintln!("{} seed {seed}: PAPILIO_DAMAGE_SEED={seed} repeats it", world.name);
                std::panic::resume_unwind(panic)
            }
        }
    }
    panic!("{} seed {seed}: it hangs", world.name)
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn run(world: &World, seed: u64, with_stock: bool) -> Row {
    let start = Instant::now();
    let damaged = world.device.snapshot();
    let damage = break_some(world, &damaged, seed);
    let mut row = Row {
        shape: world.name.to_owned(),
        seed,
        what: damage.what.to_owned(),
        count: damage.count,
        files: world.files.len() as u64,
        ..Row::default()
    };
    let options = OpenOptions::new().ignore_bad_roots(true);
    let plain = timed("open", || open(&damaged, &options));
    row.opened = u64::from(plain.is_ok());
    let fs = plain.or_else(|_| timed("scan", || open(&damaged, &options.clone().scan(true))));
    if let Err(error) = &fs {
        println!("{} seed {seed}: {error}", world.name);
    }
    if let Ok(fs) = &fs {
        if row.opened == 0 {
            row.opened = 2;
        }
        row.salvaged = timed("read", || count_right(world, fs, row.opened == 1, seed));
    }
    if seed.is_multiple_of(CLONES)
        && let Ok(fs) = &fs
    {
        row.cloned = Some(timed("clone", || clone(world, fs, seed)));
    }
    drop(fs);
    repair(world, &damaged, &mut row);
    if with_stock {
        let scratch = Scratch::new(1 << 30).unwrap();
        row.stock = Some(timed("btrfs-progs", || stock::judge(world, &damaged, &scratch)));
    }
    row.milliseconds = start.elapsed().as_millis() as u64;
    row
}

/// Counts the files that read right. In the newest state, none may read wrong; if the whole
/// checksum tree is lost, the file system says that it verifies nothing.
fn count_right(world: &World, fs: &FileSystem, newest: bool, seed: u64) -> u64 {
    let found = contents(fs);
    let mut right = 0;
    for (path, content) in &found {
        let Some(original) = world.files.get(path) else { continue };
        let same = original == content;
        if !same && newest && fs.verifies_data() {
            let (path, wrong) = (path.escape_ascii(), difference(content, original));
            panic!("{} seed {seed}: {path} reads wrong {wrong}", world.name);
        }
        right += u64::from(same);
    }
    right
}

/// Says where the content of a file differs from the right one.
fn difference(content: &[u8], original: &[u8]) -> String {
    let at = content.iter().zip(original).position(|(a, b)| a != b);
    format!("from {at:?} on: {} of {} bytes", content.len(), original.len())
}

/// Clones what can be read, and returns how many files are right in the clone.
fn clone(world: &World, fs: &FileSystem, seed: u64) -> u64 {
    let folder = tempfile::tempdir_in(shared_memory()).unwrap();
    let out = folder.path().join("clone");
    let made = papilio::rescue_clone(fs, &out, &RescueCloneOptions::new(), &mut |_| {});
    let (_, report) = made.unwrap_or_else(|error| panic!("{} seed {seed}: {error}", world.name));
    if !report.is_clean() {
        println!("{} seed {seed}: {} errors are left in the clone", world.name, report.errors());
        if std::env::var_os("PAPILIO_DAMAGE_SEED").is_some() {
            println!("{:#?}", report.findings);
        }
    }
    let found = FileSystem::open(&out).map(|fs| contents(&fs)).unwrap_or_default();
    world.files.iter().filter(|(path, content)| found.get(*path) == Some(content)).count() as u64
}

/// Repairs a copy, counts the files that are right, and takes the repair back.
fn repair(world: &World, damaged: &MemoryDevice, row: &mut Row) {
    let device = Arc::new(damaged.snapshot());
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = OpenOptions::new();
    let folder = tempfile::tempdir_in(shared_memory()).unwrap();
    let undo = folder.path().join("undo");
    let (mut losses, mut changes) = (Vec::new(), Vec::new());
    if let Ok(plan) = timed("plan", || papilio::plan_repair(&devices, &options))
        && plan.better
        && !plan.changes.is_empty()
    {
        let made = timed("repair", || papilio::repair(&devices, &options, &plan, &undo));
        let made = made.unwrap_or_else(|error| panic!("{} seed {}: {error}", row.shape, row.seed));
        row.repaired = true;
        (losses, changes) = (made.losses, made.changes);
    }
    let report = timed("check", || papilio::check_devices(devices.clone(), &options, &CheckOptions::new()));
    row.clean = report.is_ok_and(|report| report.is_clean());
    if let Ok(fs) = open(&device, &OpenOptions::new().ignore_bad_roots(true)) {
        let found = timed("read the repaired", || contents(&fs));
        for (path, content) in &found {
            let Some(original) = world.files.get(path) else { continue };
            row.after += u64::from(original == content);
            let wrong = original != content && losses.is_empty() && fs.verifies_data();
            assert!(
                !wrong,
                "{} seed {}: {} is wrong {}, unsaid: {changes:#?}",
                row.shape,
                row.seed,
                path.escape_ascii(),
                difference(content, original)
            );
        }
    }
    if row.repaired {
        timed("undo", || papilio::undo_repair(&devices, &undo)).unwrap();
        assert!(device.same_content(damaged), "{} seed {}: the undo file differs", row.shape, row.seed);
    }
}

fn shared_memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
