//! Hostile send streams, received in batches on a prepared file system: no panic, nothing outside
//! of the subvolume is touched, and nothing incomplete looks whole. A sample of the results is
//! committed and checked.
//!
//! `PAPILIO_STREAMS` sets the number of streams (400), `PAPILIO_STREAMS_FROM` the first seed (0).

use papilio::Receive;
use papilio_simulator::hostile::{HostileStream, RawCommand, ReceiveSummary, Receiver};
use papilio_simulator::minimise;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Streams that share a file system.
const BATCH: u64 = 64;
/// One in this many batches is committed and checked.
const CHECKED: u64 = 4;
/// Time to shorten a stream that breaks a rule.
const SHRINK: Duration = Duration::from_secs(120);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// The options of a seed.
fn options(seed: u64) -> Receive {
    Receive::new()
        .max_errors(u64::from(seed.is_multiple_of(3)))
        .force_decompress(seed.is_multiple_of(5))
        .resume(seed.is_multiple_of(7))
        .stop_at_end(seed.is_multiple_of(11))
}

/// Receives the streams of a batch; they break a rule, or one of them does.
fn receive(receiver: &Receiver, seeds: Range<u64>, check: bool) -> Result<ReceiveSummary, String> {
    let run = AssertUnwindSafe(|| {
        let (mut batch, mut total) = (receiver.batch()?, ReceiveSummary::default());
        for seed in seeds {
            let stream = HostileStream::mutated(receiver.streams(), seed);
            let summary = batch.receive(&stream, &options(seed));
            total += summary.map_err(|rule| format!("seed {seed}: {rule}"))?;
        }
        batch.finish(check).map(|()| total)
    });
    catch_unwind(run).unwrap_or_else(|_| Err("panicked".to_owned()))
}

/// Receives a stream alone, and checks the result.
fn receive_alone(receiver: &Receiver, stream: &HostileStream, seed: u64) -> Result<ReceiveSummary, String> {
    let run = AssertUnwindSafe(|| receiver.receive(stream, &options(seed), true));
    catch_unwind(run).unwrap_or_else(|_| Err("panicked".to_owned()))
}

/// Finds the stream of a batch that broke a rule, and the commands of it that are needed.
fn report(receiver: &Receiver, seeds: Range<u64>, rule: &str) -> ! {
    for seed in seeds.clone() {
        let stream = HostileStream::mutated(receiver.streams(), seed);
        let Err(rule) = receive_alone(receiver, &stream, seed) else { continue };
        let with = |commands: &[RawCommand]| HostileStream { commands: commands.to_vec(), ..stream.clone() };
        let fails = |commands: &[RawCommand]| receive_alone(receiver, &with(commands), seed).is_err();
        let needed = minimise(&stream.commands, SHRINK, fails);
        panic!("seed {seed}: {rule}\nthe stream that is needed: {:#?}", with(&needed));
    }
    // No stream does it alone: streams are left out from the front.
    let mut first = seeds.start;
    while first + 1 < seeds.end && receive(receiver, first + 1..seeds.end, true).is_err() {
        first += 1;
    }
    panic!("seeds {first} to {} together: {rule}", seeds.end - 1);
}

#[test]
fn the_streams_themselves_are_received() {
    let receiver = Receiver::new().unwrap();
    for (number, stream) in receiver.streams().iter().enumerate() {
        let summary = receiver.receive(stream, &Receive::new(), true).unwrap();
        let expected = ReceiveSummary { received: 1, failed: 0, begun: 1, completed: 1 };
        assert_eq!(summary, expected, "stream {number}");
        // Without its end, each is incomplete.
        let commands = stream.commands[..stream.commands.len() - 1].to_vec();
        let cut = HostileStream { commands, ..stream.clone() };
        let summary = receiver.receive(&cut, &Receive::new(), true).unwrap();
        assert_eq!((summary.begun, summary.completed), (1, 0), "stream {number}");
    }
}

#[test]
fn hostile_streams_leave_nothing_that_looks_whole() {
    let (first, streams) = (setting("PAPILIO_STREAMS_FROM", 0), setting("PAPILIO_STREAMS", 400));
    let receiver = Receiver::new().unwrap();
    let (mut total, started) = (ReceiveSummary::default(), Instant::now());
    let end = first + streams;
    for (number, start) in (first..end).step_by(BATCH as usize).enumerate() {
        let seeds = start..end.min(start + BATCH);
        match receive(&receiver, seeds.clone(), (number as u64).is_multiple_of(CHECKED)) {
            Ok(summary) => total += summary,
            Err(rule) => report(&receiver, seeds, &rule),
        }
    }
    let rate = streams as f64 / started.elapsed().as_secs_f64();
    println!("{total:?}, {rate:.0} streams a second");
    let all = total.received > 0 && total.failed > 0 && total.completed > 0;
    assert!(streams < 100 || all && total.begun > total.completed, "{total:?}");
}
