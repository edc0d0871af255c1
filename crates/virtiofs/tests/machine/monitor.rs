//! A virtual machine monitor, and the driver of its guest, for tests.
//!
//! Owns [`Monitor`]: a file for the guest's memory, and queues in it. Tests put any bytes there, as
//! a guest may.

use papilio_locks::Mutex;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::eventfd::EventFd;

/// Entries of each queue.
pub const ENTRIES: u16 = 16;
/// Bytes of memory.
pub const MEMORY: u64 = 8 << 20;
/// Where buffers begin. Below are the queues.
const BUFFERS: u64 = 1 << 20;
/// Bytes from one request's buffers to the next one's.
const APART: u64 = 256 << 10;
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;

/// A descriptor, as it lies in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

struct Driver {
    kick: EventFd,
    _call: EventFd,
    /// Entries that were offered.
    offered: u16,
    /// Entries that came back.
    returned: u16,
}

/// A monitor that is connected.
pub struct Monitor {
    frontend: Frontend,
    pub memory: GuestMemoryMmap,
    drivers: Vec<Driver>,
    _file: File,
}

/// One connection at a time: a test that panics leaves the next one its turn.
pub static TURN: Mutex<()> = Mutex::new(());

impl Monitor {
    /// Connects, and starts a queue of high priority and one for requests.
    pub fn connect(socket: &Path) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY).unwrap();
        let range = (GuestAddress(0), MEMORY as usize, Some(FileOffset::new(file.try_clone().unwrap(), 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut frontend = Frontend::connect(socket, 2).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ));
        frontend.set_protocol_features(VhostUserProtocolFeatures::CONFIG).unwrap();
        let region = memory.iter().next().unwrap();
        let lent = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[lent]).unwrap();
        let mut drivers = Vec::new();
        for queue in 0..2 {
            let at = |part: u64| region.as_ptr() as u64 + table(queue) + part;
            frontend.set_vring_num(queue, ENTRIES).unwrap();
            let places = VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: at(0),
                avail_ring_addr: at(0x1000),
                used_ring_addr: at(0x2000),
                log_addr: None,
            };
            frontend.set_vring_addr(queue, &places).unwrap();
            frontend.set_vring_base(queue, 0).unwrap();
            let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
            frontend.set_vring_call(queue, &call).unwrap();
            frontend.set_vring_kick(queue, &kick).unwrap();
            frontend.set_vring_enable(queue, true).unwrap();
            drivers.push(Driver { kick, _call: call, offered: 0, returned: 0 });
        }
        Self { frontend, memory, drivers, _file: file }
    }

    /// Returns the tag and the number of queues for requests from the device's configuration.
    pub fn config(&mut self) -> (String, u32) {
        let (_, bytes) = self.frontend.get_config(0, 40, VhostUserConfigFlags::WRITABLE, &[0; 40]).unwrap();
        let tag = bytes[..36].split(|byte| *byte == 0).next().unwrap().to_vec();
        (String::from_utf8(tag).unwrap(), u32::from_le_bytes(bytes[36..40].try_into().unwrap()))
    }

    /// Stops a queue, and returns the number of entries that the device took.
    pub fn stop(&mut self, queue: usize) -> u32 {
        self.frontend.get_vring_base(queue).unwrap()
    }

    /// Writes a descriptor.
    pub fn describe(&self, queue: usize, number: u16, descriptor: Descriptor) {
        let at = GuestAddress(table(queue) + 16 * u64::from(number));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&descriptor.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&descriptor.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&descriptor.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&descriptor.next.to_le_bytes());
        self.memory.write_slice(&bytes, at).unwrap();
    }

    /// Offers the chain that begins with a descriptor, and wakes the device.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let driver = &mut self.drivers[queue];
        let at = table(queue) + 0x1000 + 4 + 2 * u64::from(driver.offered % ENTRIES);
        self.memory.write_slice(&head.to_le_bytes(), GuestAddress(at)).unwrap();
        driver.offered = driver.offered.wrapping_add(1);
        self.announce(queue, self.drivers[queue].offered);
    }

    /// Says that so many entries were offered, and wakes the device.
    pub fn announce(&self, queue: usize, offered: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let at = GuestAddress(table(queue) + 0x1000 + 2);
        self.memory.write_slice(&offered.to_le_bytes(), at).unwrap();
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.drivers[queue].kick.write(1).unwrap();
    }

    /// Puts a request into buffers of its own and offers it. `number` is below 8.
    pub fn submit(&mut self, queue: usize, number: u16, request: &[u8], reply: u32) {
        let (input, output) = buffers(number);
        self.memory.write_slice(request, GuestAddress(input)).unwrap();
        let has_reply = if reply > 0 { NEXT } else { 0 };
        let (head, tail) = (2 * number, 2 * number + 1);
        let length = request.len() as u32;
        self.describe(queue, head, Descriptor { address: input, length, flags: has_reply, next: tail });
        self.describe(queue, tail, Descriptor { address: output, length: reply, flags: WRITE, next: 0 });
        self.offer(queue, head);
    }

    /// Waits for the next entry that comes back. Returns its head and the length of its reply.
    pub fn returned(&mut self, queue: usize) -> (u16, u32) {
        let begun = Instant::now();
        loop {
            let mut index = [0; 2];
            self.memory.read_slice(&mut index, GuestAddress(table(queue) + 0x2000 + 2)).unwrap();
            if u16::from_le_bytes(index) != self.drivers[queue].returned {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "queue {queue}: nothing came back");
            std::thread::sleep(Duration::from_micros(100));
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let driver = &mut self.drivers[queue];
        let at = table(queue) + 0x2000 + 4 + 8 * u64::from(driver.returned % ENTRIES);
        driver.returned = driver.returned.wrapping_add(1);
        let mut entry = [0; 8];
        self.memory.read_slice(&mut entry, GuestAddress(at)).unwrap();
        let number = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        (number(0) as u16, number(4))
    }

    /// Returns the bytes of a reply.
    pub fn reply(&self, number: u16, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(buffers(number).1)).unwrap();
        bytes
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, request: &[u8]) -> Vec<u8> {
        self.submit(1, 0, request, 128 << 10);
        let (head, length) = self.returned(1);
        assert_eq!(head, 0);
        self.reply(0, length)
    }
}

fn table(queue: usize) -> u64 {
    0x1_0000 * (queue as u64 + 1)
}

/// Returns the places of a request and of its reply.
fn buffers(number: u16) -> (u64, u64) {
    let at = BUFFERS + 2 * APART * u64::from(number);
    (at, at + APART)
}
