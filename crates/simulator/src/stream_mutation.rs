//! Mutations of send streams: commands are removed, repeated, moved, exchanged between streams, and
//! their attributes changed.
//!
//! Owns [`RawStream`] and the decoding of bytes into changes, so that a fuzzer's corpus and a seed
//! mean the same. Each command's length and checksum are computed anew, unless the change is of the
//! bytes themselves.

use papilio_format::checksum::crc32c_raw;
use papilio_format::send_stream::{
    Attribute, COMMAND_HEADER_SIZE, CommandKind, Protocol, STREAM_HEADER_SIZE,
};

/// Bytes that encode one change.
pub(crate) const CHANGE: usize = 12;
/// Maximum number of changes per stream.
const LIMIT: usize = 16;
/// Commands of a stream, at most.
const COMMANDS: usize = 400;
/// Bytes of an attribute, at most.
const ATTRIBUTE: usize = 200_000;

/// Boundary values of numbers.
const EDGES: [u64; 16] = [
    0,
    1,
    511,
    4095,
    4096,
    4097,
    u16::MAX as u64,
    128 << 10,
    (128 << 10) + 1,
    16 << 20,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64 - 4095,
    i64::MAX as u64,
    u64::MAX - 4095,
    u64::MAX,
];

/// Paths that lead out of a subvolume, or are no paths.
const HOSTILE: [&[u8]; 16] = [
    b"",
    b".",
    b"..",
    b"/",
    b"//",
    b"../bystander",
    b"../bystander/f",
    b"/bystander/f",
    b"bystander",
    b"./f",
    b"d/..",
    b"d/../../bystander/f",
    b"f\0g",
    b"d//f",
    b"d/",
    &[b'n'; 256],
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct RawCommand {
    kind: u16,
    attributes: Vec<(u16, Vec<u8>)>,
}

/// A stream as commands and attributes, which need not be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawStream {
    protocol: Protocol,
    commands: Vec<RawCommand>,
}

fn short(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn is_path(attribute: u16) -> bool {
    let paths = [Attribute::Path, Attribute::PathTo, Attribute::PathLink, Attribute::ClonePath];
    paths.iter().any(|path| *path as u16 == attribute)
}

impl RawStream {
    /// Splits a stream that a sender made.
    ///
    /// # Panics
    /// If the stream is not well formed.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let header = bytes[..STREAM_HEADER_SIZE].try_into().expect("the slice has this length");
        let protocol = Protocol::parse(header).expect("a sender made the stream");
        let mut commands = Vec::new();
        let mut rest = &bytes[STREAM_HEADER_SIZE..];
        while !rest.is_empty() {
            let (head, after) = rest.split_at(COMMAND_HEADER_SIZE);
            let (mut body, next) = after.split_at(word(head) as usize);
            let mut attributes = Vec::new();
            while !body.is_empty() {
                let attribute = short(body);
                let unsized_data = attribute == Attribute::Data as u16 && protocol >= Protocol::V2;
                let (value, others) = match unsized_data {
                    true => (&body[2..], &body[body.len()..]),
                    false => body[4..].split_at(usize::from(short(&body[2..]))),
                };
                attributes.push((attribute, value.to_vec()));
                body = others;
            }
            commands.push(RawCommand { kind: short(&head[4..]), attributes });
            rest = next;
        }
        Self { protocol, commands }
    }

    /// Returns the number of commands.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns the stream with its header, lengths and checksums.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.protocol.header().to_vec();
        for command in &self.commands {
            let start = out.len();
            out.extend([0; COMMAND_HEADER_SIZE]);
            for (attribute, value) in &command.attributes {
                out.extend(attribute.to_le_bytes());
                if *attribute != Attribute::Data as u16 || self.protocol == Protocol::V1 {
                    out.extend((value.len() as u16).to_le_bytes());
                }
                out.extend(value);
            }
            let length = out.len() - start - COMMAND_HEADER_SIZE;
            out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
            out[start + 4..start + 6].copy_from_slice(&command.kind.to_le_bytes());
            let crc = crc32c_raw(0, &out[start..]);
            out[start + 6..start + COMMAND_HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
        }
        out
    }

    /// Returns the bytes of the stream with the changes that `plan` encodes. Commands and paths
    /// also come from `pool`.
    ///
    /// A change takes 12 bytes: its kind, a choice of the kind, the attribute and a boundary value
    /// (1 each), a command and another one (2 each), and a value (4).
    pub(crate) fn mutated(&self, pool: &[Self], plan: &[u8]) -> Vec<u8> {
        let mut stream = self.clone();
        let changes = || plan.chunks_exact(CHANGE).take(LIMIT);
        for change in changes().filter(|change| change[0] % 32 < 30) {
            stream.change(pool, change);
        }
        let mut bytes = stream.to_bytes();
        for change in changes().filter(|change| change[0] % 32 >= 30) {
            let at = word(&change[8..]) as usize % bytes.len().max(1);
            match change[0] % 32 {
                30 => bytes.truncate(at),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (change[1] % 8)),
            }
        }
        bytes
    }

    fn change(&mut self, pool: &[Self], change: &[u8]) {
        if self.commands.is_empty() {
            return;
        }
        let count = self.commands.len();
        let (at, other) =
            (usize::from(short(&change[4..])) % count, usize::from(short(&change[6..])) % count);
        let value = word(&change[8..]);
        let foreign = &pool[value as usize % pool.len()];
        match change[0] % 32 {
            0 | 1 => drop(self.commands.remove(at)),
            2 if count < COMMANDS => self.commands.insert(other, self.commands[at].clone()),
            3 => self.commands.swap(at, other),
            4 => {
                let moved = self.commands.remove(at);
                self.commands.insert(other.min(self.commands.len()), moved);
            }
            5..=8 if count < COMMANDS => {
                let from = usize::from(short(&change[6..])) % foreign.commands.len();
                self.commands.insert(at, foreign.commands[from].clone());
            }
            9 => self.commands.truncate(at),
            10 => self.commands[at].kind = u16::from(change[1]) % (CommandKind::ALL.len() as u16 + 3),
            11 => self.protocol = if change[1].is_multiple_of(2) { Protocol::V1 } else { Protocol::V2 },
            12..=16 => {
                let path = foreign.path(usize::from(short(&change[6..])), usize::from(change[2]));
                self.commands[at].set_path(change[2], &path);
            }
            17 | 18 => self.commands[at].set_path(change[2], HOSTILE[usize::from(change[3]) % HOSTILE.len()]),
            _ => self.commands[at].change(change, value),
        }
    }

    /// Returns a path of a command, or of one after it.
    fn path(&self, command: usize, choice: usize) -> Vec<u8> {
        let count = self.commands.len();
        let after = (0..count).map(|step| &self.commands[(command + step) % count]);
        let paths = after.map(|command| {
            let paths: Vec<_> = command.attributes.iter().filter(|(kind, _)| is_path(*kind)).collect();
            (!paths.is_empty()).then(|| paths[choice % paths.len()].1.clone())
        });
        paths.flatten().next().unwrap_or_default()
    }
}

impl RawCommand {
    fn set_path(&mut self, choice: u8, path: &[u8]) {
        let paths: Vec<_> = self.attributes.iter_mut().filter(|(kind, _)| is_path(*kind)).collect();
        let count = paths.len().max(1);
        if let Some((_, value)) = paths.into_iter().nth(usize::from(choice) % count) {
            *value = path.to_vec();
        }
    }

    /// Changes one attribute.
    fn change(&mut self, change: &[u8], value: u32) {
        let count = self.attributes.len();
        if count == 0 {
            return;
        }
        let chosen = usize::from(change[2]) % count;
        let bytes = &mut self.attributes[chosen].1;
        let edge = EDGES[usize::from(change[3]) % EDGES.len()];
        match change[0] % 32 {
            19 => drop(self.attributes.remove(chosen)),
            20 => self.attributes.push(self.attributes[chosen].clone()),
            21 => self.attributes[chosen].0 = u16::from(change[1]) % 36,
            22 => {
                let length = (edge as usize).min(ATTRIBUTE);
                bytes.resize(
                    if change[1].is_multiple_of(2) { length } else { value as usize % 64 },
                    change[1],
                );
            }
            23 => {
                let at = value as usize % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (change[1] % 8));
            }
            _ => {
                let number: &mut [u8] = match bytes.len() {
                    4 | 8 => bytes,
                    _ => return self.change_number(change, value),
                };
                set_number(number, change, value, edge);
            }
        }
    }

    /// Changes a number, wherever the command has one.
    fn change_number(&mut self, change: &[u8], value: u32) {
        let edge = EDGES[usize::from(change[3]) % EDGES.len()];
        let numbers = self.attributes.iter_mut().filter(|(kind, bytes)| !is_path(*kind) && bytes.len() == 8);
        let numbers: Vec<_> = numbers.collect();
        let count = numbers.len().max(1);
        if let Some((_, bytes)) = numbers.into_iter().nth(usize::from(change[2]) % count) {
            set_number(bytes, change, value, edge);
        }
    }
}

fn set_number(bytes: &mut [u8], change: &[u8], value: u32, edge: u64) {
    let mut old = [0; 8];
    old[..bytes.len()].copy_from_slice(bytes);
    let old = u64::from_le_bytes(old);
    let new = match change[1] % 4 {
        0 => edge,
        1 => old.wrapping_add(u64::from(value % 65)).wrapping_sub(32),
        2 => u64::from(value % (1 << 20)) & !4095,
        _ => u64::from(value % (1 << 18)),
    };
    bytes.copy_from_slice(&new.to_le_bytes()[..bytes.len()]);
}

/// Returns how many subvolumes a stream completes at most: the ends and later beginnings among the
/// commands in front of the first whose bytes are damaged.
pub(crate) fn ends_of(bytes: &[u8]) -> usize {
    let (mut ends, mut rest, mut open) = (0, bytes, false);
    let mut in_stream = false;
    loop {
        if !in_stream {
            let Some((_, after)) = rest.split_at_checked(STREAM_HEADER_SIZE) else { return ends };
            (rest, in_stream) = (after, true);
        }
        let Some((head, after)) = rest.split_at_checked(COMMAND_HEADER_SIZE) else { return ends };
        let Some((body, next)) = after.split_at_checked(word(head) as usize) else { return ends };
        let unsummed = [&head[..6], &[0; 4]].concat();
        if crc32c_raw(crc32c_raw(0, &unsummed), body) != word(&head[6..]) {
            return ends;
        }
        let kind = short(&head[4..]);
        if kind == CommandKind::End as u16 {
            ends += usize::from(open);
            (open, in_stream) = (false, false);
        } else if kind == CommandKind::Subvol as u16 || kind == CommandKind::Snapshot as u16 {
            ends += usize::from(open);
            open = true;
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::Uuid;
    use papilio_format::send_stream::Command;

    fn stream() -> Vec<u8> {
        let mut bytes = Protocol::V2.header().to_vec();
        let data = vec![7; 70_000];
        for command in [
            Command::Subvol { path: b"s".to_vec(), uuid: Uuid::from_u128(1), ctransid: 9 },
            Command::Mkfile { path: b"f".to_vec(), inode: 257 },
            Command::Write { path: b"f".to_vec(), offset: 0, data },
            Command::End,
        ] {
            command.append_to(Protocol::V2, &mut bytes).unwrap();
        }
        bytes
    }

    #[test]
    fn an_unchanged_stream_keeps_its_bytes() {
        let bytes = stream();
        let raw = RawStream::parse(&bytes);
        assert_eq!(raw.len(), 4);
        assert!(raw.mutated(&[], &[]) == bytes);
        assert_eq!(ends_of(&bytes), 1);
        assert_eq!(ends_of(&bytes[..bytes.len() - 1]), 0);
        let mut damaged = bytes;
        damaged[STREAM_HEADER_SIZE + COMMAND_HEADER_SIZE] ^= 1;
        assert_eq!(ends_of(&damaged), 0);
    }

    #[test]
    fn changed_commands_have_valid_checksums() {
        let raw = RawStream::parse(&stream());
        let pool = [raw.clone()];
        let mut seen = 0;
        for seed in 0..500_u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut plan: Vec<u8> = (0..CHANGE * 2).map(|_| random.u8(..)).collect();
            // No change of bytes, and none of the last command.
            plan[0] %= 9;
            plan[CHANGE] = 24;
            let bytes = raw.mutated(&pool, &plan);
            let again = RawStream::parse(&bytes);
            assert!(again.to_bytes() == bytes, "seed {seed}");
            seen += usize::from(again != raw);
        }
        assert!(seen > 300, "{seen} streams changed");
    }
}
