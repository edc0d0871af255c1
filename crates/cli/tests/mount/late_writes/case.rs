//! A case: an operation on an open file after a change of state, on one way, and its outcome.

/// The operation after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Write,
    Append,
    Overwrite,
    Allocate,
    PunchHole,
    Truncate,
    RenameOver,
    /// Only makes durable what was written before the change.
    Sync,
}

const OPERATIONS: [Operation; 8] = [
    Operation::Write,
    Operation::Append,
    Operation::Overwrite,
    Operation::Allocate,
    Operation::PunchHole,
    Operation::Truncate,
    Operation::RenameOver,
    Operation::Sync,
];

/// The change of state. A new state is an entry here, and a step in `descriptor` and `library`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    ReadOnly,
    Deleted,
    Received,
    Immutable,
    AppendOnly,
    /// A read-only snapshot of the subvolume, which must not get the later write.
    Snapshot,
    /// Read-only and writable again.
    ThereAndBack,
    /// Another file takes all free space.
    DiskFull,
    /// The subvolume has more than its new limit allows.
    LimitReached,
    /// One of the two devices of a mirror fails for good.
    DeviceMissing,
}

const CHANGES: [Change; 11] = [
    Change::ReadOnly,
    Change::Deleted,
    Change::Received,
    Change::Immutable,
    Change::AppendOnly,
    Change::Snapshot,
    Change::ThereAndBack,
    Change::Nothing,
    Change::DiskFull,
    Change::LimitReached,
    Change::DeviceMissing,
];

/// The way to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Buffered,
    Direct,
    Mapped,
    /// The file is a disk that a server of NBD shows.
    Nbd,
    Library,
    Queue,
    /// A client of our server of NFS.
    Nfs,
    /// The functions of the C interface.
    C,
}

const WAYS: [Way; 8] =
    [Way::Buffered, Way::Library, Way::Direct, Way::Nfs, Way::Mapped, Way::Queue, Way::Nbd, Way::C];

/// How the program asks for durable data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    Fsync,
    FileSystemSync,
    /// It only closes the file.
    Close,
}

const DURABLE: [Durable; 3] = [Durable::Fsync, Durable::FileSystemSync, Durable::Close];

/// Small random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    pub number: u64,
    pub operation: Operation,
    pub change: Change,
    pub way: Way,
    pub durable: Durable,
    /// Whether the program has unsynced data when the state changes.
    pub dirty: bool,
    /// Whether the file has NODATACOW.
    pub nocow: bool,
    /// Whether the file is new and was never written when the state changes.
    pub empty: bool,
}

/// The unit of offsets and lengths, which direct I/O needs.
pub const BLOCK: usize = 4096;

impl Case {
    /// Returns the case with a number. Every combination of way, change and operation occurs within
    /// the first 704.
    pub fn new(number: u64) -> Self {
        let mut random = Random(number);
        // Spread, so that few cases have all ways, changes and operations.
        let mixed = (number * 133 + 7) % 704;
        let pick = |of: u64| (mixed / of) as usize;
        let way = WAYS[pick(1) % 8];
        let change = match CHANGES[pick(8) % 11] {
            // The C interface has no limits.
            Change::LimitReached if way == Way::C => Change::Nothing,
            change => change,
        };
        Self {
            number,
            way,
            change,
            operation: OPERATIONS[pick(88) % 8],
            durable: DURABLE[random.below(3)],
            dirty: random.below(2) == 0,
            nocow: random.below(4) == 0,
            // A disk has bytes.
            empty: random.below(5) == 0 && way != Way::Nbd,
        }
    }

    pub fn is_on_a_mount(&self) -> bool {
        matches!(self.way, Way::Buffered | Way::Direct | Way::Mapped | Way::Nbd)
    }

    /// Returns whether a write may fail for want of space.
    pub fn is_scarce(&self) -> bool {
        matches!(self.change, Change::DiskFull | Change::LimitReached)
    }

    /// Returns whether the case has a file system of its own.
    pub fn is_alone(&self) -> bool {
        self.change == Change::DeviceMissing
    }

    /// The random numbers of the case's content.
    pub fn random(&self) -> Random {
        Random(self.number.wrapping_mul(0x5851_f42d_4c95_7f2d))
    }

    pub fn subvolume(&self) -> String {
        format!("c{}", self.number)
    }

    pub fn path(&self) -> String {
        format!("/c{}/f", self.number)
    }

    /// A file that is written beside the case, outside of its subvolume.
    pub fn bystander(&self) -> String {
        format!("/b{}", self.number)
    }

    pub fn bystander_content(&self) -> Vec<u8> {
        vec![self.number as u8; 5000]
    }

    /// The content of the file at first.
    pub fn initial(&self, random: &mut Random) -> Vec<u8> {
        let blocks = if self.empty { 0 } else { 2 + random.below(40) };
        random.bytes(blocks * BLOCK)
    }

    /// Returns the write that the operation makes, if it is one.
    pub fn write(&self, random: &mut Random, size: usize) -> Option<(usize, Vec<u8>)> {
        let blocks = size / BLOCK;
        let length = (1 + random.below(6)) * BLOCK;
        let offset = match self.operation {
            Operation::Write => random.below(blocks + 20) * BLOCK,
            Operation::Append => size,
            Operation::Overwrite if blocks > 0 => random.below(blocks) * BLOCK,
            Operation::Overwrite => 0,
            _ => return None,
        };
        if self.way == Way::Nbd {
            // A disk does not grow.
            let length = length.min(size);
            return Some((offset.min(size - length), random.bytes(length)));
        }
        let length = if self.operation == Operation::Overwrite && size > 0 {
            length.min(size - offset)
        } else {
            length
        };
        Some((offset, random.bytes(length)))
    }
}

/// The answers that a program got, and the content that follows from them.
#[derive(Debug)]
pub struct Outcome {
    /// Each step with its error number.
    pub steps: Vec<(&'static str, Option<i32>)>,
    /// The contents that an error allows, in any mixture: the first one, the one before the
    /// operation, and the one after it.
    pub allowed: [Vec<u8>; 3],
    /// The content if all was stored that was acknowledged; `None` for a file that is gone.
    pub after: Option<Vec<u8>>,
    /// Whether an error says that acknowledged data is not stored.
    pub lost: bool,
}

impl Outcome {
    /// Compares the content that was found with what the program was told.
    pub fn verify(&self, found: Option<&[u8]>, what: &str) {
        match (found, &self.after) {
            (None, None) => {}
            (Some(found), Some(after)) => {
                let differs = found.iter().zip(after).position(|(found, after)| found != after);
                assert!(
                    found == &after[..] || self.lost && self.allows(found),
                    "{what}: {} bytes instead of {}, first difference at {differs:?}",
                    found.len(),
                    after.len(),
                );
            }
            (found, after) => {
                panic!("{what}: there is a file: {}, expected: {}", found.is_some(), after.is_some());
            }
        }
    }
}

impl Outcome {
    fn allows(&self, found: &[u8]) -> bool {
        let lengths = self.allowed.iter().map(Vec::len);
        let (least, most) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
        let is = |at: usize, byte| self.allowed.iter().any(|one| one.get(at).copied().unwrap_or(0) == byte);
        (least..=most).contains(&found.len()) && found.iter().enumerate().all(|(at, byte)| is(at, *byte))
    }
}

/// Writes `data` to a content at `offset`.
pub fn put(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if content.len() < offset + data.len() {
        content.resize(offset + data.len(), 0);
    }
    content[offset..offset + data.len()].copy_from_slice(data);
}
