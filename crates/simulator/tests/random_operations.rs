//! Random operations on file systems of every shape, beside a model: each answer is the model's, and what is
//! there is the model's, through the open file system and after it is opened anew; the check is clean.
//!
//! `PAPILIO_OPERATIONS` sets how many operations each shape gets, `PAPILIO_SEED` where they begin.

use papilio_device::Device;
use papilio_simulator::{Configuration, Counts, Generator, Scope, Session};
use std::sync::Arc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Operations between two comparisons of everything.
const ROUND: u64 = 250;

fn run(configuration: &Configuration, seed: u64, operations: u64) -> Result<Counts, String> {
    let device = configuration.make().map_err(|error| error.to_string())?;
    let devices: Vec<Arc<dyn Device>> = vec![device];
    let mut session =
        Session::open(devices, configuration.open.clone()).map_err(|error| error.to_string())?;
    let full = configuration.size < 200 << 20;
    let (file_bytes, inodes) = if full { (configuration.size / 4, 400) } else { (1 << 20, 150) };
    let scope = Scope { file_bytes, inodes, ..Scope::default() };
    let mut generator = Generator::new(seed, scope);
    let mut done = 0;
    while done < operations {
        session.run(&mut generator, ROUND.min(operations - done))?;
        done += ROUND;
        session.verify()?;
        if done % (4 * ROUND) == 0 {
            session.close()?;
            session.reopen().map_err(|error| error.to_string())?;
        }
    }
    session.close()?;
    Ok(session.counts())
}

#[test]
fn every_shape_does_what_the_model_does() {
    let operations = setting("PAPILIO_OPERATIONS", 1500);
    let seed = setting("PAPILIO_SEED", 1);
    let mut total = Counts::default();
    let mut failures = Vec::new();
    for (index, configuration) in Configuration::matrix().into_iter().enumerate() {
        let seed = seed + 1000 * index as u64;
        match run(&configuration, seed, operations) {
            Ok(counts) => {
                println!("{}, seed {seed}: {counts:?}", configuration.name);
                total += counts;
            }
            Err(failure) => {
                failures.push(format!("{}, seed {seed}: {failure}", configuration.name));
            }
        }
    }
    println!("in all: {total:?}");
    assert!(failures.is_empty(), "{} failures: {}", failures.len(), failures.join("\n"));
    assert!(total.refused > 0 && total.no_space > 0 && total.syncs > 0, "{total:?}");
}
