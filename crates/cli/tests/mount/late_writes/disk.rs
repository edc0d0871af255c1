//! A file of the host as the disk of an NBD client: a server of ours in this process, and a client.

use papilio_device::{Access, OpenOptions};
use papilio_nbd::{Address, Export, Server};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "disk";
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const COOKIE: &[u8; 8] = b"a cookie";

/// A disk. Dropping it ends the server.
pub struct Disk {
    client: RefCell<UnixStream>,
    server: Option<Server>,
    _folder: tempfile::TempDir,
}

impl Disk {
    pub fn new(path: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let device = OpenOptions::new(Access::ReadWrite).open(path).unwrap();
        let size = std::fs::metadata(path).unwrap().len();
        let export = Export::new(NAME.to_owned(), Arc::new(device)).unwrap();
        let server = Server::start(&Address::Unix(socket.clone()), export, 1).unwrap();
        let mut client = UnixStream::connect(socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(take::<18>(&mut client), *b"NBDMAGICIHAVEOPT\0\x03");
        // No zeroes after the answer, which EXPORT_NAME asks for.
        client.write_all(&3u32.to_be_bytes()).unwrap();
        let name = NAME.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        client.write_all(&[b"IHAVEOPT", &1u32.to_be_bytes()[..], &length, name].concat()).unwrap();
        assert_eq!(u64::from_be_bytes(take(&mut client)), size);
        let _flags: [u8; 2] = take(&mut client);
        Self { client: RefCell::new(client), server: Some(server), _folder: folder }
    }

    pub fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.call(WRITE, offset, data)
    }

    pub fn flush(&self) -> io::Result<()> {
        self.call(FLUSH, 0, &[])
    }

    fn call(&self, command: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut client = self.client.borrow_mut();
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(COOKIE);
        request.extend(offset.to_be_bytes());
        request.extend((data.len() as u32).to_be_bytes());
        request.extend(data);
        client.write_all(&request)?;
        assert_eq!(take(&mut client), 0x6744_6698_u32.to_be_bytes());
        let error = i32::from_be_bytes(take(&mut client));
        assert_eq!(take::<8>(&mut client), *COOKIE);
        // Linux has the numbers of the protocol.
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.client.borrow().shutdown(std::net::Shutdown::Both);
        if let Some(server) = self.server.take() {
            let _ = server.stop();
        }
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}
