//! Random changes of streams.
//!
//! Owns [`HostileStream::mutated`] and the values that are likely to break a receiver: paths that
//! leave the subvolume, extreme numbers, and the names of other commands.

use super::stream::{Damage, HostileStream, RawCommand};
use fastrand::Rng;
use papilio_format::send_stream::{Attribute, CommandKind};

/// Boundary values of numbers.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    4095,
    4096,
    131_072,
    u16::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    1 << 44,
    i64::MAX as u64 - 4095,
    i64::MAX as u64,
    u64::MAX - 4095,
    u64::MAX,
];

/// Paths that no stream has, beside those of the streams. `up` and `abs` are symbolic links to
/// directories outside of the subvolume.
const PATHS: [&[u8]; 22] = [
    b"",
    b".",
    b"..",
    b"/",
    b"//",
    b"../kept",
    b"../kept/file",
    b"a/../../kept/file",
    b"/kept/file",
    b"/kept",
    b"up",
    b"up/kept/file",
    b"up/old/file",
    b"abs",
    b"abs/file",
    b"directory/",
    b"directory//file",
    b"directory/./file",
    b"file/below",
    b"inner/file",
    b"a\0b",
    b"\xff\xfe",
];

/// The attribute of an attribute's number, and where its value lies.
struct Slot {
    number: u16,
    header: usize,
    start: usize,
    end: usize,
}

impl HostileStream {
    /// Returns one of `bases` with random changes. The same seed gives the same stream.
    ///
    /// # Panics
    /// If there is no base.
    pub fn mutated(bases: &[Self], seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut stream = bases[random.usize(..bases.len())].clone();
        let commands = &mut stream.commands;
        if random.u8(..4) > 0 && commands.len() > 2 {
            // Most streams keep a part only, so that many are tried.
            let from = random.usize(1..commands.len());
            let length = random.usize(..commands.len() - from);
            commands.drain(from..from + length);
        }
        for _ in 0..random.usize(..7) {
            change(commands, bases, &mut random);
        }
        if random.u8(..32) == 0 {
            stream.version = [0, 1, 2, 3, u32::MAX][random.usize(..5)];
        }
        stream.damage = match random.u8(..16) {
            0 => Damage::Cut(random.usize(..1 << 30)),
            1 => Damage::Flip(random.usize(..1 << 30)),
            _ => Damage::None,
        };
        stream
    }
}

/// Changes the list of commands, or one of them.
fn change(commands: &mut Vec<RawCommand>, bases: &[HostileStream], random: &mut Rng) {
    let Some(last) = commands.len().checked_sub(1) else { return };
    let at = random.usize(..=last);
    match random.u8(..16) {
        0 => drop(commands.remove(at)),
        1 => commands.insert(random.usize(..=last), commands[at].clone()),
        2 => commands.swap(at, random.usize(..=last)),
        3..6 => {
            let other = &bases[random.usize(..bases.len())].commands;
            let from = random.usize(..other.len());
            let count = random.usize(..=(other.len() - from).min(8));
            commands.splice(at..at, other[from..from + count].iter().cloned());
        }
        6 => commands[at].number = random.u16(..30),
        7 => commands.truncate(at),
        8 => {
            let end = RawCommand { number: CommandKind::End as u16, attributes: Vec::new() };
            commands.insert(at, end);
        }
        _ => change_attribute(&mut commands[at].attributes, bases, random),
    }
}

/// Finds the attributes of a command; the bytes may be anything.
fn slots(bytes: &[u8]) -> Vec<Slot> {
    let (mut slots, mut header) = (Vec::new(), 0);
    while header + 4 <= bytes.len() {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let start = header + 4;
        let end = (start + usize::from(half(header + 2))).min(bytes.len());
        slots.push(Slot { number: half(header), header, start, end });
        header = end;
    }
    slots
}

fn change_attribute(bytes: &mut Vec<u8>, bases: &[HostileStream], random: &mut Rng) {
    let found = slots(bytes);
    if found.is_empty() {
        bytes.extend((0..random.usize(..9)).map(|_| random.u8(..)));
        return;
    }
    let slot = &found[random.usize(..found.len())];
    match random.u8(..8) {
        // The length is then a lie about what follows.
        0 => bytes[slot.header + 2] = random.u8(..),
        1 => bytes[slot.header] = random.u8(..34),
        2 => drop(bytes.drain(slot.header..slot.end)),
        _ => {
            let value = value(slot, &bytes[slot.start..slot.end], bases, random);
            let length = (value.len() as u16).to_le_bytes();
            bytes.splice(slot.start..slot.end, value);
            bytes[slot.header + 2..slot.header + 4].copy_from_slice(&length);
        }
    }
}

/// Returns another value of an attribute.
fn value(slot: &Slot, old: &[u8], bases: &[HostileStream], random: &mut Rng) -> Vec<u8> {
    const NAMES: [u16; 5] = [
        Attribute::Path as u16,
        Attribute::PathTo as u16,
        Attribute::PathLink as u16,
        Attribute::ClonePath as u16,
        Attribute::XattrName as u16,
    ];
    if NAMES.contains(&slot.number) && random.u8(..8) > 0 {
        return path(bases, random);
    }
    let mut value = old.to_vec();
    match random.u8(..6) {
        0..3 if matches!(value.len(), 4 | 8) => {
            let number = EDGES[random.usize(..EDGES.len())].wrapping_add(random.u64(..2));
            value.copy_from_slice(&number.to_le_bytes()[..old.len()]);
        }
        3 => value.truncate(random.usize(..=old.len())),
        4 => value.extend((0..random.usize(..20)).map(|_| random.u8(..))),
        _ if !value.is_empty() => {
            let at = random.usize(..value.len());
            value[at] = if random.bool() { value[at] ^ 1 << random.u8(..8) } else { random.u8(..) };
        }
        _ => value.push(random.u8(..)),
    }
    value
}

/// Returns a path: a hostile one, one of any stream, or two joined.
fn path(bases: &[HostileStream], random: &mut Rng) -> Vec<u8> {
    match random.u8(..8) {
        0..3 => PATHS[random.usize(..PATHS.len())].to_vec(),
        3 => vec![b'n'; random.usize(250..=260)],
        4 => [PATHS[random.usize(..PATHS.len())], b"/", &path_of_stream(bases, random)].concat(),
        _ => path_of_stream(bases, random),
    }
}

fn path_of_stream(bases: &[HostileStream], random: &mut Rng) -> Vec<u8> {
    let commands = &bases[random.usize(..bases.len())].commands;
    let attributes = &commands[random.usize(..commands.len())].attributes;
    let named = slots(attributes).into_iter().find(|slot| slot.number == Attribute::Path as u16);
    named.map_or_else(|| b"file".to_vec(), |slot| attributes[slot.start..slot.end].to_vec())
}
