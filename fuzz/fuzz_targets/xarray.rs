//! Fuzzes the page cache's XArray: runs the same operations on two arrays, one for each way of
//! inserting, and on a plain map. All three must agree.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/pagecache/tests/xarray_model/driver.rs"]
mod driver;

use driver::{Driver, Operation};

/// The most operations of a run. The time of a comparison grows with their number.
const OPERATIONS: usize = 400;
/// The most comparisons of a run before its end.
const COMPARISONS: usize = 4;

#[derive(Debug)]
struct Run {
    bits: u32,
    high: bool,
    operations: Vec<Operation>,
}

/// Generates an index: near zero, near a power of two, or anywhere.
fn index(input: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    Ok(match input.int_in_range(0..=3u8)? {
        0 => u64::from(input.arbitrary::<u8>()?),
        1 => u64::from(input.arbitrary::<u16>()?),
        2 => (1u64 << input.int_in_range(0..=63u32)?).wrapping_add(input.arbitrary::<i8>()? as u64),
        _ => input.arbitrary()?,
    })
}

fn operation(input: &mut Unstructured<'_>) -> arbitrary::Result<Operation> {
    let order = |input: &mut Unstructured<'_>| input.int_in_range(0..=9u8);
    Ok(match input.int_in_range(0..=8u8)? {
        0 => Operation::Insert { index: index(input)?, order: order(input)?, value: input.arbitrary()? },
        1 => Operation::Store { index: index(input)?, order: order(input)?, value: input.arbitrary()? },
        2 => Operation::Erase { index: index(input)? },
        3 => Operation::RemoveRange { first: index(input)?, count: index(input)? },
        4 => Operation::Exchange { index: index(input)?, right: input.arbitrary()?, new: input.arbitrary()? },
        5 => Operation::Split { index: index(input)?, order: order(input)? },
        6 => Operation::SplitAround { index: index(input)?, order: order(input)? },
        7 => Operation::Mark { index: index(input)?, mark: input.arbitrary()?, set: input.arbitrary()? },
        _ => Operation::Compare,
    })
}

impl<'a> Arbitrary<'a> for Run {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let (bits, high) = (input.int_in_range(0..=64u32)?, input.arbitrary()?);
        let mut operations = Vec::new();
        while !input.is_empty() && operations.len() < OPERATIONS {
            operations.push(operation(input)?);
        }
        Ok(Self { bits, high, operations })
    }
}

fuzz_target!(|run: Run| {
    let mut driver = Driver::new(run.bits, run.high);
    let mut comparisons = 0;
    for operation in &run.operations {
        // A comparison takes longer than many operations. The driver makes one more at the end.
        comparisons += usize::from(matches!(operation, Operation::Compare));
        if comparisons <= COMPARISONS || !matches!(operation, Operation::Compare) {
            driver.run(operation);
        }
    }
});
