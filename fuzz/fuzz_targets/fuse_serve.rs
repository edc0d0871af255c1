//! Fuzzes the server of a mount: each input is a sequence of FUSE messages to a file system in
//! memory. At the end the file system must close. For one input in four it is checked, too, which
//! must find nothing.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_fuse::fuzzing::Served;
use papilio_fuzz::fuse::Message;
use papilio_fuzz::is_checked;
use std::sync::{Arc, LazyLock};

/// Maximum number of messages of an input.
const MESSAGES: usize = 64;

/// One input of so many is checked.
const CHECKED: u32 = 4;

static IMAGE: LazyLock<Arc<MemoryDevice>> = LazyLock::new(|| {
    let device = Arc::new(MemoryDevice::new(16 << 30));
    let shared: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    papilio::mkfs_device(&shared, &MkfsOptions::new()).expect("an empty device takes a file system");
    let fs = FileSystem::from_devices(vec![shared], &options()).expect("it opens");
    fs.create_dir("/dir").expect("there is room");
    fs.write("/file", [b'x'; 20_000]).expect("there is room");
    fs.create_subvolume("/b").expect("there is room");
    fs.close().expect("it closes");
    device
});

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None).node_cache_bytes(4 << 20)
}

/// Operations that take space: `fallocate`, and `copy_file_range` in both forms. The second number
/// is the offset of the length in the message.
const TAKE_SPACE: [(u8, usize); 3] = [(43, 56), (47, 80), (53, 80)];

/// Bounds a length. Copying bytes takes time, and a change that finds no space waits up to a second
/// for deletions.
fn leave_space(length: &mut [u8]) {
    if let Some(bytes) = length.first_chunk_mut() {
        *bytes = (u64::from_ne_bytes(*bytes) % (1 << 14)).to_ne_bytes();
    }
}

fuzz_target!(init: { LazyLock::force(&IMAGE); }, |data: &[u8]| {
    let device: Arc<dyn Device> = Arc::new(IMAGE.snapshot());
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options()).expect("the image opens");
    let mut served = Served::new(fs).expect("its root can be read");
    let mut input = Unstructured::new(data);
    let (mut nodes, mut handles) = (vec![1], Vec::new());
    let mut message = Message::new();
    for _ in 0..MESSAGES {
        if input.is_empty() || message.generate(&mut input, &nodes, &handles).is_err() {
            break;
        }
        let operation = message.bytes.get(4).copied();
        if let Some((_, at)) = TAKE_SPACE.iter().find(|(taking, _)| operation == Some(*taking)) {
            leave_space(message.bytes.get_mut(*at..).unwrap_or_default());
        }
        let Some(answer) = served.serve(&message.bytes) else { continue };
        let Some(first) = answer.body.first_chunk::<8>() else { continue };
        match operation {
            // These replies begin with a node.
            Some(1 | 6 | 8 | 9 | 13 | 35 | 51) => nodes.push(u64::from_ne_bytes(*first)),
            Some(27) => handles.push(u64::from_ne_bytes(*first)),
            _ => {}
        }
    }
    served.close().expect("the last commit succeeds");
    if !is_checked(data, CHECKED) {
        return;
    }
    let report = papilio::check_devices(vec![device], &OpenOptions::new(), &CheckOptions::new().data_csum(true));
    let report = report.expect("the file system opens again");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
});
