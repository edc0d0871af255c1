//! Many requests: the memory that they leave behind, and their speed. `PAPILIO_LONG=1` sends a
//! million.

use crate::raw::Raw;
use crate::{image, open, trusting};
use nfs3_types::nfs3::{sattr3, stable_how};
use papilio_oracle::Scratch;
use std::time::Instant;

/// KiB that the process may gain after its caches are full.
const GROWTH: u64 = 48 << 10;

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn many_requests_leave_no_memory_behind() {
    let is_long = std::env::var_os("PAPILIO_LONG").is_some_and(|long| long == "1");
    let rounds: u32 = if is_long { 100_000 } else { 1500 };
    let scratch = Scratch::new(1 << 30).unwrap();
    let fs = open(&image(&scratch));
    let server = trusting(&fs, b"/");
    let mut client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let (file, _) = client.create(&root, "file", sattr3::default()).unwrap();
    client.write(&file, 0, &[1; 65536], stable_how::FILE_SYNC).unwrap();
    let (mut first, begun) = (0, Instant::now());
    for round in 0..rounds {
        // Ten requests, half of which change something.
        client.getattr(&file).unwrap();
        client.access(&file, 0x3f);
        assert!(client.lookup(&root, "file").unwrap() == file);
        client.read(&file, u64::from(round) % 65536, 4096).unwrap();
        client.write(&file, u64::from(round) % 60_000, &[round as u8; 4096], stable_how::UNSTABLE).unwrap();
        let (new, _) = client.create(&root, &format!("new {round}"), sattr3::default()).unwrap();
        client.write(&new, 0, b"short", stable_how::UNSTABLE).unwrap();
        client.readdirplus(&root, 0, 8192).unwrap();
        client.rename((&root, &format!("new {round}")), (&root, "moved")).unwrap();
        client.remove(&root, "moved").unwrap();
        if round % 500 == 0 {
            // Clients come and go.
            client = Raw::connect(server.address(), 0, 0, &[]);
        }
        if round == rounds / 10 {
            first = resident();
        }
    }
    let (last, seconds) = (resident(), begun.elapsed().as_secs_f64());
    println!("{} requests in {seconds:.0} s: {first} KiB after a tenth, {last} KiB at the end", 10 * rounds);
    assert!(last < first + GROWTH, "{first} KiB after a tenth, {last} KiB at the end");
    drop(client);
    server.stop().unwrap();
    fs.close().unwrap();
}

/// Prints how fast a client alone is, with one call at a time.
#[test]
#[ignore = "a measurement"]
fn speed_of_one_client() {
    let scratch = Scratch::new(2 << 30).unwrap();
    let fs = open(&image(&scratch));
    let server = trusting(&fs, b"/");
    let client = Raw::connect(server.address(), 0, 0, &[]);
    let root = client.root();
    let (file, _) = client.create(&root, "file", sattr3::default()).unwrap();
    let data = vec![7; 1 << 20];
    let timed = |what: &str, count: u32, bytes: u64, mut call: Box<dyn FnMut(u32) + '_>| {
        let begun = Instant::now();
        (0..count).for_each(&mut call);
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{what}: {:.0} calls a second, {:.0} MiB/s",
            f64::from(count) / seconds,
            f64::from(count) * bytes as f64 / seconds / f64::from(1 << 20)
        );
    };
    let ask = |_| {
        client.getattr(&file).unwrap();
    };
    timed("getattr", 50_000, 0, Box::new(ask));
    timed("lookup", 50_000, 0, Box::new(|_| drop(client.lookup(&root, "file").unwrap())));
    let write = |number: u32| {
        client.write(&file, u64::from(number % 100) << 20, &data, stable_how::UNSTABLE).unwrap();
    };
    timed("write of 1 MiB", 300, 1 << 20, Box::new(write));
    client.commit(&file).unwrap();
    let read = |number: u32| drop(client.read(&file, u64::from(number % 100) << 20, 1 << 20).unwrap());
    timed("read of 1 MiB", 1000, 1 << 20, Box::new(read));
    let read = |number: u32| drop(client.read(&file, u64::from(number % 25_000) << 12, 4096).unwrap());
    timed("read of 4 KiB", 50_000, 4096, Box::new(read));
    let create = |number: u32| drop(client.create(&root, &format!("{number}"), sattr3::default()).unwrap());
    timed("durable create", 3000, 0, Box::new(create));
    let remove = |number: u32| client.remove(&root, &format!("{number}")).unwrap();
    timed("durable remove", 3000, 0, Box::new(remove));
    server.stop().unwrap();
    fs.close().unwrap();
}
