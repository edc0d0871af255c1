//! FUSE requests as a guest's kernel builds them (`include/uapi/linux/fuse.h`).

use crate::monitor::Monitor;

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const MKDIR: u32 = 9;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const FSYNC: u32 = 20;
pub const INIT: u32 = 26;
pub const CREATE: u32 = 35;
pub const DESTROY: u32 = 38;
pub const IOCTL: u32 = 39;
pub const SYNCFS: u32 = 50;

/// The error of a reply.
pub type Failure = i32;

/// Returns a request by root.
pub fn request(operation: u32, node: u64, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut bytes = Vec::new();
    bytes.extend((40 + body.len() as u32).to_le_bytes());
    bytes.extend(operation.to_le_bytes());
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    bytes.extend([0; 8]);
    // The guest's process 1, which is init on this machine, too.
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Returns the body of a reply.
pub fn body(reply: &[u8]) -> Result<Vec<u8>, Failure> {
    assert!(reply.len() >= 16, "{reply:?}");
    assert_eq!(u32_at(reply, 0) as usize, reply.len());
    assert_eq!(&reply[8..16], 7_u64.to_le_bytes());
    match u32_at(reply, 4) as i32 {
        0 => Ok(reply[16..].to_vec()),
        error => Err(-error),
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Monitor {
    /// Sends a request of a guest.
    pub fn fuse(&mut self, operation: u32, node: u64, body: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        let reply = self.call(&request(operation, node, body));
        self::body(&reply)
    }

    /// Agrees with the server. Returns the features that it took.
    pub fn begin(&mut self) -> u64 {
        let mut offer = Vec::new();
        for number in [7_u32, 38, 1 << 20, u32::MAX, u32::MAX] {
            offer.extend(number.to_le_bytes());
        }
        offer.resize(64, 0);
        let answer = self.fuse(INIT, 0, &[&offer]).unwrap();
        assert_eq!(u32_at(&answer, 0), 7);
        u64::from(u32_at(&answer, 12)) | u64::from(u32_at(&answer, 32)) << 32
    }

    /// Looks a name up; returns its node.
    pub fn lookup(&mut self, directory: u64, name: &str) -> Result<u64, Failure> {
        let found = self.fuse(LOOKUP, directory, &[name.as_bytes(), &[0]])?;
        Ok(u64_at(&found, 0))
    }

    /// Creates a file; returns its node.
    pub fn create(&mut self, directory: u64, name: &str) -> Result<u64, Failure> {
        let mut argument = Vec::new();
        for number in [0o102_u32, 0o100_644, 0o022, 0] {
            argument.extend(number.to_le_bytes());
        }
        let made = self.fuse(CREATE, directory, &[&argument, name.as_bytes(), &[0]])?;
        Ok(u64_at(&made, 0))
    }

    /// Writes at an offset of a file.
    pub fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Result<u32, Failure> {
        let reply = self.fuse(WRITE, node, &[&access(offset, data.len() as u32), data])?;
        Ok(u32_at(&reply, 0))
    }

    /// Reads at an offset of a file.
    pub fn read(&mut self, node: u64, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        self.fuse(READ, node, &[&access(offset, length)])
    }
}

/// `struct fuse_read_in` and `struct fuse_write_in` have 40 bytes each.
pub fn access(offset: u64, length: u32) -> Vec<u8> {
    let mut argument = Vec::new();
    argument.extend(0_u64.to_le_bytes());
    argument.extend(offset.to_le_bytes());
    argument.extend(length.to_le_bytes());
    argument.resize(40, 0);
    argument
}
