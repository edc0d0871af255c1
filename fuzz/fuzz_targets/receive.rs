//! Fuzzes receiving: a stream of commands, some of a sender and some of the fuzzer, is received on
//! a prepared file system. Lengths and checksums are right, so that every command is parsed.
//! [`Receiver`] says what must hold afterwards: nothing outside of the subvolume is touched, and a
//! subvolume looks complete only after its end. The same stream is also read as an archive, in
//! bounded memory. For one input in sixteen the result is checked.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use papilio::Receive;
use papilio::stream::{LoadOptions, StreamChain};
use papilio_fuzz::is_checked;
use papilio_simulator::hostile::{Damage, HostileStream, RawCommand, Receiver};
use std::sync::LazyLock;

/// The most commands of a stream.
const COMMANDS: usize = 64;
/// One input of so many is committed and checked.
const CHECKED: u32 = 16;

static RECEIVER: LazyLock<Receiver> = LazyLock::new(|| Receiver::new().expect("the prepared file system"));

/// Where the next commands of a stream come from.
#[derive(Arbitrary, Debug)]
enum Part {
    /// Neighbours in one of a sender's streams, counted from a command, modulo their number.
    Sent { stream: u8, first: u16, count: u8 },
    /// A command of a sender with bytes overwritten.
    Changed { stream: u8, command: u16, at: u16, bytes: [u8; 8], length: u8 },
    /// A command of the fuzzer.
    Any { number: u8, attributes: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
struct Input {
    stream: u8,
    parts: Vec<Part>,
    settings: u8,
    cut: Option<u16>,
}

fn sent(stream: u8) -> &'static [RawCommand] {
    let streams = RECEIVER.streams();
    &streams[usize::from(stream) % streams.len()].commands
}

fn append(commands: &mut Vec<RawCommand>, part: &Part) {
    match part {
        Part::Sent { stream, first, count } => {
            let sent = sent(*stream);
            let first = usize::from(*first) % sent.len();
            commands.extend(sent[first..].iter().take(usize::from(count % 32)).cloned());
        }
        Part::Changed { stream, command, at, bytes, length } => {
            let sent = sent(*stream);
            let mut command = sent[usize::from(*command) % sent.len()].clone();
            let attributes = &mut command.attributes;
            if let Some(last) = attributes.len().checked_sub(1) {
                let start = usize::from(*at) % (last + 1);
                let end = (start + 1 + usize::from(length % 8)).min(last + 1);
                attributes[start..end].copy_from_slice(&bytes[..end - start]);
            }
            commands.push(command);
        }
        Part::Any { number, attributes } => {
            let number = u16::from(number % 30);
            commands.push(RawCommand { number, attributes: attributes.clone() });
        }
    }
}

fuzz_target!(init: { LazyLock::force(&RECEIVER); }, |input: Input| {
    let streams = RECEIVER.streams();
    let base = &streams[usize::from(input.stream) % streams.len()];
    // Every stream begins a subvolume, so that the other commands are not refused at once.
    let mut commands = vec![base.commands[0].clone()];
    for part in &input.parts {
        append(&mut commands, part);
    }
    commands.truncate(COMMANDS);
    let damage = input.cut.map_or(Damage::None, |at| Damage::Cut(usize::from(at)));
    let stream = HostileStream { version: base.version, commands, damage };
    let options = Receive::new()
        .max_errors(u64::from(input.settings & 1))
        .force_decompress(input.settings & 2 != 0)
        .resume(input.settings & 4 != 0)
        .stop_at_end(input.settings & 8 != 0);
    // As an archive, it must be refused or read, in bounded memory.
    let archive = LoadOptions::new().decompress(true).memory(64 << 20);
    let _ = StreamChain::scan("fuzz", &mut &stream.to_bytes()[..], archive);
    if let Err(rule) = RECEIVER.receive(&stream, &options, is_checked(&stream.to_bytes(), CHECKED)) {
        panic!("{rule}");
    }
});
