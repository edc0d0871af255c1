//! Requests that have to wait hold up no other request of their queue.

use crate::held_device::{HeldDevice, Hold, Release};
use papilio::{File, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

const SECTOR: u64 = 4096;
const SECTORS: u64 = 3000;

/// Returns a file system with `/near` of 16 sectors and `/far`, whose last extents are in a tree
/// block that nothing has read yet.
fn new_file_system() -> (Arc<HeldDevice>, FileSystem) {
    let memory = Arc::new(MemoryDevice::new(256 << 20));
    let device: Arc<dyn Device> = memory.clone();
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![device], &options).unwrap();
    fs.create_file("/near").unwrap().write_all_at(&[1; 16 * SECTOR as usize], 0).unwrap();
    let far = fs.create_file("/far").unwrap();
    // Every other sector, so that each has an extent of its own.
    for number in 0..SECTORS {
        far.write_all_at(&[2; SECTOR as usize], number * 2 * SECTOR).unwrap();
    }
    drop(far);
    fs.close().unwrap();
    let held = HeldDevice::new(memory);
    let fs = FileSystem::from_devices(vec![held.clone() as Arc<dyn Device>], &options).unwrap();
    (held, fs)
}

fn read(file: &Arc<File>, sector: u64, token: u64) -> IoRequest<Vec<u8>> {
    let operation = IoOperation::Read { buffer: vec![0; SECTOR as usize], offset: sector * SECTOR };
    IoRequest { file: Arc::clone(file), operation, token }
}

fn tokens(done: &[IoCompletion<Vec<u8>>]) -> Vec<u64> {
    let mut tokens: Vec<_> = done.iter().map(|completion| completion.token).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn a_miss_and_a_sync_hold_up_no_read() {
    let (device, fs) = new_file_system();
    let (near, far) = (Arc::new(fs.open_file("/near").unwrap()), Arc::new(fs.open_file("/far").unwrap()));
    near.write_all_at(&[3; SECTOR as usize], 0).unwrap();
    let mut queue = IoQueue::with_threads(64, 2).unwrap();
    let mut done = Vec::new();
    // Caches the place and the checksums of the file's data.
    for sector in 0..16 {
        queue.submit(read(&near, sector, sector)).unwrap();
    }
    assert_eq!(queue.wait(16, &mut done), 16);
    done.clear();

    let _release = Release(&device);
    device.set(Hold::Everything);
    queue.submit(read(&far, SECTORS * 2 - 2, 100)).unwrap();
    let operation = IoOperation::Fsync;
    queue.submit(IoRequest { file: Arc::clone(&near), operation, token: 101 }).unwrap();
    for sector in 1..16 {
        queue.submit(read(&near, sector, sector)).unwrap();
    }
    queue.wait(15, &mut done);
    assert_eq!(tokens(&done), (1..16).collect::<Vec<_>>());
    assert!(done.iter().all(|read| read.buffer.as_deref() == Some(&[1; SECTOR as usize][..])));
    assert_eq!(queue.in_flight(), 2, "the device does not let them through");
    device.set(Hold::Nothing);
    done.clear();
    queue.wait(2, &mut done);
    assert_eq!(tokens(&done), [100, 101]);
    for completion in done {
        let length = completion.result.unwrap();
        let expected = if completion.token == 100 { SECTOR as usize } else { 0 };
        assert_eq!(length, expected);
        assert!(completion.buffer.is_none_or(|bytes| bytes == [2; SECTOR as usize]));
    }
}

#[test]
fn dropped_queue_with_threads_carries_out_its_requests() {
    let (device, fs) = new_file_system();
    let far = Arc::new(fs.open_file("/far").unwrap());
    let mut queue = IoQueue::with_threads(64, 2).unwrap();
    for number in 0..40 {
        let buffer = vec![9; SECTOR as usize / 2];
        // Parts of sectors: only calls that wait can write them.
        let operation = IoOperation::Write { buffer, offset: number * 2 * SECTOR };
        queue.submit(IoRequest { file: Arc::clone(&far), operation, token: number }).unwrap();
    }
    drop(queue);
    let bytes = far.read_all().unwrap();
    for number in 0..40 {
        let sector = &bytes[(number * 2 * SECTOR) as usize..][..SECTOR as usize];
        assert!(sector[..2048] == [9; 2048] && sector[2048..] == [2; 2048], "sector {number}");
    }
    drop(far);
    fs.close().unwrap();
    drop(device);
}
