//! Devices that lie: they report a write as done, and lose it or put it elsewhere.
//!
//! Owns [`LyingRun`], a run on devices that told the truth, and [`Lie`], which changes one of their
//! writes afterwards. No lie may be believed:
//! - Each answer is that of the last commit on the device: each name, attribute and byte. Data
//!   without checksums is left out.
//! - All else is an error. Checksums, addresses and generations in tree blocks tell.
//! - A writer changes nothing of what could be read before.
//!
//! One device lies. Where another has a second copy of everything, there is no error either, except
//! for a damaged first superblock.

use crate::configuration::Configuration;
use crate::model::{Model, Node, NodeKind};
use crate::random::{Generator, Scope};
use crate::session::Session;
use crate::verify;
use papilio::{FileSystem, Inode, OpenOptions};
use papilio_device::{Action, Device, Event, MemoryDevice, PhysicalAddress, Recording};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The name of the file that a writer makes after the lie.
const NEW: &[u8] = b"made after the lie";
const PIECE: usize = 1 << 20;

/// How a device treated its writes. Numbers count the writes of all devices from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A write is lost.
    Lost(usize),
    /// A write goes to the place of another one.
    Moved(usize, usize),
    /// A write goes to a given byte of the device, a multiple of 4096.
    Strayed(usize, u64),
    /// All writes that the flush with this number should have made durable are lost.
    Flush(usize),
}

/// The signs of a lie that a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// Nothing: all is as if there was no lie.
    Nothing,
    /// An older commit, and no error.
    Older,
    /// A damaged first superblock: opening is refused, unless another copy is chosen.
    Superblock,
    /// At least one other error.
    Errors,
}

/// A run whose device told the truth.
#[derive(Debug)]
pub struct LyingRun {
    name: String,
    seed: u64,
    bases: Vec<MemoryDevice>,
    events: Vec<Event>,
    /// Where each write went.
    places: Vec<PhysicalAddress>,
    flushes: usize,
    /// The states that a generation may hold.
    models: BTreeMap<u64, Vec<Model>>,
    last: u64,
}

impl LyingRun {
    /// Runs operations on a new file system.
    ///
    /// # Errors
    /// The first difference from the model.
    pub fn new(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: u64,
    ) -> Result<Self, String> {
        let text = |error: papilio::Error| error.to_string();
        let devices = configuration.make_devices().map_err(text)?;
        let bases: Vec<_> = devices.iter().map(|device| device.snapshot()).collect();
        let recording = Recording::new();
        let attach = |device| Arc::new(recording.attach(device)) as Arc<dyn Device>;
        let recorded: Vec<Arc<dyn Device>> = devices.into_iter().map(attach).collect();
        let mut session = Session::open(recorded.clone(), configuration.open.clone()).map_err(text)?;
        let generation = |session: &Session| session.fs().superblock().raw.generation.0;
        let mut models = BTreeMap::from([(generation(&session), vec![Model::new()])]);
        let mut newest = generation(&session);
        let mut generator = Generator::new(seed, scope);
        for _ in 0..operations {
            let before = session.model().clone();
            session.step(&generator.next(&before))?;
            // Some operations commit, before their change or with it.
            for committed in newest + 1..=generation(&session) {
                models.insert(committed, vec![session.model().clone(), before.clone()]);
                newest = committed;
            }
        }
        session.close()?;
        let last = FileSystem::from_devices(recorded, &OpenOptions::new()).map_err(text)?;
        let last = last.superblock().raw.generation.0;
        // Closing may take more than one commit.
        for generation in newest + 1..=last {
            models.insert(generation, vec![session.model().clone()]);
        }
        let events = recording.events();
        let place = |event: &Event| match event.action {
            Action::Write { offset, .. } => Some(offset),
            _ => None,
        };
        let places = events.iter().filter_map(place).collect();
        let flushes = events.iter().filter(|event| matches!(event.action, Action::Flush)).count();
        Ok(Self { name: configuration.name.clone(), seed, bases, events, places, flushes, models, last })
    }

    /// Returns the number of writes.
    pub fn writes(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of flushes.
    pub fn flushes(&self) -> usize {
        self.flushes
    }

    /// Returns the size of each device in bytes.
    pub fn size(&self) -> u64 {
        self.bases[0].size()
    }

    /// Tells a lie, reads everything, writes a file, and reads everything again.
    ///
    /// # Errors
    /// A wrong answer that was believed.
    pub fn tell(&self, lie: Lie) -> Result<Seen, String> {
        let wrong = |reason: String| format!("{}, seed {}, {lie:?}: {reason}", self.name, self.seed);
        let devices = self.devices(lie);
        let fs = match FileSystem::from_devices(devices.clone(), &OpenOptions::new()) {
            Ok(fs) => fs,
            Err(papilio::Error::Superblock { .. }) => return Ok(Seen::Superblock),
            Err(_) => return Ok(Seen::Errors),
        };
        let generation = fs.superblock().raw.generation.0;
        let Some(models) = self.models.get(&generation) else {
            return Err(wrong(format!("generation {generation} was never committed")));
        };
        let seen = match read_any(&fs, models, false).map_err(wrong)? {
            true => Seen::Errors,
            false if generation < self.last => Seen::Older,
            false => Seen::Nothing,
        };
        drop(fs);
        // An error of any of these is an answer, too.
        if let Ok(fs) = FileSystem::from_devices(devices.clone(), &OpenOptions::new().write(true)) {
            let path = [b"/", NEW].concat();
            let _ = fs.write(&path[..], vec![0x5a; 1 << 20]).and_then(|()| fs.sync());
            drop(fs);
        }
        if let Ok(fs) = FileSystem::from_devices(devices, &OpenOptions::new()) {
            read_any(&fs, models, true).map_err(|reason| wrong(format!("after a write: {reason}")))?;
        }
        Ok(seen)
    }

    /// Returns the devices as a lie leaves them.
    fn devices(&self, lie: Lie) -> Vec<Arc<dyn Device>> {
        let devices: Vec<_> = self.bases.iter().map(MemoryDevice::snapshot).collect();
        let (mut write, mut flush) = (0, 0);
        for event in &self.events {
            let device = &devices[event.device];
            match &event.action {
                Action::Write { offset, data, .. } => {
                    let place = match lie {
                        Lie::Lost(number) if number == write => None,
                        Lie::Moved(number, other) if number == write => Some(self.places[other]),
                        Lie::Strayed(number, to) if number == write => Some(PhysicalAddress(to)),
                        Lie::Flush(number) if self.is_lost(number, flush, event.device) => None,
                        _ => Some(*offset),
                    };
                    let room = |place: PhysicalAddress| self.size().saturating_sub(place.get()) as usize;
                    if let Some(place) = place {
                        let kept = data.len().min(room(place));
                        device.write_at(&data[..kept], place).expect("memory takes it");
                    }
                    write += 1;
                }
                Action::Discard { offset, length } => {
                    device.discard(*offset, *length).expect("memory takes it");
                }
                Action::Flush => flush += 1,
            }
        }
        devices.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect()
    }

    /// Returns whether a write that is followed by the flush `next`, of any device, is one of those
    /// that the flush `number` of its own device should have made durable.
    fn is_lost(&self, number: usize, next: usize, device: usize) -> bool {
        let mut flushes = self.events.iter().filter(|event| matches!(event.action, Action::Flush));
        let of_device = |event: Option<&Event>| event.is_some_and(|event| event.device == device);
        // The flushes between are of other devices.
        next <= number
            && of_device(flushes.clone().nth(number))
            && !flushes.by_ref().skip(next).take(number - next).any(|event| event.device == device)
    }
}

/// Reads everything, which is what one of these models holds. Returns whether there was an error.
fn read_any(fs: &FileSystem, models: &[Model], new: bool) -> Result<bool, String> {
    let mut wrong = String::new();
    for model in models {
        match read(fs, model, new) {
            Err(reason) => wrong = reason,
            read => return read,
        }
    }
    Err(wrong)
}

/// Reads everything below the root. Returns whether there was an error; with `new`, the root may
/// have the writer's file.
fn read(fs: &FileSystem, model: &Model, new: bool) -> Result<bool, String> {
    let Ok(root) = fs.inode("/") else { return Ok(true) };
    let mut errors = false;
    let mut pending = vec![(Vec::new(), root, Model::root())];
    while let Some((path, inode, place)) = pending.pop() {
        let node = model.node(place);
        let at_root = path.is_empty();
        let wrong = |what: String| format!("{}/: {what}", path.escape_ascii());
        match inode.xattrs() {
            // The writer's file changes the size of the root.
            Ok(_) if at_root && new => {}
            Ok(_) => verify::metadata(&inode, node).map_err(&wrong)?,
            Err(_) => errors = true,
        }
        if let Err(reason) = verify::content(&inode, node)
            && !node.nodatacow
        {
            if can_be_read(&inode, node) {
                return Err(wrong(reason));
            }
            errors = true;
        }
        let Some(entries) = node.entries() else { continue };
        let Ok(found) = inode.read_dir().and_then(Iterator::collect::<Result<Vec<_>, _>>) else {
            errors = true;
            continue;
        };
        let ours = |name: &[u8]| new && at_root && name == NEW;
        let names: BTreeSet<_> =
            found.iter().map(|entry| entry.file_name()).filter(|name| !ours(name)).collect();
        if !names.iter().copied().eq(entries.keys().map(Vec::as_slice)) {
            return Err(wrong(format!("{} names, expected {}", names.len(), entries.len())));
        }
        for entry in found.iter().filter(|entry| !ours(entry.file_name())) {
            let Some(target) = model.target(place, entries[entry.file_name()]) else { continue };
            match entry.inode() {
                Ok(below) => pending.push(([&path, &b"/"[..], entry.file_name()].concat(), below, target)),
                Err(_) => errors = true,
            }
        }
    }
    Ok(errors)
}

/// Returns whether all content can be read.
fn can_be_read(inode: &Inode, node: &Node) -> bool {
    match &node.kind {
        NodeKind::Symlink(_) => inode.read_link().is_ok(),
        NodeKind::File(_) => inode.open().is_ok_and(|file| {
            let (mut buffer, mut at) = (vec![0; PIECE], 0);
            loop {
                match file.read_at(&mut buffer, at) {
                    Ok(0) => return true,
                    Ok(count) => at += count as u64,
                    Err(_) => return false,
                }
            }
        }),
        _ => true,
    }
}
