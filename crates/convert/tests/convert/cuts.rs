//! Power cuts at the writes of a conversion and of a way back.
//!
//! `PAPILIO_CONVERT_CUTS` is the number of states to judge in each direction (36). States are those
//! at moments that are spread over all writes, and more closely over the last ones.

use super::fill::{bytes, flags};
use super::world::{NEEDS, World, XFS_NEEDS, copy, mend};
use papilio_convert::{
    ConvertOptions, Finished, Interruption, convert, find_interrupted, finish_interrupted, rollback,
    undo_interrupted,
};
use papilio_device::{Device, MemoryDevice, PhysicalAddress, Recording};
use papilio_engine::options::OpenOptions;
use papilio_fs::check_devices;
use papilio_oracle::require;
use papilio_progs::check::CheckOptions;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// States without a request for more.
const FEW: usize = 36;
/// The last moments of a recording, which are judged one by one.
const LAST: usize = 7;

fn cuts() -> usize {
    std::env::var("PAPILIO_CONVERT_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(FEW)
}

pub fn few_files(root: &Path) {
    for at in 0..150 {
        fs::write(root.join(format!("file {at}")), bytes(at, at as usize * 500)).unwrap();
    }
    fs::create_dir(root.join("folder")).unwrap();
    fs::write(root.join("folder/large"), bytes(7, 6 << 20)).unwrap();
    // Something lies where the second superblock goes.
    fs::write(root.join("larger"), vec![8; 60 << 20]).unwrap();
    flags(root);
}

/// Whether the device has a Btrfs superblock.
fn is_btrfs(device: &MemoryDevice) -> bool {
    let mut magic = [0; 8];
    device.read_at(&mut magic, PhysicalAddress(65536 + 64)).unwrap();
    &magic == b"_BHRfS_M"
}

fn block(device: &dyn Device, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    device.read_at(&mut bytes, PhysicalAddress(number * 4096)).unwrap();
    bytes
}

/// The judge of states.
struct Judge<'a> {
    world: &'a World,
    original: MemoryDevice,
    /// The source after `e2fsck` has replayed its journal, if it needs that.
    mended: Option<MemoryDevice>,
    used: Vec<u64>,
    judged: usize,
    torn: usize,
    kinds: [bool; 2],
}

impl<'a> Judge<'a> {
    fn new(world: &'a World, needs_replay: bool) -> Self {
        let mended = world.scratch.path().join("mended");
        copy(&world.original, &mended);
        if needs_replay {
            mend(&mended);
        }
        let used = world.kind.used_blocks(&mended);
        let original = MemoryDevice::from_image(&world.original).unwrap();
        let mended = needs_replay.then(|| MemoryDevice::from_image(&mended).unwrap());
        Self { world, original, mended, used, judged: 0, torn: 0, kinds: [false; 2] }
    }

    /// Judges a state: a valid source with all its bytes, or a valid Btrfs. The next run makes one
    /// of the two whole if the last write was torn, and completes what the cut left out.
    fn judge(&mut self, state: MemoryDevice, what: &str, is_checked: bool) {
        self.judged += 1;
        let state = Arc::new(state);
        let device: Arc<dyn Device> = Arc::clone(&state) as Arc<dyn Device>;
        let interruption = find_interrupted(&device).unwrap();
        if !matches!(interruption, None | Some(Interruption::Conversion)) {
            self.torn += 1;
            // The other way out.
            let other: Arc<dyn Device> = Arc::new(state.snapshot());
            assert_eq!(undo_interrupted(&other).unwrap(), Some(Finished::Source), "{what}");
            assert_eq!(find_interrupted(&other).unwrap(), None, "{what}");
            self.compare_source(&*other, what);
        }
        let finished = finish_interrupted(&device).unwrap();
        assert_eq!(finished.is_some(), interruption.is_some(), "{what}");
        assert_eq!(find_interrupted(&device).unwrap(), None, "{what}");
        let found = is_btrfs(&state);
        assert!(finished.is_none_or(|finished| found == (finished == Finished::Btrfs)), "{what}");
        self.kinds[usize::from(found)] = true;
        if found {
            let options = CheckOptions::new().data_csum(is_checked);
            let open = OpenOptions::new().ignore_signatures(true);
            let report = check_devices(vec![device], &open, &options).unwrap();
            assert!(report.is_clean(), "{what}: {:?}", report.findings);
            return;
        }
        self.compare_source(&*state, what);
        if is_checked {
            self.check_source(&state, what);
        }
    }

    /// Compares all blocks that the source uses.
    fn compare_source(&self, state: &dyn Device, what: &str) {
        for number in &self.used {
            assert!(
                block(state, *number) == block(&self.original, *number),
                "{what}: block {number} differs"
            );
        }
    }

    /// Lets the source's own program judge a state.
    fn check_source(&self, state: &MemoryDevice, what: &str) {
        let path = self.world.scratch.path().join("state");
        state.write_image(&path).unwrap();
        let (kind, needs_replay) = (self.world.kind, self.mended.is_some());
        let checked = std::panic::catch_unwind(|| {
            if needs_replay {
                mend(&path);
            }
            kind.check(&path);
        });
        if let Some(mended) = &self.mended {
            // The same blocks as of the source after its replay, but for times in superblocks.
            let state = MemoryDevice::from_image(&path).unwrap();
            for number in &self.used {
                let [found, expected] = [&state, mended].map(|device| block(device, *number));
                let start = if *number == 0 { 1024 } else { 0 };
                let is_superblock = expected[start + 0x38..start + 0x3a] == [0x53, 0xef];
                assert!(found == expected || is_superblock, "{what}: block {number} differs after a replay");
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(checked.is_ok(), "{what}");
    }

    /// Judges states of a recording. Both kinds of file systems are to be among them.
    fn judge_all(&mut self, recording: &Recording) {
        let (count, wanted) = (recording.len(), cuts());
        let last = count.saturating_sub(LAST);
        let step = (last / (wanted / 3).max(1)).max(1);
        let mut moments: Vec<usize> = (0..last).step_by(step).chain(last..=count).collect();
        moments.dedup();
        // Two states of each moment are fixed; the others are drawn.
        let drawn = wanted.saturating_sub(2 * moments.len()).div_ceil(moments.len());
        let mut replay = recording.replay();
        (self.judged, self.torn, self.kinds) = (0, 0, [false; 2]);
        for moment in moments {
            replay.advance(moment);
            let what = |kind: &str| format!("moment {moment} of {count}, {kind}");
            // Checks by other programs take long: of a few states, the last ones have them, and of
            // many, each eighth.
            let is_checked = |at: usize| if wanted > FEW { at.is_multiple_of(8) } else { moment > last };
            self.judge(replay.durable().remove(0), &what("only what is durable"), is_checked(0));
            self.judge(replay.everything().remove(0), &what("all writes"), is_checked(0));
            for seed in 0..drawn {
                let state = replay.crash((moment + seed * 100_003) as u64).remove(0);
                self.judge(state, &what(&format!("seed {seed}")), is_checked(seed + 1));
            }
        }
        assert_eq!(self.kinds, [true, true]);
        assert!(self.judged >= wanted, "{}", self.judged);
    }
}

#[test]
fn a_cut_leaves_the_old_or_the_new_file_system() {
    if require(NEEDS).is_none() {
        return;
    }
    cut_both_ways(&World::new("-t ext4 -b 4096", 200, few_files), false);
}

#[test]
fn a_cut_leaves_a_journal_to_replay_or_the_new_file_system() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = super::journal::cut_off("-t ext4 -b 4096", few_files, |root| {
        for at in 0..40 {
            fs::remove_file(root.join(format!("file {at}"))).unwrap();
            fs::write(root.join(format!("folder/new {at}")), bytes(at, 9000)).unwrap();
        }
        fs::rename(root.join("folder/large"), root.join("renamed")).unwrap();
    });
    cut_both_ways(&world, true);
}

#[test]
fn a_cut_leaves_xfs_or_the_new_file_system() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| {
        few_files(root);
        super::xfs_fill::reflinks(root);
    };
    cut_both_ways(&World::xfs("-l size=10m -d agcount=2", 200, fill), false);
}

/// Converts a source and brings it back, and judges states in between.
fn cut_both_ways(world: &World, needs_replay: bool) {
    let mut judge = Judge::new(world, needs_replay);
    let memory = Arc::new(judge.original.snapshot());
    let mut step = |act: &dyn Fn(&Arc<dyn Device>), is_there: bool| {
        let recording = Recording::new();
        let device: Arc<dyn Device> = Arc::new(recording.attach(Arc::clone(&memory)));
        act(&device);
        drop(device);
        assert_eq!(is_btrfs(&memory), is_there);
        judge.judge_all(&recording);
        let Judge { judged, torn, .. } = &judge;
        println!("{:?}: {} writes, {judged} states, {torn} with a torn switch", world.kind, recording.len());
    };
    step(&|device| drop(convert(device, &ConvertOptions::new(), &mut |_| ()).unwrap()), true);
    step(&|device| drop(rollback(device, &mut |_| ()).unwrap()), false);
}
