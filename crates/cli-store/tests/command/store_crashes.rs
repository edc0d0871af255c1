//! Writers to a device in an object store that are killed, and two at once.
//!
//! `PAPILIO_STORE_KILLS` is the number of writers to kill, `PAPILIO_STORE_KILLS_S3` that for S3.

use papilio::device::{Access, Device, RemoteCache, RemoteOptions};
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::object_server::{ObjectServer, PROGRAM};
use papilio_oracle::{Need, Scratch, require};
use papilio_store::{StoreDevice, StoreUrl};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const URL: &str = "PAPILIO_TEST_STORE_URL";
const SEED: &str = "PAPILIO_TEST_STORE_SEED";
/// Where the tests make their stores, if not in files.
const BASE: &str = "PAPILIO_TEST_STORE_BASE";
const SIZE: u64 = 256 << 20;
/// Files that a writer keeps.
const KEPT: u64 = 40;

fn options() -> RemoteOptions {
    RemoteOptions { cache: RemoteCache::Memory, ..RemoteOptions::default() }
}

fn device(url: &str, access: Access) -> Arc<dyn Device> {
    let options = options();
    Arc::new(StoreDevice::open(&StoreUrl::parse(url, &options).unwrap(), access, &options).unwrap())
}

fn open(url: &str) -> FileSystem {
    FileSystem::from_devices(vec![device(url, Access::ReadWrite)], &OpenOptions::new().write(true)).unwrap()
}

fn url(scratch: &Scratch, name: &str) -> String {
    let files = format!("slatedb+file://{}", scratch.path().display());
    format!("{}/{name}", std::env::var(BASE).unwrap_or(files))
}

fn new_store(url: &str) {
    let made = StoreDevice::create(&StoreUrl::parse(url, &options()).unwrap(), SIZE, &options()).unwrap();
    papilio::mkfs_device(&(Arc::new(made) as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
}

/// Returns the bytes of file `number`.
fn content(number: u64) -> Vec<u8> {
    let length = 1 + number * 7919 % 50_000;
    (0..length).map(|at| (at * 31 + number * 17 + at / 256) as u8).collect()
}

fn write_file(fs: &FileSystem, number: u64) -> papilio::Result<()> {
    let file = fs.create_file(format!("/{number:06}"))?;
    file.write_all_at(&content(number), 0)?;
    file.sync_all()
}

/// Writes numbered files, and says on standard output which are durable. It ends when it is killed.
#[test]
#[ignore = "the process that other tests kill"]
fn writer_process() {
    let (Ok(url), Ok(first)) = (std::env::var(URL), std::env::var(SEED)) else { return };
    let fs = open(&url);
    let mut output = std::io::stdout();
    for number in first.parse::<u64>().unwrap().. {
        write_file(&fs, number).unwrap();
        writeln!(output, "\ndurable {number}").unwrap();
        if number % 10 == 9 && number >= KEPT {
            for old in number.saturating_sub(KEPT + 9)..=number - KEPT {
                // Files of an earlier writer that was killed may be gone.
                let _ = fs.remove_file(format!("/{old:06}"));
            }
            fs.sync().unwrap();
            writeln!(output, "\nremoved {}", number - KEPT).unwrap();
        }
        output.flush().unwrap();
    }
}

/// When a writer is killed.
enum Kill {
    /// So long after its start. It may be opening the device.
    AfterStart(Duration),
    /// So long after its first durable file.
    AfterFile(Duration),
}

/// Runs a writer for a while and kills it. Adds the files that it called durable to `durable`.
fn kill_a_writer(url: &str, first: u64, kill: &Kill, durable: &mut BTreeMap<u64, ()>) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_crashes::writer_process", "--ignored", "--nocapture"])
        .env(URL, url)
        .env(SEED, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, lines_of_writer) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| sender.send(line).expect("the test waits"));
    });
    let mut found = Vec::new();
    match kill {
        Kill::AfterStart(time) => std::thread::sleep(*time),
        Kill::AfterFile(time) => {
            while !found.last().is_some_and(|line: &String| line.starts_with("durable")) {
                found.push(lines_of_writer.recv_timeout(Duration::from_secs(120)).expect("no file in 120 s"));
            }
            std::thread::sleep(*time);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    found.extend(lines_of_writer.iter());
    reader.join().unwrap();
    let mut next = first;
    for line in found {
        if let Some(number) = line.strip_prefix("durable ") {
            let number = number.parse().unwrap();
            durable.insert(number, ());
            next = number + 1;
        } else if let Some(number) = line.strip_prefix("removed ") {
            *durable = durable.split_off(&(number.parse::<u64>().unwrap() + 1));
        }
    }
    // Files that it was about to remove may be there or not.
    if next.is_multiple_of(10) && next > KEPT {
        *durable = durable.split_off(&(next - KEPT));
    }
    // The file after the last one may be there, too.
    next + 1
}

#[test]
fn killed_writers_lose_nothing_that_was_durable() {
    let kills = std::env::var("PAPILIO_STORE_KILLS").map_or(8, |text| text.parse().unwrap());
    let scratch = Scratch::new(4 << 30).unwrap();
    let url = url(&scratch, "store");
    new_store(&url);
    let mut random = fastrand::Rng::with_seed(11);
    let (mut next, mut total, mut durable) = (0, 0, BTreeMap::new());
    for kill in 0..kills {
        let before = next;
        let time = Duration::from_millis(random.u64(10..600));
        let when = if random.u8(..3) == 0 { Kill::AfterStart(time) } else { Kill::AfterFile(time) };
        next = kill_a_writer(&url, next, &when, &mut durable);
        total += next - before - 1;
        let fs = open(&url);
        for &number in durable.keys() {
            let found = fs.open_file(format!("/{number:06}")).and_then(|file| file.read_all());
            let found = found.unwrap_or_else(|error| panic!("kill {kill}: file {number}: {error}"));
            assert!(found == content(number), "kill {kill}: file {number} differs");
        }
        fs.close().unwrap();
        let checked = CheckOptions::new().data_csum(true);
        let devices = vec![device(&url, Access::ReadOnly)];
        let report = papilio::check_devices(devices, &OpenOptions::new(), &checked).unwrap();
        assert!(report.is_clean(), "kill {kill}: {:#?}", report.findings);
    }
    println!("{kills} writers were killed; {total} files had become durable, and none was lost");
    assert!(total > 0, "no writer got as far as its first file");
}

#[test]
fn of_two_writers_the_older_is_fenced() {
    let rounds = std::env::var("PAPILIO_STORE_KILLS").map_or(4, |text| text.parse::<u64>().unwrap() / 10 + 1);
    let scratch = Scratch::new(1 << 30).unwrap();
    for round in 0..rounds {
        let url = url(&scratch, &format!("store{round}"));
        new_store(&url);
        let older = open(&url);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let failed = scope.spawn(|| {
                let began = Instant::now();
                for number in 0.. {
                    if let Err(error) = write_file(&older, number) {
                        return error.to_string();
                    }
                    acknowledged.store(number + 1, Ordering::SeqCst);
                    assert!(began.elapsed() < Duration::from_secs(60), "the older writer was not fenced");
                }
                unreachable!("the loop returns")
            });
            while acknowledged.load(Ordering::SeqCst) < 1 + round * 7 % 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let younger = open(&url);
            let reason = failed.join().unwrap();
            assert!(reason.contains("another program has opened it for writing"), "{reason}");
            // Those that the older one has called durable, and at most one more.
            let count = acknowledged.load(Ordering::SeqCst);
            for number in 0..count {
                let found = younger.open_file(format!("/{number:06}")).unwrap().read_all().unwrap();
                assert!(found == content(number), "round {round}: file {number}");
            }
            younger.create_file("/younger").unwrap().sync_all().unwrap();
            younger.close().unwrap();
        });
        assert!(older.sync().is_err(), "a fenced writer does not become one again");
        drop(older);
        let fs = open(&url);
        assert!(fs.open_file("/younger").is_ok());
        fs.close().unwrap();
    }
}

/// Runs the two tests above in a bucket of an S3 server, in a process of their own: they read its
/// address from the environment.
#[test]
fn writers_to_s3_lose_nothing_either() {
    if require(&[Need::Command(PROGRAM)]).is_none() {
        return;
    }
    let server = ObjectServer::start().unwrap();
    server.make_bucket("bucket").unwrap();
    let proxy = server.proxy(Duration::ZERO).unwrap();
    let tests = ["killed_writers_lose_nothing_that_was_durable", "of_two_writers_the_older_is_fenced"]
        .map(|name| format!("store_crashes::{name}"));
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .args(tests)
        .env(BASE, "slatedb+s3://bucket")
        .env("PAPILIO_STORE_KILLS", std::env::var("PAPILIO_STORE_KILLS_S3").unwrap_or("3".to_owned()))
        .env("AWS_ENDPOINT", proxy.url())
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_REGION", "us-east-1")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    assert!(proxy.take_counts().0 > 100, "the tests did not write to the server");
}
