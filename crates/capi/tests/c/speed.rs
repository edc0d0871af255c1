//! The cost of the C border, beside the Rust calls behind it:
//! `cargo test --release -p papilio-capi --test c -- --ignored --nocapture speed`.

use crate::support::Bench;
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::ffi::CString;
use std::ptr;
use std::time::{Duration, Instant};

const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 64;

/// Returns the median of times.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
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
    let mut buffer = vec![0; BLOCK];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..20 * BLOCKS {
        let offset = (round % BLOCKS * BLOCK) as u64;
        // In turn, and each first as often as the other.
        for side in [round % 2, 1 - round % 2] {
            let start = Instant::now();
            let got = match side {
                0 => file.read_at(&mut buffer, offset).unwrap() as i64,
                // SAFETY: the buffer has its length.
                _ => unsafe {
                    papilio_capi::papilio_pread(c_file, buffer.as_mut_ptr().cast(), BLOCK, offset)
                },
            };
            times[side].push(start.elapsed());
            assert_eq!(got, BLOCK as i64);
        }
    }
    let [rust, c] = times.map(median);
    println!("a read takes {:.0} us in Rust, {:.0} us in C: {:.3}", rust * 1e6, c * 1e6, rust / c);
    assert!(rust / c > 0.9);
    assert_eq!(papilio_capi::papilio_file_close(c_file), 0);
    assert_eq!(papilio_capi::papilio_close(c_fs), 0);
}
