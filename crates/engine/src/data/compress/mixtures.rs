//! Seeded mixtures of blocks through the coders of one thread.
//!
//! Each mixture is a sequence of blocks, some of which do not fit their limit. Every result is
//! decoded by another decoder than ours: libdeflate for zlib, lzokay for LZO, and zstd's function
//! for one shot with a context of its own. It also equals the result of coders that are new, so
//! that no state of an earlier block is left. Our own decoders are reused as well, after good and
//! damaged streams.
//!
//! `PAPILIO_MIXTURES` is the number of mixtures, `PAPILIO_MIXTURES_SEED` the first seed. The
//! mixtures of a long run begin with the choices that `PAPILIO_MIXTURES_OF` names, for instance
//! `lzo,zlib:1,zstd:-3`; a name without a level stands for all levels.

use super::tests::choices;
use super::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The mixtures of a usual run.
const MIXTURES: u64 = 2000;
const SECTOR: usize = 4096;

/// The counts of one algorithm at one level.
#[derive(Debug, Default)]
struct Tally {
    tried: u64,
    /// Blocks that did not fit their limit.
    aborted: u64,
    /// Results that another decoder refuses, or decodes to other data.
    wrong: u64,
    /// Results that depend on earlier blocks.
    unequal: u64,
    /// Good streams that our decoder refuses, or decodes to other data.
    misread: u64,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Returns the indexes of the choices that a mixture may begin with.
fn first_choices(choices: &[CompressionChoice]) -> Vec<usize> {
    let wanted = std::env::var("PAPILIO_MIXTURES_OF").unwrap_or_default();
    let wanted: Vec<_> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    let is_wanted = |choice: &CompressionChoice| {
        let name = choice.to_string();
        let algorithm = name.split(':').next();
        wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name || Some(*wanted) == algorithm)
    };
    let first: Vec<_> = (0..choices.len()).filter(|index| is_wanted(&choices[*index])).collect();
    assert!(!first.is_empty(), "no choice is named {wanted:?}");
    first
}

/// Returns a length: short, around multiples of a sector, or any up to that of an extent.
fn length(random: &mut fastrand::Rng) -> usize {
    let most = MAX_UNCOMPRESSED as usize;
    match random.u8(0..12) {
        0..2 => random.usize(1..300),
        2..5 => random.usize(1..9) * SECTOR + random.usize(0..5) - 2,
        5..7 => (random.usize(1..33) * SECTOR + random.usize(0..3) - 1).min(most),
        7..9 => most,
        _ => random.usize(1..40_000),
    }
}

/// Returns a block: noise, text, zeros, a short period, a few byte values, or parts of these.
fn block(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = length(random);
    let text = include_bytes!("mod.rs");
    match random.u8(0..8) {
        0..3 => std::iter::repeat_with(|| random.u8(..)).take(length).collect(),
        3 => {
            let start = random.usize(..text.len());
            text.iter().copied().cycle().skip(start).take(length).collect()
        }
        4 => vec![random.u8(0..2) * 0x41; length],
        5 => {
            let period: Vec<u8> = (0..random.usize(1..70)).map(|_| random.u8(..)).collect();
            period.iter().copied().cycle().take(length).collect()
        }
        6 => std::iter::repeat_with(|| random.u8(..) & 7).take(length).collect(),
        _ => {
            // Noise up to a point, so that the limit is met in its middle.
            let noisy = random.usize(..=length);
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(noisy).collect();
            bytes.extend(text.iter().copied().cycle().take(length - noisy));
            bytes
        }
    }
}

/// Decodes a whole stream by another decoder than ours; `None` if it refuses it.
fn decode_elsewhere(compression: Compression, stream: &[u8], length: usize) -> Option<Vec<u8>> {
    match compression {
        Compression::Zlib => {
            let mut output = vec![0; length];
            let decoded = libdeflater::Decompressor::new().zlib_decompress(stream, &mut output).ok()?;
            output.truncate(decoded);
            Some(output)
        }
        Compression::Zstd => ::zstd::bulk::decompress(stream, length).ok(),
        Compression::Lzo => {
            let number = |at: usize| {
                let bytes = stream.get(at..)?.first_chunk::<4>()?;
                Some(u32::from_le_bytes(*bytes) as usize)
            };
            let (total, mut at, mut output) = (number(0)?, 4, Vec::new());
            while at < total {
                let segment = stream.get(at + 4..)?.get(..number(at)?)?;
                let left = (length - output.len()).min(SECTOR);
                output.extend(lzokay_native::decompress_all(segment, Some(left)).ok()?);
                at += 4 + segment.len();
                let rest = at.next_multiple_of(SECTOR) - at;
                at += if rest < 4 { rest } else { 0 };
            }
            (total == stream.len()).then_some(output)
        }
        Compression::None => None,
    }
}

/// Compresses one block with `coders`, and compares it with the result of new ones.
fn try_block(
    coders: &mut Coders,
    random: &mut fastrand::Rng,
    choice: CompressionChoice,
    data: &[u8],
    tally: &mut Tally,
) {
    let (mut output, mut expected) = (Vec::new(), Vec::new());
    let framing = Framing { sector: SECTOR, inline: false };
    let fitting = Coders::default().pack(choice, data, &mut expected, MAX_COMPRESSED as usize * 2, framing);
    assert!(fitting, "{choice}: {} bytes take more than twice an extent", data.len());
    let least = expected.len();
    let limit = match random.u8(0..6) {
        // As a write chooses it.
        0..3 => data.len().next_multiple_of(SECTOR) - SECTOR,
        3 => (least + random.usize(0..3)).saturating_sub(1),
        4 => random.usize(0..=least),
        _ => data.len().saturating_sub(1),
    };
    let fits = coders.pack(choice, data, &mut output, limit, framing);
    tally.tried += 1;
    if !fits {
        tally.aborted += 1;
        // zstd may want more room than it fills.
        let may_refuse = choice.algorithm() == Compression::Zstd && limit < least + 64;
        tally.unequal += u64::from(limit >= least && !may_refuse);
        return;
    }
    assert!(output.len() <= limit, "{choice}: {} bytes for a limit of {limit}", output.len());
    tally.unequal += u64::from(output != expected);
    let compression = choice.algorithm();
    tally.wrong += u64::from(decode_elsewhere(compression, &output, data.len()).as_deref() != Some(data));
    let mut decoded = vec![0; data.len()];
    if random.bool() {
        let mut damaged = output.clone();
        let at = random.usize(..damaged.len());
        damaged[at] ^= random.u8(1..);
        damaged.truncate(random.usize(..=damaged.len()));
        let _ = coders.decode(compression, &damaged, &mut decoded, SECTOR);
        decoded.fill(0);
    }
    let filled = coders.decode(compression, &output, &mut decoded, SECTOR);
    tally.misread += u64::from(filled != Ok(data.len()) || decoded != data);
}

/// Tries one mixture.
fn try_mixture(
    seed: u64,
    choices: &[CompressionChoice],
    first: &[usize],
    tallies: &mut BTreeMap<usize, Tally>,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut coders = Coders::default();
    let mut chosen = first[(seed % first.len() as u64) as usize];
    for _ in 0..random.u8(2..7) {
        // Mostly the encoder of the block before, as in a file system with one level.
        if random.u8(0..10) == 0 {
            chosen = random.usize(..choices.len());
        }
        let data = block(&mut random);
        try_block(&mut coders, &mut random, choices[chosen], &data, tallies.entry(chosen).or_default());
    }
}

#[test]
fn mixtures_survive_the_coders_of_one_thread() {
    let choices = choices();
    let (count, seed) = (number("PAPILIO_MIXTURES", MIXTURES), number("PAPILIO_MIXTURES_SEED", 1));
    let first = first_choices(&choices);
    let mut tallies = BTreeMap::new();
    for seed in seed..seed + count {
        try_mixture(seed, &choices, &first, &mut tallies);
    }
    let mut table = String::from("choice: tried, aborted, wrong, unequal, misread\n");
    let mut failures = 0;
    for (chosen, tally) in &tallies {
        let Tally { tried, aborted, wrong, unequal, misread } = tally;
        let choice = choices[*chosen];
        writeln!(table, "{choice}: {tried}, {aborted}, {wrong}, {unequal}, {misread}").unwrap();
        failures += wrong + unequal + misread;
    }
    println!("{table}");
    assert_eq!(failures, 0, "of {count} mixtures:\n{table}");
}

/// The mixture of the first report: noise, then text, in one batch.
#[test]
fn text_after_noise_of_an_extent() {
    let noise: Vec<u8> = {
        let mut random = fastrand::Rng::with_seed(42);
        std::iter::repeat_with(|| random.u8(..)).take(MAX_UNCOMPRESSED as usize).collect()
    };
    let text = include_bytes!("mod.rs");
    let framing = Framing { sector: SECTOR, inline: false };
    let limit = |data: &[u8]| data.len().next_multiple_of(SECTOR) - SECTOR;
    for choice in choices() {
        let (mut coders, mut output) = (Coders::default(), Vec::new());
        for round in 0..3 {
            assert!(!coders.pack(choice, &noise, &mut output, limit(&noise), framing), "{choice}");
            assert!(coders.pack(choice, text, &mut output, limit(text), framing), "{choice}");
            let decoded = decode_elsewhere(choice.algorithm(), &output, text.len());
            assert!(decoded.as_deref() == Some(&text[..]), "{choice}, round {round}");
        }
    }
}
