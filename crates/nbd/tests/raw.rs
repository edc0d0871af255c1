//! The handshake and bad input, over raw sockets: the server answers or disconnects, and goes on
//! serving others.

use papilio_device::{Access, Device, MemoryDevice, OpenOptions, PhysicalAddress};
use papilio_nbd::{Address, Export, Server};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const OPTION: &[u8] = b"IHAVEOPT";

/// A server of one MiB in memory on a Unix socket.
struct World {
    device: Arc<MemoryDevice>,
    server: Option<Server>,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(clients: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let device = Arc::new(MemoryDevice::new(SIZE));
        let export = Export::new("disk".to_owned(), Arc::<MemoryDevice>::clone(&device)).unwrap();
        let server = Server::start(&Address::Unix(socket.clone()), export, clients).unwrap();
        Self { device, server: Some(server), socket, _folder: folder }
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(stream)
    }

    /// Returns a client in transmission, with simple replies.
    fn ready(&self) -> Client {
        let mut client = self.connect();
        client.greet(3);
        client.option(1, b"disk");
        assert_eq!(client.take(8), SIZE.to_be_bytes());
        client.take(2);
        client
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        bytes
    }

    /// Asserts that another client is served.
    fn assert_serves(&self) {
        let mut client = self.ready();
        client.request(0, 0, 0, 16);
        assert_eq!(client.reply(), 0);
        client.take(16);
    }
}

struct Client(UnixStream);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn greet(&mut self, flags: u32) {
        assert_eq!(self.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&flags.to_be_bytes());
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let length = data.len() as u32;
        self.send(&[OPTION, &option.to_be_bytes(), &length.to_be_bytes(), data].concat());
    }

    /// Takes a reply to an option; returns its type and data.
    fn answer(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.take(8), 0x3_e889_0455_65a9u64.to_be_bytes());
        assert_eq!(self.take(4), option.to_be_bytes());
        let kind = self.number();
        let length = self.number();
        (kind, self.take(length as usize))
    }

    fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn request(&mut self, flags: u16, command: u16, offset: u64, length: u32) {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(b"a cookie");
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        self.send(&bytes);
    }

    /// Takes the header of a simple reply; returns its error.
    fn reply(&mut self) -> u32 {
        assert_eq!(self.number(), 0x6744_6698);
        let error = self.number();
        assert_eq!(self.take(8), b"a cookie");
        error
    }

    /// Asserts that the server has disconnected.
    fn assert_closed(mut self) {
        match self.0.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("the server still talks: {other:?}"),
        }
    }
}

const INVALID: u32 = (1 << 31) + 3;

#[test]
fn options_are_answered() {
    let world = World::new(16);
    let mut client = world.connect();
    client.greet(3);
    client.option(3, b"");
    assert_eq!(client.answer(3), (2, b"\0\0\0\x04disk".to_vec()));
    assert_eq!(client.answer(3), (1, vec![]));
    client.option(3, b"x");
    assert_eq!(client.answer(3).0, INVALID);
    client.option(77, b"whatever");
    assert_eq!(client.answer(77).0, (1 << 31) + 1);
    // STARTTLS.
    client.option(5, b"");
    assert_eq!(client.answer(5).0, (1 << 31) + 1);
    client.option(6, b"\0\0\0\x05other\0\0");
    assert_eq!(client.answer(6).0, (1 << 31) + 6);
    for bad in [&b""[..], b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0\0\x01", b"\0\0\0\0\0\0\0"] {
        client.option(6, bad);
        assert_eq!(client.answer(6).0, INVALID, "{bad:?}");
    }
    // SET_META_CONTEXT before STRUCTURED_REPLY.
    client.option(10, b"\0\0\0\0\0\0\0\0");
    assert_eq!(client.answer(10).0, INVALID);
    client.option(3, &vec![0; 100_000]);
    assert_eq!(client.answer(3).0, (1 << 31) + 9);
    client.option(6, b"\0\0\0\0\0\x01\0\x03");
    let (kind, data) = client.answer(6);
    assert_eq!((kind, data.len(), &data[2..10]), (3, 12, &SIZE.to_be_bytes()[..]));
    // Flush, FUA, trim, write zeroes, several connections.
    assert_eq!(&data[10..], (1u16 | 4 | 8 | 32 | 64 | 256).to_be_bytes());
    let (kind, data) = client.answer(6);
    assert_eq!((kind, &data[..6]), (3, &b"\0\x03\0\0\0\x01"[..]));
    assert_eq!(client.answer(6).0, 1);
    client.option(2, b"");
    assert_eq!(client.answer(2).0, 1);
    client.assert_closed();
    world.assert_serves();
}

#[test]
fn broken_handshakes_are_disconnected() {
    let world = World::new(16);
    let mut client = world.connect();
    client.greet(0x8000_0003);
    client.assert_closed();
    let mut client = world.connect();
    client.greet(3);
    client.send(b"NOTMAGIC\0\0\0\x03\0\0\0\0");
    client.assert_closed();
    let mut client = world.connect();
    client.greet(3);
    client.option(1, b"no such export");
    client.assert_closed();
    // An option of 4 GiB.
    let mut client = world.connect();
    client.greet(3);
    client.send(&[OPTION, &[0, 0, 0, 7], &[0xff; 4]].concat());
    client.assert_closed();
    // Clients that go away: at once, and within an option.
    drop(world.connect());
    let mut client = world.connect();
    client.greet(3);
    client.send(&[OPTION, &[0, 0, 0, 7, 0, 0, 0, 9, 1]].concat());
    drop(client);
    // The oldest clients want padding.
    let mut client = world.connect();
    client.greet(0);
    client.option(1, b"");
    assert!(client.take(8 + 2 + 124)[10..].iter().all(|byte| *byte == 0));
    client.request(0, 0, 0, 4);
    assert_eq!(client.reply(), 0);
    world.assert_serves();
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let world = World::new(16);
    world.device.write_at(&vec![7; SIZE as usize], PhysicalAddress(0)).unwrap();
    let mut client = world.ready();
    let refused = [
        // Reads: past the end, at the end of the numbers, too long.
        (0, 0, SIZE - 1, 2, 22),
        (0, 0, u64::MAX, 1, 22),
        (0, 0, 0, (32 << 20) + 1, 75),
        (0, 0, 0, u32::MAX, 75),
        // Trim, write zeroes, an unknown command or flag, block status without its context.
        (0, 4, SIZE, 1, 22),
        (0, 6, 1, SIZE as u32, 28),
        (0, 6, u64::MAX - 1, u32::MAX, 28),
        (0, 99, 0, 0, 22),
        (0x8000, 0, 0, 4, 22),
        (0, 7, 0, 4096, 22),
    ];
    for (flags, command, offset, length, expected) in refused {
        client.request(flags, command, offset, length);
        assert_eq!(client.reply(), expected, "command {command} at {offset}, {length} bytes");
    }
    // The payload of a write that is refused is skipped.
    for (offset, length, expected) in [(SIZE - 1, 2u32, 28), (u64::MAX, 1, 28), (0, (32 << 20) + 5, 75)] {
        client.request(0, 1, offset, length);
        client.send(&vec![1; length as usize]);
        assert_eq!(client.reply(), expected);
    }
    client.request(0, 0, 0, 4);
    assert_eq!((client.reply(), client.take(4)), (0, vec![7; 4]));
    client.request(0, 3, 0, 0);
    assert_eq!(client.reply(), 0);
    client.send(&[0xee; 28]);
    client.assert_closed();
    assert!(world.bytes().iter().all(|byte| *byte == 7));
    world.assert_serves();
}

#[test]
fn write_that_breaks_off_changes_nothing() {
    let world = World::new(16);
    for sent in [0, 1, 65_535] {
        let mut client = world.ready();
        client.request(0, 1, 0, 65_536);
        client.send(&vec![1; sent]);
        drop(client);
    }
    let mut client = world.ready();
    client.send(&[0x25, 0x60, 0x95]);
    drop(client);
    // A write that is whole, whose client does not wait for the reply.
    let mut client = world.ready();
    client.request(1, 1, 512, 512);
    client.send(&[2; 512]);
    drop(client);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while world.bytes()[512] != 2 {
        assert!(std::time::Instant::now() < deadline, "the write was lost");
        std::thread::sleep(Duration::from_millis(5));
    }
    let bytes = world.bytes();
    assert!(bytes[..512].iter().chain(&bytes[1024..]).all(|byte| *byte == 0));
    world.assert_serves();
}

#[test]
fn many_requests_in_flight_and_clients_at_once() {
    let world = World::new(3);
    let mut clients: Vec<_> = (0..3).map(|_| world.ready()).collect();
    // One more than the server allows.
    world.connect().assert_closed();
    for (number, client) in clients.iter_mut().enumerate() {
        for index in 0..100u64 {
            client.request(0, 1, (number as u64 * 100 + index) * 512, 512);
            client.send(&[number as u8 + 1; 512]);
        }
    }
    for client in &mut clients {
        for _ in 0..100 {
            assert_eq!(client.reply(), 0);
        }
    }
    let bytes = world.bytes();
    for number in 0..3 {
        let part = &bytes[number * 51_200..(number + 1) * 51_200];
        assert!(part.iter().all(|byte| usize::from(*byte) == number + 1));
    }
    clients.pop().unwrap().request(0, 2, 0, 0);
    drop(clients);
    world.assert_serves_soon();
}

impl World {
    /// As [`World::assert_serves`], once a client that left is forgotten.
    fn assert_serves_soon(&self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let mut client = self.connect();
            if client.0.read_exact(&mut [0; 18]).is_ok() {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "no client is accepted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn stop_replies_to_requests_in_flight_and_removes_the_socket() {
    let mut world = World::new(16);
    let mut client = world.ready();
    let _silent = world.connect();
    let mut half = world.ready();
    half.request(0, 1, 0, 4096);
    half.send(&[9; 100]);
    client.request(0, 1, 8192, 512);
    client.send(&[3; 512]);
    assert_eq!(client.reply(), 0);
    world.server.take().unwrap().stop().unwrap();
    client.assert_closed();
    half.assert_closed();
    assert!(!world.socket.exists());
    let bytes = world.bytes();
    assert!(bytes[8192..8704].iter().all(|byte| *byte == 3));
    assert!(bytes[..8192].iter().all(|byte| *byte == 0));
}

#[test]
fn structured_replies_carry_data_holes_and_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (image, socket) = (folder.path().join("image"), folder.path().join("socket"));
    std::fs::write(&image, vec![5; 65_536]).unwrap();
    let device = Arc::new(OpenOptions::new(Access::ReadOnly).open(&image).unwrap());
    let export = Export::new("disk".to_owned(), device).unwrap();
    let server = Server::start(&Address::Unix(socket.clone()), export, 1).unwrap();
    let mut client = Client(UnixStream::connect(&socket).unwrap());
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.greet(3);
    client.option(8, b"");
    assert_eq!(client.answer(8).0, 1);
    client.option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    assert_eq!(client.answer(10), (4, b"\0\0\0\x01base:allocation".to_vec()));
    assert_eq!(client.answer(10).0, 1);
    client.option(7, b"\0\0\0\0\0\0");
    // Read-only, and one connection.
    assert_eq!(client.answer(7).1[10..], (1u16 | 2 | 4 | 128).to_be_bytes());
    assert_eq!(client.answer(7).0, 1);
    let mut chunk = |flags, command, offset, length| {
        client.request(flags, command, offset, length);
        if command == 1 {
            client.send(&vec![0; length as usize]);
        }
        assert_eq!(client.number(), 0x668e_33ef);
        assert_eq!(client.take(2), [0, 1]);
        let kind = u16::from_be_bytes(client.take(2).try_into().unwrap());
        assert_eq!(client.take(8), b"a cookie");
        let length = client.number();
        (kind, client.take(length as usize))
    };
    let (kind, data) = chunk(4, 0, 4096, 100);
    assert_eq!((kind, data), (1, [&4096u64.to_be_bytes()[..], &[5; 100]].concat()));
    assert_eq!(chunk(0, 7, 0, 65_536), (5, b"\0\0\0\x01\0\x01\0\0\0\0\0\0".to_vec()));
    assert_eq!(chunk(0, 0, 65_536, 1), (0x8001, b"\0\0\0\x16\0\0".to_vec()));
    assert_eq!(chunk(0, 1, 0, 512), (0x8001, b"\0\0\0\x01\0\0".to_vec()));
    server.stop().unwrap();
}
