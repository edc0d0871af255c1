//! The cost of the C border, beside the Rust calls behind it:
//! `cargo test --release -p papilio-capi --test c -- --ignored --nocapture speed`.

use crate::support::Bench;
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::ffi::CString;
use std::ptr;
use std::time::{Duration, Instant};

const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 64;

/// Reads all blocks and returns the time.
fn timed(mut read: impl FnMut(&mut [u8], u64) -> usize) -> Duration {
    let mut buffer = vec![0; BLOCK];
    let start = Instant::now();
    for block in 0..BLOCKS {
        assert_eq!(read(&mut buffer, (block * BLOCK) as u64), BLOCK);
    }
    start.elapsed()
}

#[test]
#[ignore = "a measurement"]
fn speed_of_reads_of_a_mebibyte() {
    let bench = Bench::new();
    let image = bench.path("speed.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(512 << 20)).unwrap();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    fs.write("/f", vec![7; BLOCK * BLOCKS]).unwrap();
    fs.close().unwrap();

    // Both are open for reading, which the lock of the image allows.
    let fs = FileSystem::open(&image).unwrap();
    let file = fs.open_file("/f").unwrap();
    let path = CString::new(image.to_str().unwrap()).unwrap();
    let (mut c_fs, mut c_file) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: texts are NUL-terminated, and results have a place.
    unsafe {
        assert_eq!(papilio_capi::papilio_open(path.as_ptr(), ptr::null(), &raw mut c_fs), 0);
        assert_eq!(papilio_capi::papilio_file_open(c_fs, c"/f".as_ptr(), 0, 0, &raw mut c_file), 0);
    }
    let mut ratios = Vec::new();
    for round in 0..21 {
        let rust = || timed(|buffer, offset| file.read_at(buffer, offset).unwrap());
        let c = || {
            timed(|buffer, offset| {
                // SAFETY: the buffer has its length.
                let got = unsafe {
                    papilio_capi::papilio_pread(c_file, buffer.as_mut_ptr().cast(), buffer.len(), offset)
                };
                usize::try_from(got).unwrap()
            })
        };
        // In turn, and each first as often as the other.
        let (rust, c) = if round % 2 == 0 {
            let rust = rust();
            (rust, c())
        } else {
            let c = c();
            (rust(), c)
        };
        ratios.push(rust.as_secs_f64() / c.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("C has {median:.3} of the Rust speed (quartiles {:.3}, {:.3})", ratios[5], ratios[15]);
    assert!(median > 0.9, "{median}");
    assert_eq!(papilio_capi::papilio_file_close(c_file), 0);
    assert_eq!(papilio_capi::papilio_close(c_fs), 0);
}
