//! Seeded mutations of real file systems: whatever the bytes, the result is an answer or an error.

use papilio_simulator::{BaseImage, exercise, mutate};
use std::panic::AssertUnwindSafe;

const IMAGES: [&[u8]; 2] = [
    include_bytes!("../../../tests/fixtures/fuzz-default.img.zst"),
    include_bytes!("../../../tests/fixtures/fuzz-mixed.img.zst"),
];

/// Maximum processor seconds per run: two orders of magnitude above what any run needs.
const CPU_LIMIT: f64 = 20.0;

/// Returns this thread's processor time in seconds, which does not depend on other load.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A random number generator good enough for choosing bytes (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn unchanged_images_are_clean() {
    for image in IMAGES {
        let base = BaseImage::load(image);
        let summary = exercise(mutate(&base, &[]));
        assert!(summary.mounted, "{summary:?}");
        assert_eq!((summary.errors, summary.findings), (0, 0), "{summary:?}");
        assert!(summary.entries > 60 && summary.bytes > 100_000, "{summary:?}");
    }
}

#[test]
fn mutated_bytes_give_errors_not_panics() {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    };
    let first: u64 = number("PAPILIO_MUTATIONS_FROM", 0);
    let runs: u64 = number("PAPILIO_MUTATIONS", 150);
    let bases = IMAGES.map(BaseImage::load);
    let mut seen_errors = 0;
    for seed in first..first + runs {
        let mut random = Random(seed);
        let changes = 1 + (random.next() % 6) as usize;
        let plan = random.bytes(changes * 16);
        let base = &bases[(seed % 2) as usize];
        let start = cpu_time();
        let caught = std::panic::catch_unwind(AssertUnwindSafe(|| exercise(mutate(base, &plan))));
        let summary = caught.unwrap_or_else(|_| panic!("seed {seed} panicked"));
        let took = cpu_time() - start;
        assert!(took < CPU_LIMIT, "seed {seed} took {took} s of processor time");
        seen_errors += usize::from(summary.errors > 0);
    }
    // Mutations also hit superseded blocks, which nothing reads; others must be detected.
    assert!(seen_errors > 0 || runs < 100, "no mutation was detected");
}
