//! The switch of a conversion and of a way back, of which the device writes a part only.
//!
//! Owns [`Switches`]: each write of the block at 64 KiB, with the state before it. From these, all
//! torn states are made, sector by sector.

use super::cuts::few_files;
use super::fill::bytes;
use super::world::{Kind, NEEDS, SourceMount, World, XFS_NEEDS, mend};
use papilio_convert::{
    ConvertError, ConvertOptions, Finished, Interruption, convert, find_interrupted, finish_interrupted,
    rollback, undo_interrupted,
};
use papilio_device::{Access, Device, MemoryDevice, PhysicalAddress};
use papilio_engine::options::OpenOptions;
use papilio_format::Superblock;
use papilio_fs::check_devices;
use papilio_oracle::require;
use papilio_progs::check::CheckOptions;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

const PRIMARY: PhysicalAddress = PhysicalAddress(65536);
const SECTOR: usize = 512;

/// A device that keeps its state before each write of the block at 64 KiB, and the bytes.
#[derive(Debug)]
struct Catcher {
    inner: Arc<MemoryDevice>,
    caught: Mutex<Vec<(MemoryDevice, Vec<u8>)>>,
}

impl Device for Catcher {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        if offset == PRIMARY {
            self.caught.lock().unwrap().push((self.inner.snapshot(), buffer.to_vec()));
        }
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }
}

/// A write of the block at 64 KiB.
struct Switch {
    before: MemoryDevice,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Switch {
    /// Returns the state in which the sectors of `pattern` are written, if it is torn.
    fn torn(&self, pattern: u32) -> Option<MemoryDevice> {
        let state = self.before.snapshot();
        let mut block = self.old.clone();
        for at in (0..8).filter(|at| pattern >> at & 1 == 1) {
            let sector = at * SECTOR..(at + 1) * SECTOR;
            block[sector.clone()].copy_from_slice(&self.new[sector]);
        }
        state.write_at(&block, PRIMARY).unwrap();
        (block != self.old && block != self.new).then_some(state)
    }
}

/// Lets `act` change a device, and returns its writes of the block at 64 KiB.
fn caught(memory: &Arc<MemoryDevice>, act: impl FnOnce(&Arc<dyn Device>)) -> Vec<Switch> {
    let catcher = Arc::new(Catcher { inner: Arc::clone(memory), caught: Mutex::default() });
    let device: Arc<dyn Device> = Arc::clone(&catcher) as Arc<dyn Device>;
    act(&device);
    let caught = std::mem::take(&mut *catcher.caught.lock().unwrap());
    let switch = |(before, new): (MemoryDevice, Vec<u8>)| Switch { old: primary(&before), before, new };
    caught.into_iter().map(switch).collect()
}

fn primary(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    device.read_at(&mut bytes, PRIMARY).unwrap();
    bytes
}

/// Removes the pointers to the record from a superblock, as a program may that writes it anew.
fn forget_record(device: &dyn Device) {
    let mut superblock = Superblock::parse(&primary(device), PRIMARY).unwrap();
    let raw = &mut superblock.raw;
    raw.log_root_transid = 0;
    raw.reserved.fill(0);
    raw.sys_chunk_array[raw.sys_chunk_array_size as usize..].fill(0);
    raw.padding.fill(0);
    device.write_at(&superblock.to_bytes(PRIMARY), PRIMARY).unwrap();
}

fn assert_btrfs(device: Arc<dyn Device>, what: &str) {
    let report = check_devices(vec![device], &OpenOptions::new(), &CheckOptions::new()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
}

/// Judges a torn state: `convert` leads to `forth`, and `-r` to the source.
fn judge(state: &MemoryDevice, forth: &[Finished], source: &[u8], is_checked: bool, what: &str) {
    for (goals, is_undone) in [(forth, false), (&[Finished::Source][..], true)] {
        let memory = Arc::new(state.snapshot());
        let device: Arc<dyn Device> = Arc::clone(&memory) as Arc<dyn Device>;
        let found = find_interrupted(&device).unwrap();
        let is_torn = |found| {
            matches!(
                found,
                Interruption::TornConversion { used_since: false }
                    | Interruption::TornRollback { used_since: false }
            )
        };
        assert!(found.is_some_and(is_torn), "{what}: {found:?}");
        let refused = [
            convert(&device, &ConvertOptions::new(), &mut |_| ()).map(drop),
            rollback(&device, &mut |_| ()).map(drop),
        ];
        let is_refusal = |result: &Result<(), _>| matches!(result, Err(ConvertError::Interrupted { .. }));
        assert!(refused.iter().all(is_refusal), "{what}: {refused:?}");
        assert!(memory.same_content(state), "{what}: a refusal wrote");
        let finished = if is_undone { undo_interrupted(&device) } else { finish_interrupted(&device) };
        let finished = finished.unwrap().unwrap();
        assert!(goals.contains(&finished), "{what}: {finished:?}");
        assert_eq!(find_interrupted(&device).unwrap(), None, "{what}");
        match finished {
            Finished::Source => assert!(primary(&*memory) == source, "{what}"),
            Finished::Btrfs if is_checked => assert_btrfs(device, what),
            Finished::Btrfs => assert_eq!(&primary(&*memory)[64..72], b"_BHRfS_M", "{what}"),
        }
    }
}

/// Converts and goes back, and judges torn writes of the block at 64 KiB. All patterns of sectors
/// have their turn, or each `step`th.
fn judge_switches(world: &World, step: usize) {
    let memory = Arc::new(MemoryDevice::from_image(&world.original).unwrap());
    let source = primary(&*memory);
    let forth = caught(&memory, |device| drop(convert(device, &ConvertOptions::new(), &mut |_| ()).unwrap()));
    forget_record(&*memory);
    let back = caught(&memory, |device| drop(rollback(device, &mut |_| ()).unwrap()));
    assert_eq!((forth.len(), back.len()), (1, 2));
    // The first write of the way back lets the superblock point to the record. A part of it may
    // look like a part of the second one.
    let goals: [&[_]; 3] = [&[Finished::Btrfs], &[Finished::Btrfs, Finished::Source], &[Finished::Source]];
    for (at, (switch, goal)) in forth.iter().chain(&back).zip(goals).enumerate() {
        let mut torn = 0;
        for pattern in (1..255).step_by(step) {
            let what = format!("{:?}, write {at}, pattern {pattern:#x}", world.kind);
            if let Some(state) = switch.torn(pattern) {
                judge(&state, goal, &source, pattern % 32 == 1, &what);
                torn += 1;
            }
        }
        assert!(torn > 20, "{torn} torn states of write {at}");
    }
    // Nothing is left of the Btrfs where the source has nothing, and the source is whole.
    memory.write_image(&world.image).unwrap();
    world.check_back();
}

#[test]
fn every_torn_switch_of_ext_is_mended_both_ways() {
    if require(NEEDS).is_none() {
        return;
    }
    // Something lies at 64 MiB.
    judge_switches(&World::new("-t ext4 -b 4096", 160, few_files), 1);
}

#[test]
fn torn_switches_of_other_sources_are_mended_both_ways() {
    if require(NEEDS).is_none() || require(XFS_NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| fs::write(root.join("a"), bytes(1, 100_000)).unwrap();
    // No superblock copy fits on the first device; the block at 64 KiB has inodes on the others.
    judge_switches(&World::new("-t ext4 -b 4096 -J size=4", 44, fill), 7);
    judge_switches(&World::new("-t ext2 -b 4096 -O ^resize_inode -g 4096", 100, fill), 7);
    judge_switches(&World::xfs("-l size=10m", 100, fill), 7);
}

#[test]
fn a_source_that_was_used_after_a_torn_switch_needs_the_way_back() {
    if require(NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| fs::write(root.join("a"), bytes(1, 100_000)).unwrap();
    let world = World::new("-t ext4 -b 4096", 100, fill);
    let memory = Arc::new(MemoryDevice::from_image(&world.image).unwrap());
    let forth = caught(&memory, |device| drop(convert(device, &ConvertOptions::new(), &mut |_| ()).unwrap()));
    forth[0].torn(0x90).unwrap().write_image(&world.image).unwrap();
    {
        let mounted = SourceMount::new(&world.scratch, Kind::Ext, &world.image, false);
        fs::write(mounted.path().join("b"), "b").unwrap();
    }
    let device = world.device();
    let used = Interruption::TornConversion { used_since: true };
    assert_eq!(find_interrupted(&device).unwrap(), Some(used));
    let before = fs::read(&world.image).unwrap();
    let error = finish_interrupted(&device).unwrap_err().to_string();
    assert!(error.contains("used since") && error.contains("convert -r"), "{error}");
    assert!(fs::read(&world.image).unwrap() == before, "a refusal wrote");
    assert_eq!(undo_interrupted(&device).unwrap(), Some(Finished::Source));
    assert!(primary(&*device) == forth[0].old);
    drop(device);
    mend(&world.image);
    let mounted = SourceMount::new(&world.scratch, Kind::Ext, &world.image, true);
    assert_eq!(fs::read(mounted.path().join("b")).unwrap(), b"b");
}

/// The wiping of the old superblock may be torn, too.
#[test]
fn a_partly_wiped_source_is_completed() {
    if require(NEEDS).is_none() || require(XFS_NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| fs::write(root.join("a"), bytes(1, 100_000)).unwrap();
    for world in [World::new("-t ext4 -b 4096", 100, fill), World::xfs("-l size=10m", 100, fill)] {
        let memory = Arc::new(MemoryDevice::from_image(&world.image).unwrap());
        let mut head = vec![0; 65536];
        memory.read_at(&mut head, PhysicalAddress(0)).unwrap();
        let device: Arc<dyn Device> = Arc::clone(&memory) as Arc<dyn Device>;
        convert(&device, &ConvertOptions::new(), &mut |_| ()).unwrap();
        for seed in 0..10 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut partly = head.clone();
            // The superblock is still there: in the first sector of XFS, in the third and fourth of
            // ext.
            for sector in partly.chunks_exact_mut(SECTOR).skip(4).filter(|_| random.bool()) {
                sector.fill(0);
            }
            let state = Arc::new(memory.snapshot());
            state.write_at(&partly, PhysicalAddress(0)).unwrap();
            let device: Arc<dyn Device> = Arc::clone(&state) as Arc<dyn Device>;
            assert_eq!(find_interrupted(&device).unwrap(), Some(Interruption::Conversion));
            assert_eq!(finish_interrupted(&device).unwrap(), Some(Finished::Btrfs));
            assert!(state.same_content(&memory));
        }
        // Another source's superblock is none of the conversion's.
        let state = Arc::new(memory.snapshot());
        let mut other = head.clone();
        other[if world.kind == Kind::Ext { 1024 + 0x2c } else { 0x80 }] ^= 1;
        state.write_at(&other, PhysicalAddress(0)).unwrap();
        let device: Arc<dyn Device> = Arc::clone(&state) as Arc<dyn Device>;
        assert_eq!(finish_interrupted(&device).unwrap(), None);
    }
}
