//! Decoding and answering requests as the kernel lays them out, and bytes that it would not send.

use super::layout::{
    CreateIn, Dirent, EntryInOut, EntryOut, InHeader, IoctlIn, LseekIn, Rename2In, RequestHeader, SetAttrIn,
    SetXattrIn, StatxOut, WriteIn, opcode, valid,
};
use super::reply::{Answer, Listing};
use super::request::{Body, DecodeError, Head, Request, SetHow};
use crate::cpu_latency::CpuLatency;
use crate::dispatch::{Dispatcher, Lane, Message};
use crate::ioctl::MountInfo;
use crate::options::MountOptions;
use crate::server::Server;
use crate::transport::{
    Attributes, DataAccess, DirectorySink, Entry, ListedEntry, NewNodeKind, NodeId, SeekTo, Validity,
    XattrSet,
};

use papilio::{FileKind, FileSystem, MkfsOptions, OpenOptions, RenameMode, SetTime, Timespec};
use papilio_device::{Device, MemoryDevice};
use papilio_ioctl::Errno;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Builds a request with an operation's number, its first argument and its payload.
fn request(opcode: u32, argument: &[u8], payload: &[u8]) -> RequestHeader {
    let mut header: RequestHeader = zerocopy::FromZeros::new_zeroed();
    let length = (size_of::<InHeader>() + argument.len() + payload.len()) as u32;
    let (unique, node, uid, gid, pid) = (9, 77, 1, 2, 3);
    let general = InHeader { length, opcode, unique, node, uid, gid, pid, extension_length: 0, padding: 0 };
    header.in_out[..size_of::<InHeader>()].copy_from_slice(general.as_bytes());
    header.operation[..argument.len()].copy_from_slice(argument);
    let payload = payload.len() as u32;
    header.entry = EntryInOut { flags: 0, commit: unique, payload, padding: 0, reserved: 0 };
    header
}

fn decoded<R>(
    opcode: u32,
    argument: &(impl IntoBytes + Immutable),
    payload: &[u8],
    look: impl FnOnce(Result<Body<'_>, DecodeError>) -> R,
) -> R {
    let header = request(opcode, argument.as_bytes(), payload);
    let mut buffer = payload.to_vec();
    buffer.resize(4096, 0xff);
    let head = Head::of_entry(&header, buffer.len()).unwrap();
    let request = Request::decode(&head, &buffer);
    if let Ok(request) = &request {
        assert_eq!((request.node, request.caller.uid, request.caller.pid), (NodeId(77), 1, 3));
    }
    look(request.map(|request| request.body))
}

fn nothing() -> [u8; 0] {
    []
}

#[test]
fn names_are_found_in_the_payload() {
    decoded(opcode::LOOKUP, &nothing(), b"name\0", |body| {
        assert!(matches!(body.unwrap(), Body::Lookup { name: b"name" }));
    });
    let argument =
        Rename2In { directory: 5, flags: libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT, padding: 0 };
    decoded(opcode::RENAME2, &argument, b"old\0new\0", |body| {
        let Body::Rename(rename) = body.unwrap() else { panic!("not a rename") };
        assert_eq!((rename.name, rename.new_name), (&b"old"[..], &b"new"[..]));
        assert_eq!((rename.parent, rename.new_parent), (NodeId(77), NodeId(5)));
        assert!(rename.whiteout && rename.mode == RenameMode::NoReplace);
    });
    decoded(opcode::RENAME, &5_u64, b"old\0new\0", |body| {
        let Body::Rename(rename) = body.unwrap() else { panic!("not a rename") };
        assert!(!rename.whiteout && rename.mode == RenameMode::Replace);
    });
    decoded(opcode::SYMLINK, &nothing(), b"link\0target\0", |body| {
        let Body::Make(new) = body.unwrap() else { panic!("not a symbolic link") };
        assert!(new.name == b"link" && matches!(new.kind, NewNodeKind::Symlink(b"target")));
    });
    let argument = CreateIn { flags: libc::O_RDWR, mode: libc::S_IFREG | 0o640, umask: 0o22, open_flags: 0 };
    decoded(opcode::CREATE, &argument, b"new\0", |body| {
        let Body::Create { new, flags } = body.unwrap() else { panic!("not a created file") };
        assert_eq!((new.permissions, new.umask, flags), (0o640, 0o22, libc::O_RDWR));
    });
}

#[test]
fn only_valid_attributes_change() {
    let argument = SetAttrIn {
        valid: valid::SIZE | valid::ATIME | valid::MTIME | valid::MTIME_NOW | valid::HANDLE,
        size: 1234,
        atime: -2,
        atime_nanoseconds: 250_000_000,
        uid: 8,
        ..zerocopy::FromZeros::new_zeroed()
    };
    decoded(opcode::SETATTR, &argument, b"", |body| {
        let Body::SetAttributes(change) = body.unwrap() else { panic!("not a change of attributes") };
        assert_eq!(
            (change.size, change.uid, change.permissions, change.ctime),
            (Some(1234), None, None, None)
        );
        let before_1970 = Timespec { seconds: -2, nanoseconds: 250_000_000 };
        assert_eq!((change.atime, change.mtime), (Some(SetTime::At(before_1970)), Some(SetTime::Now)));
        assert!(change.by_handle);
    });
}

#[test]
fn lengths_of_data_and_values_are_checked() {
    let write = |size, payload: &[u8]| {
        let argument = WriteIn { offset: 4096, size, write_flags: 4, ..zerocopy::FromZeros::new_zeroed() };
        decoded(opcode::WRITE, &argument, payload, |body| {
            body.map(|body| match body {
                Body::Data(DataAccess::Write(write)) => (write.offset, write.length, write.kills_privileges),
                _ => panic!("not a write"),
            })
        })
    };
    assert_eq!(write(4, b"data"), Ok((4096, 4, true)));
    for wrong in [3, 5, u32::MAX] {
        assert!(matches!(write(wrong, b"data"), Err(DecodeError::Malformed { .. })), "{wrong}");
    }
    let set = |size, flags| {
        decoded(opcode::SETXATTR, &SetXattrIn { size, flags }, b"user.a\0value", |body| {
            body.map(|body| match body {
                Body::SetXattr { name: b"user.a", value, how } => (value.to_vec(), how),
                _ => panic!("not an attribute"),
            })
        })
    };
    assert_eq!(set(5, libc::XATTR_CREATE), Ok((b"value".to_vec(), SetHow::Set(XattrSet::Create))));
    assert_eq!(set(0, 3), Ok((Vec::new(), SetHow::Never)));
    assert!(matches!(set(6, 0), Err(DecodeError::Malformed { .. })));
    assert_eq!(set(5, 4).unwrap_err().errno(), Errno(libc::EINVAL));
    let argument = IoctlIn { in_size: 9, out_size: 7, ..zerocopy::FromZeros::new_zeroed() };
    decoded(opcode::IOCTL, &argument, b"12345678", |body| {
        assert!(matches!(body, Err(DecodeError::Malformed { .. })));
    });
}

#[test]
fn invalid_requests_have_error_numbers() {
    let seek = |offset, whence| {
        let argument = LseekIn { offset, whence, ..zerocopy::FromZeros::new_zeroed() };
        decoded(opcode::LSEEK, &argument, b"", |body| {
            body.map(|body| matches!(body, Body::Seek { offset: 8, to: SeekTo::Hole }))
        })
    };
    assert_eq!(seek(8, libc::SEEK_HOLE), Ok(true));
    assert_eq!(seek(-1, libc::SEEK_HOLE).unwrap_err().errno(), Errno(libc::ENXIO));
    assert_eq!(seek(8, libc::SEEK_SET).unwrap_err().errno(), Errno(libc::EINVAL));
    let sync =
        decoded(opcode::SYNCFS, &nothing(), b"", |body| body.map(|body| matches!(body, Body::SyncAll)));
    assert_eq!(sync, Ok(true));
    for unknown in [0, 36, 38, 48, 54, u32::MAX] {
        let error = decoded(unknown, &nothing(), b"", |body| body.unwrap_err());
        assert_eq!((error, error.errno()), (DecodeError::Unknown(unknown), Errno(libc::ENOSYS)));
    }
}

#[test]
fn decoder_stays_inside_its_buffers() {
    let buffer = [0; 64];
    let decode = |header: &RequestHeader, buffer: &[u8]| {
        let head = Head::of_entry(header, buffer.len())?;
        Request::decode(&head, buffer).map(|_| ())
    };
    let mut header = request(opcode::LOOKUP, &[], b"name\0");
    header.entry.payload = 65;
    assert!(matches!(decode(&header, &buffer), Err(DecodeError::Malformed { .. })));
    // Names without a NUL, and contradictory lengths.
    for payload in [&b""[..], b"name", b"one\0two"] {
        let header = request(opcode::SYMLINK, &[], payload);
        assert!(matches!(decode(&header, payload), Err(DecodeError::Malformed { .. })));
    }
    for length in [0, 39, 40, 44, 46, 300, u32::MAX] {
        let mut header = request(opcode::OPEN, &[0; 8], b"");
        header.in_out[..4].copy_from_slice(&length.to_ne_bytes());
        assert!(matches!(decode(&header, &buffer), Err(DecodeError::Malformed { .. })), "{length}");
    }
    // Random bytes decode or fail without a panic.
    let mut random = fastrand::Rng::with_seed(7);
    let mut decoded = 0;
    for _ in 0..20_000 {
        let mut bytes = [0; size_of::<RequestHeader>()];
        random.fill(&mut bytes);
        let mut header = RequestHeader::read_from_bytes(&bytes).unwrap();
        header.in_out[4..8].copy_from_slice(&random.u32(0..56).to_ne_bytes());
        let payload = random.u32(0..80);
        header.entry.payload = payload;
        let length = 40 + payload + random.u32(0..140);
        header.in_out[..4].copy_from_slice(&length.to_ne_bytes());
        decoded += u32::from(decode(&header, &buffer).is_ok());
    }
    assert!((1..20_000).contains(&decoded), "{decoded} of 20000 decoded");
}

fn entry() -> Entry {
    let time = Timespec { seconds: -1, nanoseconds: 5 };
    let attributes = Attributes {
        number: 300,
        size: 10,
        blocks: 8,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        kind: FileKind::Directory,
        permissions: 0o755,
        links: 1,
        uid: 4,
        gid: 5,
        device: (8, 1),
        block_size: 4096,
    };
    Entry { node: NodeId(1), generation: 6, attributes }
}

#[test]
fn replies_fit_or_are_errors() {
    let valid = Validity { names: Duration::new(3, 7), attributes: Duration::new(3, 7) };
    let mut buffer = [0; 4096];
    let used = Answer::Created(entry(), 2).encode(valid, &mut buffer).unwrap();
    assert_eq!(used, 144);
    let (out, _) = EntryOut::read_from_prefix(&buffer).unwrap();
    // The node is the kernel's id; the number is what `stat` shows.
    assert_eq!((out.node, out.generation, out.attributes.number), (1, 6, 300));
    assert_eq!((out.entry_valid, out.attributes_valid_nanoseconds), (3, 7));
    assert_eq!((out.attributes.mode, out.attributes.mtime), (libc::S_IFDIR | 0o755, -1));
    assert_eq!(Answer::Done.encode(valid, &mut []), Ok(0));
    assert_eq!(Answer::Bytes(vec![1; 5]).encode(valid, &mut [0; 4]), Err(Errno(libc::EIO)));
    let used = Answer::NoEntry.encode(valid, &mut buffer).unwrap();
    let (out, _) = EntryOut::read_from_prefix(&buffer).unwrap();
    assert_eq!((used, out.node, out.entry_valid), (128, 0, 3));
    let used = Answer::ExtendedAttributes(entry().attributes).encode(valid, &mut buffer).unwrap();
    let (out, _) = StatxOut::read_from_prefix(&buffer).unwrap();
    assert_eq!((used, out.valid, out.attributes.number), (288, 3, 300));
    assert_eq!((out.attributes.btime.seconds, out.attributes.btime.nanoseconds), (-1, 5));
    assert_eq!((u32::from(out.attributes.mode), out.attributes.mask), (libc::S_IFDIR | 0o755, 0xfff));
}

#[test]
fn listings_end_where_the_buffer_does() {
    let listed = |name| ListedEntry { name, number: 12, kind: FileKind::Fifo, next: 4, entry: Some(entry()) };
    let mut buffer = [0xff; 100];
    let mut listing = Listing::new(&mut buffer, None);
    let added: Vec<bool> =
        [&b"a"[..], b"12345678", b"123456789", b"b"].map(|name| listing.add(&listed(name))).into();
    assert_eq!((added, listing.used()), (vec![true, true, false, true], 96));
    let (dirent, rest) = Dirent::read_from_prefix(&buffer).unwrap();
    assert_eq!((dirent.number, dirent.next, dirent.name_length, dirent.kind), (12, 4, 1, 1));
    assert_eq!(rest[..8], *b"a\0\0\0\0\0\0\0");
    // Entries with attributes are longer, and the number is that of the listing.
    let mut buffer = [0; 160];
    let mut listing = Listing::new(&mut buffer, Some(Validity::default()));
    assert!(listing.add(&listed(b"a")) && !listing.add(&listed(b"a")));
    assert_eq!(listing.used(), 160);
    let (out, _) = EntryOut::read_from_prefix(&buffer).unwrap();
    assert_eq!((out.node, out.attributes.number), (1, 12));
}

/// A message in plain memory.
struct InMemory {
    head: Head,
    buffer: Vec<u8>,
    reply: Option<(i32, usize)>,
}

impl Message for InMemory {
    fn open(&mut self) -> (Result<Head, DecodeError>, &mut [u8]) {
        (Ok(self.head), &mut self.buffer)
    }

    fn reply(&mut self, error: i32, bytes: usize) {
        self.reply = Some((error, bytes));
    }
}

#[test]
fn panicking_operations_are_answered() {
    let device = Arc::new(MemoryDevice::new(128 << 20)) as Arc<dyn Device>;
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let fs = FileSystem::from_devices(vec![device], &OpenOptions::new()).unwrap();
    let options = MountOptions::parse("ro").unwrap();
    let info = MountInfo::new(Path::new("image"), Path::new("/"), &options);
    let server = Server::new(fs, info, &options).unwrap();
    let mut dispatcher = Dispatcher::new(Arc::new(server), false, CpuLatency::off());
    dispatcher.panic_always();
    for opcode in 0..60 {
        // Two names; the value after the first has no stated length.
        let payload = b"one\0two\0";
        let head = Head::of_entry(&request(opcode, &[0; 88], payload), 4096).unwrap();
        let mut buffer = payload.to_vec();
        buffer.resize(4096, 0);
        let mut message = InMemory { head, buffer, reply: None };
        let lane = dispatcher.lane(&mut message);
        assert!(!matches!(lane, Lane::AfterWriteBack(_)), "{opcode}");
        if dispatcher.forget(&mut message) {
            continue;
        }
        assert!(dispatcher.answer(&mut message).before_reply.is_empty());
        let (error, bytes) = message.reply.unwrap();
        assert_eq!(bytes, 0, "{opcode}");
        assert!([libc::EIO, libc::EINVAL, libc::ENOSYS].contains(&error), "{opcode}: {error}");
    }
}

/// Each operation's first argument and payload are the same, whether they came in two buffers or in
/// one message.
#[test]
fn messages_have_the_heads_of_entries() {
    for (opcode, argument, payload) in [
        (opcode::LOOKUP, 0, &b"name\0"[..]),
        (opcode::WRITE, 40, b"data"),
        (opcode::SETXATTR, 8, b"user.a\0value"),
        (opcode::RENAME2, 16, b"one\0two\0"),
        (opcode::STATX, 24, b""),
        (opcode::BATCH_FORGET, 8, &[0; 32]),
    ] {
        let argument: Vec<u8> = (1..=argument).collect();
        let header = request(opcode, &argument, payload);
        let message = [&header.in_out[..size_of::<InHeader>()], &argument, payload].concat();
        let head = Head::of_message(&message).unwrap();
        let entry = Head::of_entry(&header, payload.len()).unwrap();
        assert_eq!(head.payload, entry.payload, "{opcode}");
        assert_eq!(head.general, entry.general);
        let first = |head: &Head| head.argument::<u64>().ok();
        assert_eq!(first(&head), first(&entry), "{opcode}");
        for cut in 0..message.len() {
            assert!(Head::of_message(&message[..cut]).is_err(), "{opcode} cut at {cut}");
        }
    }
}

#[test]
fn forgotten_nodes_are_counted() {
    let forgotten = |opcode, argument: &[u8], payload: &[u8]| {
        let head = Head::of_entry(&request(opcode, argument, payload), 4096).unwrap();
        head.forgotten(payload).map(Iterator::collect::<Vec<_>>)
    };
    assert_eq!(forgotten(opcode::FORGET, &3_u64.to_ne_bytes(), b""), Ok(vec![(NodeId(77), 3)]));
    let two = [5_u64, 1, 6, 2].map(u64::to_ne_bytes).concat();
    let count = |count: u32| [count.to_ne_bytes(), [0; 4]].concat();
    let nodes = forgotten(opcode::BATCH_FORGET, &count(2), &two);
    assert_eq!(nodes, Ok(vec![(NodeId(5), 1), (NodeId(6), 2)]));
    for wrong in [3, u32::MAX] {
        assert!(forgotten(opcode::BATCH_FORGET, &count(wrong), &two).is_err());
    }
}
