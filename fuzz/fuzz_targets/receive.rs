//! Fuzzes receiving: the input says which stream of a sender is changed how. Lengths and checksums
//! are repaired, so that most commands reach the interpreter. [`ReceiveTargets`] says what must
//! hold afterwards.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_simulator::ReceiveTargets;
use std::sync::LazyLock;

static TARGETS: LazyLock<ReceiveTargets> = LazyLock::new(ReceiveTargets::new);

/// One of so many inputs is judged thoroughly.
const THOROUGH: u32 = 16;

fuzz_target!(|plan: &[u8]| {
    let sum = plan.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    if let Err(fault) = TARGETS.run(plan, sum % THOROUGH == 0) {
        panic!("{fault}");
    }
});
