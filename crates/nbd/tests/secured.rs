//! Servers with TLS: nothing is told before a channel. The TLS of these tests is a sum of bytes,
//! for the crate has none of its own.

use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_nbd::{Address, Channel, Export, Server, Settings, Socket, Tls};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const KEY: u8 = 0x55;
const HELLO: &[u8] = b"hello";
const SIZE: u64 = 1 << 20;

#[derive(Debug)]
struct Sum;

impl Tls for Sum {
    fn accept(&self, mut socket: &Socket) -> io::Result<Box<dyn Channel>> {
        let mut hello = [0; HELLO.len()];
        socket.read_exact(&mut hello)?;
        if hello != HELLO {
            return Err(io::ErrorKind::InvalidData.into());
        }
        socket.write_all(HELLO)?;
        Ok(Box::new(Sum))
    }
}

fn turned(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ KEY).collect()
}

impl Channel for Sum {
    fn read(&self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        let count = socket.read(buffer)?;
        let bytes = turned(&buffer[..count]);
        buffer[..count].copy_from_slice(&bytes);
        Ok(count)
    }

    fn write(&self, mut socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // One part at a time: callers go on with the rest.
        let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Ok(0) };
        socket.write_all(&turned(part))?;
        Ok(part.len())
    }

    fn end(&self, mut socket: &Socket) {
        let _ = socket.write_all(&turned(b"bye"));
    }
}

struct Client {
    stream: UnixStream,
    is_secure: bool,
}

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Self { stream, is_secure: false };
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.send(&3_u32.to_be_bytes());
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        let bytes = if self.is_secure { turned(bytes) } else { bytes.to_vec() };
        self.stream.write_all(&bytes).unwrap();
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        if self.is_secure { turned(&bytes) } else { bytes }
    }

    /// Sends an option, and returns the type of the reply and its data.
    fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let length = data.len() as u32;
        self.send(&[b"IHAVEOPT", &option.to_be_bytes()[..], &length.to_be_bytes(), data].concat());
        let head = self.take(20);
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(number(8), option);
        (number(12), self.take(number(16) as usize))
    }

    fn secure(&mut self) {
        assert_eq!(self.option(5, b"").0, 1);
        self.send(HELLO);
        assert_eq!(self.take(HELLO.len()), HELLO);
        self.is_secure = true;
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

#[test]
fn nothing_is_told_before_the_channel() {
    const REQUIRED: u32 = (1 << 31) + 5;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let device = Arc::new(MemoryDevice::new(SIZE));
    let export = Export::new("disk".to_owned(), Arc::<MemoryDevice>::clone(&device)).unwrap();
    let mut settings = Settings::new(16);
    settings.tls = Some(Arc::new(Sum));
    let server = Server::start_on(Address::Unix(socket.clone()).listen().unwrap(), export, settings).unwrap();
    assert!(server.uri().starts_with("nbds+unix:///disk?socket="), "{}", server.uri());

    let mut client = Client::connect(&socket);
    for (option, data) in
        [(3, &b""[..]), (6, b"\0\0\0\0\0\0"), (7, b"\0\0\0\0\0\0"), (8, b""), (10, b""), (77, b"")]
    {
        assert_eq!(client.option(option, data), (REQUIRED, vec![]), "option {option}");
    }
    assert_eq!(client.option(5, b"x").0, (1 << 31) + 3);
    client.secure();
    assert_eq!(client.option(5, b"").0, (1 << 31) + 3, "a channel in a channel");
    assert_eq!(client.option(3, b""), (2, b"\0\0\0\x04disk".to_vec()));
    client.take(20);
    // A write and a read, over the channel.
    client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
    assert_eq!(client.take(10)[..8], SIZE.to_be_bytes());
    let request = |command: u16, length: u32| {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(b"a cookie");
        bytes.extend(4096_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    };
    client.send(&[request(1, 3), b"xyz".to_vec()].concat());
    assert_eq!(client.take(16)[4..8], [0; 4]);
    client.send(&request(0, 5));
    assert_eq!(client.take(16 + 5)[16..], *b"xyz\0\0");
    client.send(&request(2, 0));
    assert_eq!(client.take(3), b"bye");
    let mut bytes = [0; 3];
    device.read_at(&mut bytes, PhysicalAddress(4096)).unwrap();
    assert_eq!(&bytes, b"xyz");

    // The oldest way to choose an export has no reply for errors.
    let mut client = Client::connect(&socket);
    client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
    assert!(client.is_closed());
    // A client that is no client of TLS.
    let mut client = Client::connect(&socket);
    assert_eq!(client.option(5, b"").0, 1);
    client.send(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
    assert!(client.is_closed());
    server.stop().unwrap();
}
