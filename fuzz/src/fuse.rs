//! Messages of the FUSE protocol: every operation that the kernel sends, with arguments of the
//! kinds that it has, before a target changes bytes of them.
//!
//! Owns [`Message`]. The layouts are written down here once more, from `include/uapi/linux/fuse.h`,
//! so that a mistake in the server's own is found.

use crate::number;
use arbitrary::{Arbitrary, Result, Unstructured};

/// Length of a request's header.
pub const HEADER: usize = 40;

/// A field of an operation's argument.
#[derive(Clone, Copy)]
enum Field {
    /// Zeros, of 4 bytes.
    Zero,
    /// Any 4 bytes.
    Word,
    /// Any 8 bytes.
    Long,
    /// A node.
    Node,
    /// A handle of an open directory.
    Handle,
    /// A file offset or a length.
    Offset,
    /// A number of bytes below 2 MiB.
    Size,
    /// The flags of `open`.
    Open,
    /// A mode with its file type.
    Mode,
    /// Flags, few bits of them set.
    Flags,
    /// The number of payload bytes, as `write` has it.
    PayloadSize,
    /// The number of bytes of a value.
    ValueSize,
    /// The number of forgotten nodes.
    Count,
    /// An ioctl's command; the sizes of its input and its output follow an address.
    Ioctl,
}
use Field::{
    Count, Flags, Handle, Ioctl, Long, Mode, Node, Offset, Open, PayloadSize, Size, ValueSize, Word, Zero,
};

/// The part of a message after the argument.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payload {
    Nothing,
    Name,
    TwoNames,
    Data,
    NameAndValue,
    Nodes,
    Input,
}

/// The operations: number, argument, payload.
const OPERATIONS: &[(u32, &[Field], Payload)] = &[
    (1, &[], Payload::Name),
    (2, &[Long], Payload::Nothing),
    (3, &[Flags, Zero, Handle], Payload::Nothing),
    (
        4,
        &[
            Flags, Zero, Handle, Offset, Long, Long, Long, Long, Word, Word, Word, Mode, Zero, Word, Word,
            Zero,
        ],
        Payload::Nothing,
    ),
    (5, &[], Payload::Nothing),
    (6, &[], Payload::TwoNames),
    (8, &[Mode, Word, Flags, Zero], Payload::Name),
    (9, &[Mode, Flags], Payload::Name),
    (10, &[], Payload::Name),
    (11, &[], Payload::Name),
    (12, &[Node], Payload::TwoNames),
    (13, &[Node], Payload::Name),
    (14, &[Open, Flags], Payload::Nothing),
    (15, &[Handle, Offset, Size, Flags, Long, Open, Zero], Payload::Nothing),
    (16, &[Handle, Offset, PayloadSize, Flags, Long, Open, Zero], Payload::Data),
    (17, &[], Payload::Nothing),
    (18, &[Handle, Open, Flags, Long], Payload::Nothing),
    (20, &[Handle, Flags, Zero], Payload::Nothing),
    (21, &[ValueSize, Flags], Payload::NameAndValue),
    (22, &[Size, Zero], Payload::Name),
    (23, &[Size, Zero], Payload::Nothing),
    (24, &[], Payload::Name),
    (25, &[Handle, Zero, Zero, Long], Payload::Nothing),
    (26, &[Flags, Word, Size, Word, Word, Long, Long, Long, Long, Long, Zero], Payload::Nothing),
    (27, &[Open, Flags], Payload::Nothing),
    (28, &[Handle, Offset, Size, Flags, Long, Open, Zero], Payload::Nothing),
    (29, &[Handle, Open, Flags, Long], Payload::Nothing),
    (30, &[Handle, Flags, Zero], Payload::Nothing),
    (31, &[Handle, Long, Offset, Offset, Word, Word, Flags, Zero], Payload::Nothing),
    (34, &[Flags, Zero], Payload::Nothing),
    (35, &[Open, Mode, Flags, Zero], Payload::Name),
    (36, &[Long], Payload::Nothing),
    (39, &[Handle, Flags, Ioctl], Payload::Input),
    (42, &[Count, Zero], Payload::Nodes),
    (43, &[Handle, Offset, Offset, Flags, Zero], Payload::Nothing),
    (44, &[Handle, Offset, Size, Flags, Long, Open, Zero], Payload::Nothing),
    (45, &[Node, Flags, Zero], Payload::TwoNames),
    (46, &[Handle, Offset, Flags, Zero], Payload::Nothing),
    (47, &[Handle, Offset, Node, Handle, Offset, Offset, Long], Payload::Nothing),
    (50, &[Long], Payload::Nothing),
    (51, &[Open, Mode, Flags, Zero], Payload::Name),
    (52, &[Flags, Zero, Handle, Flags, Word], Payload::Nothing),
    (53, &[Handle, Offset, Node, Handle, Offset, Offset, Long], Payload::Nothing),
];

/// Names that a short sequence of requests meets again.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"dir",
    b"file",
    b"user.x",
    b"security.capability",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"btrfs.compression",
    b".",
    b"..",
    b"",
    b"a/b",
    &[b'n'; 255],
    &[b'l'; 256],
    &[b'p'; 4096],
];

/// Numbers of the ioctls that the server knows, without their sizes: type and number.
const IOCTLS: &[u16] = &[
    0x6601, 0x6602, 0x7601, 0x581f, 0x5820, 0x5879, 0x9431, 0x9432, 0x9401, 0x9403, 0x9408, 0x940e, 0x940f,
    0x9411, 0x9412, 0x9413, 0x9414, 0x9416, 0x9417, 0x9418, 0x9419, 0x941a, 0x941e, 0x941f, 0x9423, 0x9424,
    0x9426, 0x9434, 0x9439, 0x943b, 0x943c, 0x943d, 0x943e, 0x943f, 0xbd01, 0xbd02, 0xbd03, 0xbd04, 0xbd05,
    0xbd06,
];
/// The sizes that go with them.
const IOCTL_SIZES: &[u32] = &[0, 4, 8, 16, 24, 28, 56, 72, 112, 200, 256, 504, 1024, 1032, 4096, 16383];

/// A message of the kernel, and whether the kernel could have sent it.
#[derive(Clone, Debug)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The lengths fit, and no bytes were changed.
    pub valid: bool,
}

impl Message {
    /// Generates a message that concerns one of `nodes` and `handles`, into the memory of the
    /// previous one. Some messages are then changed, cut off or extended.
    pub fn generate(&mut self, input: &mut Unstructured<'_>, nodes: &[u64], handles: &[u64]) -> Result<()> {
        let (operation, fields, payload) = *input.choose(OPERATIONS)?;
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.resize(HEADER, 0);
        let mut sizes = Sizes::default();
        for field in fields {
            put_field(bytes, *field, input, nodes, handles, &mut sizes)?;
        }
        let argument = bytes.len();
        put_payload(bytes, payload, input, nodes, &mut sizes)?;
        let payload_length = bytes.len() - argument;
        sizes.fill_in(bytes, payload_length);
        bytes[4..8].copy_from_slice(&operation.to_ne_bytes());
        bytes[8..16].copy_from_slice(&u64::from(input.arbitrary::<u16>()?).to_ne_bytes());
        bytes[16..24].copy_from_slice(&choose(input, nodes)?.to_ne_bytes());
        let user: u32 = if input.ratio(1, 8)? { 1000 } else { 0 };
        bytes[24..28].copy_from_slice(&user.to_ne_bytes());
        bytes[28..32].copy_from_slice(&user.to_ne_bytes());
        self.valid = !input.ratio(1, 3)?;
        if !self.valid {
            change(bytes, input)?;
        }
        // The length is right in most messages; otherwise the decoder looks at nothing else.
        let length = if !self.valid && input.ratio(1, 16)? { input.arbitrary()? } else { bytes.len() as u32 };
        if let Some(field) = bytes.first_chunk_mut::<4>() {
            *field = length.to_ne_bytes();
        }
        // No process has this number: the server must not look at one that is there by chance.
        if let Some(pid) = bytes.get_mut(32..36) {
            pid.fill(0);
        }
        Ok(())
    }

    /// Creates a message without bytes.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), valid: false }
    }
}

impl Default for Message {
    fn default() -> Self {
        Self::new()
    }
}

/// Offsets of fields whose values follow from the payload.
#[derive(Default)]
struct Sizes {
    payload: Option<usize>,
    value: Option<(usize, u32)>,
    count: Option<(usize, u32)>,
    input: Option<usize>,
}

impl Sizes {
    fn fill_in(&self, bytes: &mut [u8], payload: usize) {
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self.payload.into_iter().chain(self.input).for_each(|at| put(at, payload as u32));
        self.value.into_iter().chain(self.count).for_each(|(at, value)| put(at, value));
    }
}

fn choose(input: &mut Unstructured<'_>, from: &[u64]) -> Result<u64> {
    if from.is_empty() || input.ratio(1, 16)? { number(input) } else { Ok(*input.choose(from)?) }
}

fn put_field(
    bytes: &mut Vec<u8>,
    field: Field,
    input: &mut Unstructured<'_>,
    nodes: &[u64],
    handles: &[u64],
    sizes: &mut Sizes,
) -> Result<()> {
    let at = bytes.len();
    match field {
        Field::Long => bytes.extend(number(input)?.to_ne_bytes()),
        Field::Offset => {
            // Near one another mostly, so that requests meet.
            let offset =
                if input.ratio(1, 8)? { number(input)? } else { u64::from(input.arbitrary::<u16>()?) };
            bytes.extend(offset.to_ne_bytes());
        }
        Field::Node => bytes.extend(choose(input, nodes)?.to_ne_bytes()),
        Field::Handle => bytes.extend(choose(input, handles)?.to_ne_bytes()),
        Field::Ioctl => {
            let command = u32::from(*input.choose(IOCTLS)?);
            let size = *input.choose(IOCTL_SIZES)?;
            let command = command | size << 16 | u32::from(input.arbitrary::<u8>()? & 3) << 30;
            bytes.extend(command.to_ne_bytes());
            bytes.extend([0; 8]);
            sizes.input = Some(bytes.len());
            bytes.extend([0; 4]);
            bytes.extend(size.to_ne_bytes());
        }
        _ => {
            let word = match field {
                Field::Zero | Field::PayloadSize | Field::ValueSize | Field::Count => 0,
                Field::Size => match input.arbitrary::<u8>()? {
                    few @ 0..128 => u32::from(few) * 8,
                    more => u32::from(more) << 13,
                },
                Field::Open => {
                    let access = u32::from(input.arbitrary::<u8>()? % 3);
                    let others = [0, 0o100, 0o200, 0o1000, 0o2000, 0o40000, 0o1002000];
                    access | *input.choose(&others)?
                }
                Field::Mode => {
                    let kinds =
                        [0o100_000, 0o040_000, 0o010_000, 0o140_000, 0o020_000, 0o060_000, 0o120_000, 0];
                    *input.choose(&kinds)? | u32::from(input.arbitrary::<u16>()? & 0o7777)
                }
                Field::Flags => match input.arbitrary::<u16>()? {
                    few @ 0..0x8000 => u32::from(few) & 0xf,
                    more => u32::from(more) & 0xfff,
                },
                _ => input.arbitrary()?,
            };
            bytes.extend(word.to_ne_bytes());
        }
    }
    match field {
        Field::PayloadSize => sizes.payload = Some(at),
        Field::ValueSize => sizes.value = Some((at, 0)),
        Field::Count => sizes.count = Some((at, 0)),
        _ => {}
    }
    Ok(())
}

fn put_payload(
    bytes: &mut Vec<u8>,
    payload: Payload,
    input: &mut Unstructured<'_>,
    nodes: &[u64],
    sizes: &mut Sizes,
) -> Result<()> {
    match payload {
        Payload::Nothing => {}
        Payload::Name => put_name(bytes, input)?,
        Payload::TwoNames => {
            put_name(bytes, input)?;
            put_name(bytes, input)?;
        }
        Payload::Data => {
            let length = usize::from(input.arbitrary::<u16>()?) % 9000;
            bytes.resize(bytes.len() + length, input.arbitrary()?);
        }
        Payload::NameAndValue => {
            put_name(bytes, input)?;
            let before = bytes.len();
            let length = usize::from(input.arbitrary::<u8>()?);
            let length = if length < 200 { length } else { length << 8 };
            let value = input.bytes(length.min(64).min(input.len()))?;
            bytes.extend(value);
            bytes.resize(before + length, 0);
            sizes.value = sizes.value.map(|(at, _)| (at, length as u32));
        }
        Payload::Nodes => {
            let count = u32::from(input.arbitrary::<u8>()? % 20);
            for _ in 0..count {
                bytes.extend(choose(input, nodes)?.to_ne_bytes());
                bytes.extend(u64::from(input.arbitrary::<u8>()? & 3).to_ne_bytes());
            }
            sizes.count = sizes.count.map(|(at, _)| (at, count));
        }
        Payload::Input => {
            let length = *input.choose(IOCTL_SIZES)? as usize;
            let before = bytes.len();
            for _ in 0..input.arbitrary::<u8>()? % 6 {
                bytes.extend(choose(input, nodes)?.to_ne_bytes());
            }
            put_name(bytes, input)?;
            bytes.resize(before + length, 0);
        }
    }
    Ok(())
}

fn put_name(bytes: &mut Vec<u8>, input: &mut Unstructured<'_>) -> Result<()> {
    let name: &[u8] = if input.ratio(1, 16)? {
        let any = <&[u8]>::arbitrary(input)?;
        let end = any.iter().position(|&byte| byte == 0).unwrap_or(any.len());
        &any[..end]
    } else {
        input.choose(NAMES)?
    };
    bytes.extend(name);
    bytes.push(0);
    Ok(())
}

/// Changes a few bytes, and cuts the message off or extends it.
fn change(bytes: &mut Vec<u8>, input: &mut Unstructured<'_>) -> Result<()> {
    match input.arbitrary::<u8>()? % 4 {
        0 => {
            let length = usize::from(input.arbitrary::<u16>()?) % (bytes.len() + 1);
            bytes.truncate(length);
        }
        1 => {
            let more = usize::from(input.arbitrary::<u8>()?);
            bytes.resize(bytes.len() + more, input.arbitrary()?);
        }
        _ => {}
    }
    for _ in 0..input.arbitrary::<u8>()? % 4 {
        let value = number(input)?.to_ne_bytes();
        let length = 1 << (input.arbitrary::<u8>()? % 4);
        if let Some(last) = bytes.len().checked_sub(1) {
            let start = 4.min(last) + usize::from(input.arbitrary::<u16>()?) % (last - 4.min(last) + 1);
            let end = (start + length).min(bytes.len());
            bytes[start..end].copy_from_slice(&value[..end - start]);
        }
    }
    Ok(())
}
