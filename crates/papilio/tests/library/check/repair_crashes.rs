//! Repairs that a power cut interrupts at each write: the undo file, as it was at that moment,
//! restores the original; and a second repair ends as well as an uninterrupted one.
//!
//! `PAPILIO_REPAIR_CUTS` is the share of the planted faults to try, one of so many (1: all), and
//! `PAPILIO_FAULT` a part of the names of those to try.

use super::planted::{Fault, Images, all_faults};
use papilio::OpenOptions;
use papilio_device::{
    Access, Action, Advice, Device, MemoryDevice, PhysicalAddress, ReadRequest, Recording, UndoFile,
};
use papilio_oracle::{Need, require};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The header of an undo file; the rest only grows.
const HEADER: u64 = 4096;
/// States with some writes lost or torn, for each moment.
const SEEDS: u64 = 3;
/// A second repair is tried in one of so many states.
const RESUMED_SHARE: usize = 5;

/// A device that notes the length of the undo file at each change that reaches it.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn Device>,
    undo: PathBuf,
    /// For each change, the length of the undo file when it began.
    lengths: Mutex<Vec<u64>>,
}

impl Watched {
    fn note(&self) {
        let length = std::fs::metadata(&self.undo).map_or(0, |found| found.len());
        self.lengths.lock().unwrap().push(length);
    }
}

impl Device for Watched {
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

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.inner.read_many(requests);
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.note();
        self.inner.write_at(buffer, offset)
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.note();
        self.inner.write_fua(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.note();
        self.inner.flush()
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        panic!("a repair discards nothing");
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

/// Figures of all repairs.
#[derive(Debug, Default)]
struct Figures {
    repairs: usize,
    writes: usize,
    restored: usize,
    resumed: usize,
    ended_clean: usize,
}

/// One recorded repair.
struct Cut<'a> {
    name: &'a str,
    before: MemoryDevice,
    recording: Recording,
    lengths: Vec<u64>,
    /// The undo file when the last write reached the device: complete records, no end.
    undo: Vec<u8>,
    /// Whether the whole repair left no finding.
    ends_clean: bool,
}

impl<'a> Cut<'a> {
    /// Repairs a device and records the writes; `None` if the fault cannot be repaired.
    fn record(name: &'a str, device: &Arc<MemoryDevice>, folder: &Path) -> Option<Self> {
        let before = device.snapshot();
        let open = OpenOptions::new();
        let undo = folder.join("undo");
        let recording = Recording::new();
        let recorded = Arc::new(recording.attach(device.clone())) as Arc<dyn Device>;
        let watched = Watched { inner: recorded, undo: undo.clone(), lengths: Mutex::default() };
        let watched = Arc::new(watched);
        let devices = vec![watched.clone() as Arc<dyn Device>];
        let plan = papilio::plan_repair(&devices, &open).ok().filter(|plan| plan.better)?;
        assert!(recording.is_empty(), "{name}: a plan writes nothing");
        let made = papilio::repair(&devices, &open, &plan, &undo).expect("as planned");
        assert!(UndoFile::open(&undo).unwrap().complete);
        // The header of a complete file has an end; that of before has none.
        let mut bytes = std::fs::read(&undo).unwrap();
        let other = folder.join("other");
        let identity = UndoFile::open(&undo).unwrap().identity().clone();
        drop(papilio_device::UndoLog::create(&other, identity).unwrap());
        bytes[..HEADER as usize].copy_from_slice(&std::fs::read(&other).unwrap());
        std::fs::remove_file(&other).unwrap();
        std::fs::remove_file(&undo).unwrap();
        let lengths = watched.lengths.lock().unwrap().clone();
        let ends_clean = made.after.counts.is_empty();
        Some(Self { name, before, recording, lengths, undo: bytes, ends_clean })
    }

    /// Whether a device is as it was, wherever the repair wrote.
    fn is_original(&self, device: &MemoryDevice) -> bool {
        self.recording.events().iter().all(|event| match &event.action {
            Action::Write { offset, data, .. } => {
                let (mut one, mut other) = (vec![0; data.len()], vec![0; data.len()]);
                device.read_at(&mut one, *offset).unwrap();
                self.before.read_at(&mut other, *offset).unwrap();
                one == other
            }
            _ => true,
        })
    }

    /// Looks at states of each moment.
    fn judge(&self, folder: &Path, figures: &mut Figures) {
        let events = self.recording.events();
        assert_eq!(events.len(), self.lengths.len());
        let mut replay = self.recording.replay();
        let undo = folder.join("undo");
        for moment in 0..=events.len() {
            // The undo file of the last event that began; the file is flushed before the write.
            let length = self.lengths[moment.saturating_sub(1)] as usize;
            replay.advance(moment);
            let mut states = vec![("all", replay.everything()), ("durable", replay.durable())];
            let seed = |seed| ("a seed", replay.crash(seed + moment as u64 * SEEDS));
            states.extend((0..SEEDS).map(seed));
            for (kind, state) in states {
                let what = format!("{}: {kind}, event {moment} of {}", self.name, events.len());
                let state = Arc::new(state.into_iter().next().unwrap());
                // A torn record that follows belongs to a write that did not happen.
                let torn = (moment * 1000 + 7) % 4200;
                std::fs::write(&undo, &self.undo[..(length + torn).min(self.undo.len())]).unwrap();
                if figures.restored.is_multiple_of(RESUMED_SHARE) && self.ends_clean {
                    let ended = self.resume(&Arc::new(state.snapshot()), folder, &what);
                    figures.resumed += 1;
                    figures.ended_clean += usize::from(ended);
                }
                let devices = vec![state.clone() as Arc<dyn Device>];
                papilio::undo_repair(&devices, &undo).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(self.is_original(&state), "{what}: not every byte is restored");
                figures.restored += 1;
            }
        }
        figures.repairs += 1;
        figures.writes += events.iter().filter(|event| !matches!(event.action, Action::Flush)).count();
    }

    /// Repairs an interrupted repair. Returns whether nothing is left to repair.
    fn resume(&self, state: &Arc<MemoryDevice>, folder: &Path, what: &str) -> bool {
        let before = state.snapshot();
        let devices = vec![state.clone() as Arc<dyn Device>];
        let (open, undo) = (OpenOptions::new(), folder.join("second"));
        let plan = match papilio::plan_repair(&devices, &open) {
            Ok(plan) => plan,
            Err(error) => {
                println!("{what}: not resumed: {error}");
                return false;
            }
        };
        if plan.better {
            papilio::repair(&devices, &open, &plan, &undo).unwrap_or_else(|error| panic!("{what}: {error}"));
            papilio::undo_repair(&devices, &undo).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(super::repaired::same(state, &before), "{what}: the second undo file");
            std::fs::remove_file(&undo).unwrap();
        }
        let left = if plan.better { &plan.after } else { &plan.before };
        if !left.counts.is_empty() {
            println!("{what}: {:?} {:?}", left.counts, plan.refused);
        }
        left.counts.is_empty()
    }
}

fn judge(faults: &[Fault]) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let only = std::env::var("PAPILIO_FAULT").unwrap_or_default();
    let mut images = Images::default();
    let mut figures = Figures::default();
    for fault in faults.iter().filter(|fault| fault.name.contains(&only)) {
        let device = images.plant(fault);
        let folder = tempfile::tempdir().unwrap();
        if let Some(cut) = Cut::record(&fault.name, &device, folder.path()) {
            cut.judge(folder.path(), &mut figures);
        }
    }
    println!("{figures:?}");
    // The undo file is the promise. A second repair ends as well, unless both copies of a block
    // were torn at once.
    assert!(figures.restored > 0 && figures.resumed > 0, "{figures:?}");
    assert!(figures.ended_clean * 10 >= figures.resumed * 9, "{figures:?}");
}

#[test]
fn a_repair_that_is_cut_is_taken_back_or_finished() {
    let share = std::env::var("PAPILIO_REPAIR_CUTS").map_or(9, |share| share.parse().expect("a number"));
    let faults: Vec<Fault> = all_faults().into_iter().step_by(share).collect();
    judge(&faults);
}
