//! Sends that are cut at a random byte and go on from the token of the receiver.

use super::setting;
use crate::churn::Random;
use crate::common::{check_failure, command, fail, succeed, succeed_json};
use crate::pairs::{BATCH, source};
use papilio::stream::{LoadOptions, StreamChain, StreamDifference, StreamError, StreamInput, compare};
use papilio::{
    FileSystem, MkfsOptions, OpenOptions, Receive, ResumeToken, SendOptions, SendProtocol, TreeId, pass_rest,
};
use papilio_oracle::Scratch;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

fn options(seed: u64, parent: Option<TreeId>) -> SendOptions {
    let protocol = if seed.is_multiple_of(3) { SendProtocol::V1 } else { SendProtocol::V2 };
    SendOptions::new().protocol(protocol).compressed_data(seed % 3 == 2).parent(parent)
}

fn send(fs: &FileSystem, id: TreeId, options: &SendOptions) -> papilio::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    options.send(fs, id, &mut bytes, &mut ()).map(|_| bytes)
}

/// Receives until the bytes end. Returns the token if a subvolume is incomplete.
fn receive(to: &FileSystem, bytes: &[u8]) -> papilio::Result<Option<ResumeToken>> {
    let mut received = Vec::new();
    let result = Receive::new().resume(true).receive(to, "/", &mut &bytes[..], &mut received, &mut ());
    match received.last() {
        Some(last) if !last.complete && last.resumable => Ok(last.token),
        _ => result.map(|()| None),
    }
}

/// Sends with cuts, each time from the position of the receiver. Returns the number of cuts.
fn send_with_cuts(
    random: &mut Random,
    from: &FileSystem,
    id: TreeId,
    options: &SendOptions,
    to: &FileSystem,
) -> usize {
    let mut token: Option<ResumeToken> = None;
    for cuts in 0.. {
        let whole = send(from, id, &options.clone().resume(token)).unwrap();
        // A sender that cannot resume gets to the same bytes.
        if let Some(token) = token {
            let mut passed = Vec::new();
            pass_rest(&mut &send(from, id, options).unwrap()[..], token, &mut passed).unwrap();
            assert!(passed == whole, "the rest differs");
        }
        let ends = cuts == 3;
        let length = if ends { whole.len() } else { random.below(whole.len()) };
        match receive(to, &whole[..length]) {
            Ok(Some(next)) => token = Some(next),
            // The link was cut inside the headers, and nothing has begun.
            Err(_) if !ends => {}
            Ok(None) if ends => return cuts,
            other => panic!("after {cuts} cuts: {other:?}"),
        }
    }
    unreachable!("the last round returns")
}

/// Compares two snapshots by their full streams.
fn differences(scratch: &Scratch, one: (&FileSystem, TreeId), other: (&FileSystem, TreeId)) -> Vec<String> {
    let chain = |(fs, id): (&FileSystem, TreeId)| {
        let path = scratch.unique("compared");
        fs::write(&path, send(fs, id, &SendOptions::new()).unwrap()).unwrap();
        let input = StreamInput::open(&path).unwrap();
        fs::remove_file(path).unwrap();
        StreamChain::load(vec![input], LoadOptions::new()).unwrap()
    };
    let (one, other) = (chain(one), chain(other));
    let mut found = Vec::new();
    let each = |difference: StreamDifference| -> Result<(), StreamError> {
        found.push(format!("{difference:?}"));
        Ok(())
    };
    compare((&one, 0), (&other, 0), each).unwrap();
    found
}

#[test]
fn cut_sends_go_on_and_arrive_equal() {
    let (pairs, mut seed) = (setting("PAPILIO_RESUME_PAIRS", 6), setting("PAPILIO_SEND_SEED", 1));
    let (last, mut cuts) = (seed + pairs, 0);
    while seed < last {
        let now = BATCH.min(last - seed);
        let scratch = Scratch::new(2 << 30).unwrap();
        let image = source(&scratch, seed, now);
        let from = FileSystem::open(&image).unwrap();
        let target = scratch.image("target", 2 << 30).unwrap();
        papilio::mkfs(&target, &MkfsOptions::new().force(true)).unwrap();
        let to = FileSystem::open_with(&target, &OpenOptions::new().write(true)).unwrap();
        for pair in 0..now {
            let mut random = Random(seed + pair);
            let id = |fs: &FileSystem, name: &str| fs.inode(format!("/{name}{pair}")).unwrap().tree();
            let (first, second) = (id(&from, "first"), id(&from, "second"));
            cuts += send_with_cuts(&mut random, &from, first, &options(seed + pair, None), &to);
            cuts += send_with_cuts(&mut random, &from, second, &options(seed + pair, Some(first)), &to);
            let found = differences(&scratch, (&from, second), (&to, id(&to, "second")));
            assert!(found.is_empty(), "seed {}: {}", seed + pair, found.join("\n"));
        }
        to.close().unwrap();
        seed += now;
        if pairs > BATCH {
            println!("{} pairs, {cuts} cuts", pairs - (last - seed));
        }
    }
    assert!(cuts as u64 >= 4 * pairs, "{cuts}");
}

/// An image with the snapshots `/one` and `/two` of a subvolume, and a stream's worth of data.
fn small_image(folder: &Path) -> String {
    let image = folder.join("image");
    let shown = image.to_str().unwrap().to_owned();
    succeed(["-q", "mkfs", "--size", "256M", &shown]);
    let host = folder.join("content");
    fs::write(&host, (0..400_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let at = |path: &str| format!("{shown}:/{path}");
    succeed(["subvolume", "create", &at("s")]);
    succeed(["cp", host.to_str().unwrap(), &at("s/big")]);
    succeed(["subvolume", "snapshot", "-r", &at("s"), &at("one")]);
    succeed(["cp", host.to_str().unwrap(), &at("s/more")]);
    succeed(["subvolume", "snapshot", "-r", &at("s"), &at("two")]);
    shown
}

/// Gives the command a part of a file on standard input.
fn receive_part(stream: &Path, bytes: u64, to: &str) -> std::process::Output {
    let mut part = Vec::new();
    fs::File::open(stream).unwrap().take(bytes).read_to_end(&mut part).unwrap();
    let path = stream.with_extension("part");
    fs::write(&path, part).unwrap();
    let input = fs::File::open(&path).unwrap();
    command().args(["-q", "receive", "--resume", to]).stdin(input).output().unwrap()
}

#[test]
fn tokens_of_the_command_are_taken_and_refused() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let image = small_image(folder.path());
    let (one, two) = (format!("{image}:/one"), format!("{image}:/two"));
    let target = folder.path().join("target");
    succeed(["-q", "mkfs", "--size", "256M", target.to_str().unwrap()]);
    let into = format!("{}:/", target.display());
    let stream = folder.path().join("stream");
    let file = stream.to_str().unwrap();
    succeed(["-q", "send", "-f", file, &two]);
    let whole = fs::metadata(&stream)?.len();
    let stderr = check_failure(&receive_part(&stream, whole / 2, &into), 1, "send --resume ");
    let word = stderr.split("send --resume ").nth(1).unwrap().split(' ').next().unwrap();
    // The half-received subvolume keeps the token.
    let kept = succeed(["getfattr", "--only-values", "-n", "user.papilio.receive", &format!("{into}two")]);
    assert_eq!(String::from_utf8_lossy(&kept).trim(), word);
    fail(1, "none of these snapshots", ["-q", "send", "-f", file, "--resume", word, &one]);
    fail(1, "another stream", ["-q", "send", "-f", file, "--resume", word, "-p", &one, &two]);
    fail(1, "another stream", ["-q", "send", "-f", file, "--resume", word, "--proto", "2", &two]);
    fail(2, "not a token", ["-q", "send", "-f", file, "--resume", "2:nonsense", &two]);
    let mut parts: Vec<String> = word.split(':').map(str::to_owned).collect();
    parts[2] = "1".into();
    fail(1, "the snapshot changed", ["-q", "send", "-f", file, "--resume", &parts.join(":"), &two]);
    succeed(["-q", "send", "-f", file, "--resume", word, &two]);
    let rest = fs::metadata(&stream)?.len();
    assert!(rest < whole * 6 / 10, "{rest} of {whole} bytes");
    // Only a receiver that resumes takes the rest, and no archive is made of it.
    fail(1, "receive --resume", ["-q", "receive", "-f", file, &into]);
    fail(1, "receive --resume", ["stream", "info", file]);
    succeed(["-q", "receive", "--resume", "-f", file, &into]);
    let stderr = fail(1, "does not continue", ["-q", "receive", "--resume", "-f", file, &into]);
    assert!(!stderr.contains("incomplete:"), "{stderr}");
    for path in ["big", "more"] {
        let sent = succeed(["cat", &format!("{two}/{path}")]);
        assert!(succeed(["cat", &format!("{into}two/{path}")]) == sent, "{path}");
    }
    let shown = succeed_json(["subvolume", "show", "--json", &format!("{into}two")]);
    assert!(shown.to_string().contains("received"), "{shown}");
    Ok(())
}
