//! Fuzzes the reading of logs: changes bytes of log trees only, repairs the checksums, and reads
//! the log as a replay does before it begins. One file system stays open for all inputs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio::{FileSystem, LogUsage, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_fuzz::images::kernels_log;
use papilio_simulator::{BaseImage, change, change_back, small_images};
use std::sync::{Arc, LazyLock};

/// An image with a log, open for reading.
struct Opened {
    image: BaseImage,
    device: Arc<MemoryDevice>,
    fs: FileSystem,
    usage: LogUsage,
}

impl Opened {
    fn new(image: BaseImage) -> Self {
        let device = Arc::new(image.copy());
        let options = OpenOptions::new().replay_log(false);
        let fs = FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).expect("open");
        let usage = fs.log_usage().expect("the log is good").expect("there is a log");
        let opened = Self { image, device, fs, usage };
        // A header without a level that fits, in each block.
        let plan: Vec<u8> = (0..opened.image.block_count() as u32).flat_map(bad_level).collect();
        change(&opened.image, &opened.device, &plan);
        assert!(opened.read().is_err(), "the change is read");
        change_back(&opened.image, &opened.device, &plan);
        opened.assert_as_before();
        opened
    }

    /// Reads the log from the device.
    fn read(&self) -> papilio::Result<Option<LogUsage>> {
        self.fs.drop_cache();
        self.fs.log_usage()
    }

    fn assert_as_before(&self) {
        assert_eq!(self.read().expect("the log is good"), Some(self.usage));
    }
}

/// A change of a block's level, the byte at 0x64.
fn bad_level(block: u32) -> [u8; 16] {
    let mut change = [0; 16];
    change[..4].copy_from_slice(&block.to_le_bytes());
    change[4] = 0x64;
    change[8] = 1;
    change[12] = 0x77;
    change
}

static OPENED: LazyLock<[Opened; 2]> = LazyLock::new(|| {
    let [.., small] = small_images().expect("a device in memory");
    [small.only_logs(), kernels_log().only_logs()].map(Opened::new)
});

fuzz_target!(init: { LazyLock::force(&OPENED); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    let opened = &OPENED[usize::from(choice % 2)];
    change(&opened.image, &opened.device, plan);
    if let Ok(usage) = opened.read() {
        let usage = usage.expect("the superblock stays");
        assert!(usage.blocks > 0 && usage.blocks <= opened.image.block_count());
    }
    change_back(&opened.image, &opened.device, plan);
    if choice % 64 == 0 {
        opened.assert_as_before();
    }
});
