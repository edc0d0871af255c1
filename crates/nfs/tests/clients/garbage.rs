//! Calls that lie: mutated and random records, over TCP. The server answers or disconnects, goes on
//! serving others, and the file system stays valid.

use crate::raw::{Raw, name};
use crate::{image, open, trusting};
use nfs3_types::nfs3::{self, NFS_PROGRAM as P};
use nfs3_types::nfs3::{
    CREATE3args, Nfs3Option, READ3args, READDIRPLUS3args, RENAME3args, SETATTR3args, WRITE3args, cookieverf3,
    createhow3, diropargs3, nfs_fh3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use papilio_nfs::fuzzing::Records;
use papilio_oracle::{ImageSet, Need, Scratch, require};

const CALLS: u32 = 3000;

/// Calls that a client sends, of all shapes.
fn honest(client: &Raw, root: &nfs_fh3, file: &nfs_fh3) -> Vec<Vec<u8>> {
    let at = |text: &str| diropargs3 { dir: root.clone(), name: name(text) };
    let nfs = nfs3::PROGRAM;
    let set = sattr3 { mode: Nfs3Option::Some(0o600), size: Nfs3Option::Some(9), ..sattr3::default() };
    let data = Opaque::borrowed(&[5; 1000]);
    let stable = stable_how::UNSTABLE;
    let new_attributes = set.clone();
    let how = createhow3::UNCHECKED(set);
    let cookieverf = cookieverf3::default();
    vec![
        client.encode(nfs, P::NFSPROC3_GETATTR as u32, file),
        client.encode(nfs, P::NFSPROC3_LOOKUP as u32, &at("file")),
        client.encode(nfs, P::NFSPROC3_READ as u32, &READ3args { file: file.clone(), offset: 3, count: 999 }),
        client.encode(
            nfs,
            P::NFSPROC3_WRITE as u32,
            &WRITE3args { file: file.clone(), offset: 7, count: 1000, stable, data },
        ),
        client.encode(
            nfs,
            P::NFSPROC3_SETATTR as u32,
            &SETATTR3args { object: file.clone(), new_attributes, guard: Nfs3Option::None },
        ),
        client.encode(nfs, P::NFSPROC3_CREATE as u32, &CREATE3args { where_: at("made"), how }),
        client.encode(nfs, P::NFSPROC3_REMOVE as u32, &at("made")),
        client.encode(nfs, P::NFSPROC3_RENAME as u32, &RENAME3args { from: at("file"), to: at("moved") }),
        client.encode(
            nfs,
            P::NFSPROC3_READDIRPLUS as u32,
            &READDIRPLUS3args { dir: root.clone(), cookie: 0, cookieverf, dircount: 512, maxcount: 4096 },
        ),
        client.encode(nfs3_types::mount::PROGRAM, 1, &Opaque::borrowed(b"/papilio")),
        client.encode(nfs3_types::portmap::PROGRAM, 0, &0_u32),
    ]
}

/// Changes a call: its bytes, words and length.
fn lie(chance: &mut fastrand::Rng, call: &[u8]) -> Vec<u8> {
    let mut call = call.to_vec();
    for _ in 0..chance.u32(1..4) {
        let at = chance.usize(..call.len().max(1));
        match chance.u32(..6) {
            0 => call.truncate(at),
            1 => call.extend((0..chance.usize(..64)).map(|_| chance.u8(..))),
            2 if at + 4 <= call.len() => {
                let word = *chance.choice([0, 1, 2, 63, 0xffff, 0x7fff_ffff, u32::MAX].iter()).unwrap();
                let at = at / 4 * 4;
                call[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            3 if !call.is_empty() => call[at] = chance.u8(..),
            4 if at + 4 <= call.len() => drop(call.drain(at..at + 4)),
            _ => call = (0..chance.usize(..400)).map(|_| chance.u8(..)).collect(),
        }
    }
    call
}

#[test]
fn calls_that_lie_harm_nobody() {
    let seed = std::env::var("PAPILIO_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("PAPILIO_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = image(&scratch);
    let fs = open(&image);
    fs.write("/outside", b"the words of others").unwrap();
    fs.create_dir("/served").unwrap();
    fs.write("/served/file", vec![1; 5000]).unwrap();
    let server = trusting(&fs, b"/served");
    let witness = Raw::connect(server.address(), 0, 0, &[]);
    let root = witness.root();
    let file = witness.lookup(&root, "file").unwrap();
    let honest = honest(&witness, &root, &file);
    let mut client = Raw::connect(server.address(), 0, 0, &[]);
    let mut answered = 0;
    for number in 0..CALLS {
        let chosen = chance.usize(..honest.len());
        let call = lie(&mut chance, &honest[chosen]);
        match client.exchange(&call) {
            Some(reply) => {
                answered += 1;
                assert!(!reply.windows(9).any(|bytes| bytes == b"the words"), "call {number}");
            }
            // A message that is no call ends the connection.
            None => client = Raw::connect(server.address(), 0, 0, &[]),
        }
        if number % 500 == 0 {
            assert!(witness.getattr(&root).is_ok(), "call {number}");
        }
    }
    assert!(answered > CALLS / 4, "only {answered} of {CALLS} were calls");
    // A record longer than any, and one that stops in the middle.
    for start in [&[0x7f, 0xff, 0xff, 0xff][..], &[0x80, 0, 0, 100, 1, 2]] {
        Raw::connect(server.address(), 0, 0, &[]).send_and_leave(start);
    }
    assert!(witness.getattr(&root).is_ok());
    drop((witness, client));
    server.stop().unwrap();
    fs.close().unwrap();
    assert!(
        papilio::check(&image, &papilio::OpenOptions::new(), &papilio::CheckOptions::new())
            .unwrap()
            .is_clean()
    );
    if require(&[Need::Root, Need::Loop, Need::Command("btrfs")]).is_some() {
        ImageSet::open(&scratch, vec![image]).btrfs_check().unwrap();
    }
}

/// `PAPILIO_LONG=1` answers ten million records.
#[test]
fn records_of_the_fuzz_target_are_answered() {
    let is_long = std::env::var_os("PAPILIO_LONG").is_some_and(|long| long == "1");
    let count = if is_long { 10_000_000 } else { 3000 };
    let mut records = Records::new();
    let mut chance = fastrand::Rng::with_seed(3);
    for number in 0..count {
        let words = [9, 0, 2, nfs3::PROGRAM, 3, number % 23, 0, 0, 0, 0];
        let mut record: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        for _ in 0..chance.u32(..12) {
            match chance.u32(..5) {
                0 => record.extend([b'@', b'H', b'@', chance.u8(..)]),
                1 => record.extend(*b"\0\0\0\x04file"),
                2 => record.extend(chance.u32(..8).to_be_bytes()),
                3 => record.extend([0; 4]),
                _ => record.extend(chance.u32(..).to_be_bytes()),
            }
        }
        if chance.u32(..4) == 0 {
            record = lie(&mut chance, &record);
        }
        records.answer(&record);
    }
    println!("{count} records");
}
