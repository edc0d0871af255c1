//! The XArray against a plain map: short proptest runs, and long seeded ones
//! (`PAPILIO_PAGECACHE_STEPS`).

#![cfg(not(feature = "shuttle"))]

mod driver;

use driver::{Driver, Operation};
use proptest::prelude::*;

fn operation() -> impl Strategy<Value = Operation> {
    let index = prop_oneof![any::<u64>(), 0..64u64, 0..600u64];
    let order = prop_oneof![Just(0u8), 0..10u8];
    prop_oneof![
        4 => (index.clone(), order.clone(), any::<bool>())
            .prop_map(|(index, order, value)| Operation::Insert { index, order, value }),
        2 => (index.clone(), order.clone(), any::<bool>())
            .prop_map(|(index, order, value)| Operation::Store { index, order, value }),
        2 => index.clone().prop_map(|index| Operation::Erase { index }),
        1 => (index.clone(), 0..2000u64).prop_map(|(first, count)| Operation::RemoveRange { first, count }),
        2 => (index.clone(), any::<bool>(), any::<Option<bool>>())
            .prop_map(|(index, right, new)| Operation::Exchange { index, right, new }),
        1 => (index.clone(), order.clone()).prop_map(|(index, order)| Operation::Split { index, order }),
        1 => (index.clone(), order).prop_map(|(index, order)| Operation::SplitAround { index, order }),
        3 => (index, 0..3u8, prop::bool::weighted(0.7))
            .prop_map(|(index, mark, set)| Operation::Mark { index, mark, set }),
        1 => Just(Operation::Compare),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 192 }, ..ProptestConfig::default() })]

    #[test]
    fn arrays_match_the_map(
        operations in prop::collection::vec(operation(), 1..60),
        bits in prop_oneof![Just(0u32), 1..14u32, Just(64u32)],
        high in any::<bool>(),
    ) {
        let mut driver = Driver::new(bits, high);
        for operation in &operations {
            driver.run(operation);
        }
    }
}

/// Returns a random operation.
fn random(rng: &mut fastrand::Rng) -> Operation {
    let index = if rng.u8(..8) == 0 { rng.u64(..) } else { rng.u64(..5000) };
    let order = if rng.bool() { 0 } else { rng.u8(..10) };
    match rng.u8(..20) {
        0..=6 => Operation::Insert { index, order, value: rng.u8(..3) != 0 },
        7..=8 => Operation::Store { index, order, value: rng.bool() },
        9..=10 => Operation::Erase { index },
        11 => Operation::RemoveRange { first: index, count: rng.u64(..200) },
        12..=13 => Operation::Exchange {
            index,
            right: rng.u8(..5) != 0,
            new: [None, Some(true), Some(false)][rng.usize(..3)],
        },
        14 => Operation::Split { index, order },
        15 => Operation::SplitAround { index, order },
        _ => Operation::Mark { index, mark: rng.u8(..3), set: rng.u8(..3) != 0 },
    }
}

#[test]
fn long_runs_agree() {
    let steps: u64 =
        std::env::var("PAPILIO_PAGECACHE_STEPS").map_or(20_000, |text| text.parse().expect("a number"));
    for (seed, bits, high) in [(1, 64, false), (2, 12, false), (3, 10, true), (4, 20, false), (5, 6, false)] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut driver = Driver::new(bits, high);
        for step in 0..steps {
            driver.run(&random(&mut rng));
            if step % 997 == 0 {
                driver.compare();
            }
        }
    }
}
