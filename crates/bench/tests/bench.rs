//! Tests of the program `papilio-bench` with the real fio: small runs, sweeps, Ctrl-C, and errors.

use papilio_bench::report::{LeftOut, Report};
use papilio_bench::side::Side;
use papilio_oracle::{Need, require};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_papilio-bench");
const FIO: Need = Need::Command("fio");

fn bench(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Returns the path of Papilio's fio engine, which cargo builds next to these tests.
fn engine() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libpapilio_fio.so")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what a process left behind: directories, mounts, loop devices and cgroups.
fn leftovers(pid: u32) -> Vec<String> {
    let mark = format!("/papilio-{pid}-");
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let mut found = names("/dev/shm");
    found.extend(names("/tmp"));
    found.extend(std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().map(str::to_owned));
    for device in names("/sys/block") {
        let backing = format!("{device}/loop/backing_file");
        found.extend(std::fs::read_to_string(backing).ok());
    }
    found.retain(|line| line.contains(&mark));
    found.extend(
        names("/sys/fs/cgroup/memory").into_iter().filter(|n| n.ends_with(&format!("papilio-bench-{pid}"))),
    );
    found
}

#[test]
fn three_sides_make_a_report() {
    let mut needs = vec![FIO];
    needs.extend(Need::KERNEL_MOUNT);
    let Some(_met) = require(&needs) else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let markdown = folder.path().join("docs/bench.md");
    let child = Command::new(PROGRAM)
        .args(["--jobs", "000,fsync,direct-read-1m,004", "--sides", "kernel,papilio,raw", "--rounds", "2"])
        .args(["--scale", "0.0001", "--runtime", "0.2"])
        .arg("--engine")
        .arg(engine())
        .arg("--output")
        .arg(&output)
        .arg("--markdown")
        .arg(&markdown)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let done = child.wait_with_output().unwrap();
    let messages = text(&done.stderr);
    assert!(done.status.success(), "{messages}");
    assert_eq!(leftovers(pid), Vec::<String>::new());
    assert!(messages.contains("round 2 of 2: kernel"), "{messages}");

    let report = Report::read(&output.join("report.json")).unwrap();
    let ids: Vec<&str> = report.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(
        ids,
        ["prealloc-write", "nocow-overwrite", "fsync", "direct-read-1m", "cached-read", "cached-read-huge"]
    );
    for job in &report.jobs {
        for side in WANTED {
            let runs = job.side(side).unwrap_or_else(|| panic!("{} {side}: {messages}", job.id));
            assert_eq!(runs.runs.len(), 2, "{} {side}", job.id);
            for run in &runs.runs {
                assert!(run.fio.bandwidth_mib > 0.0 && run.fio.latency_ns.len() > 10, "{} {side}", job.id);
            }
        }
    }
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("id=\"cached-read-huge-latency\""));
    assert!(output.join("fio/prealloc-write-kernel-2.json").is_file());
    assert!(std::fs::read_to_string(&markdown).unwrap().contains("plots/fsync-cpu.svg"));
    let table = text(&done.stdout);
    assert!(table.contains("x kernel") && table.contains("\nprealloc-write: "), "{table}");

    // Reading the JSON and printing it as JSON changes nothing.
    let json = output.join("report.json");
    let again = bench(&["--report", json.to_str().unwrap(), "--json"]);
    assert!(again.status.success());
    assert_eq!(text(&again.stdout), std::fs::read_to_string(&json).unwrap());
}

#[test]
fn sweeps_have_results_at_every_point() {
    let Some(_met) = require(&[FIO]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let sized = ["--sides", "papilio,raw", "--rounds", "1", "--scale", "0.0001", "--runtime", "0.1"];
    let mut files = Vec::new();
    for (over, points, jobs) in [
        ("threads", "1,2", "fsync,direct-read-1m"),
        ("extents", "100,2000", "prealloc-write,direct-read-4k"),
        ("snapshots", "1,20", "fsync"),
    ] {
        let output = folder.path().join(over);
        let mut arguments = vec!["sweep", "--over", over, "--points", points, "--jobs", jobs];
        arguments.extend(["--engine", engine.to_str().unwrap(), "--output", output.to_str().unwrap()]);
        arguments.extend(sized);
        let done = bench(&arguments);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let report = Report::read(&output.join("report.json")).unwrap();
        assert_eq!(report.left_out, [], "{over}");
        assert_eq!(report.sweeps.len(), 1);
        let wanted: Vec<u64> = points.split(',').map(|point| point.parse().unwrap()).collect();
        for job in jobs.split(',') {
            let swept: Vec<_> = report.sweeps[0].of_job(job).collect();
            assert_eq!(swept.iter().map(|point| point.value).collect::<Vec<_>>(), wanted, "{over} {job}");
            for point in swept {
                for side in [Side::Papilio, Side::Raw] {
                    assert!(point.job.bandwidth(side).unwrap().median > 0.0, "{over} {job} {side}");
                }
            }
        }
        files.push(output.join("report.json"));
    }
    // Merges all of them into one page.
    let page = folder.path().join("page");
    let mut arguments: Vec<&str> =
        files.iter().flat_map(|file| ["--report", file.to_str().unwrap()]).collect();
    arguments.extend(["--output", page.to_str().unwrap()]);
    assert!(bench(&arguments).status.success());
    let text = std::fs::read_to_string(page.join("report.html")).unwrap();
    for id in ["direct-read-1m-over-threads", "direct-read-4k-over-extents", "fsync-over-snapshots"] {
        assert!(text.contains(&format!("<figure id=\"{id}\">")), "{id}");
    }
}

/// The sides that must have results.
const WANTED: [Side; 3] = [Side::Kernel, Side::Papilio, Side::Raw];

#[test]
fn ctrl_c_removes_everything() {
    let mut needs = vec![FIO];
    needs.extend(Need::KERNEL_MOUNT);
    let Some(_met) = require(&needs) else { return };
    let mut child = Command::new(PROGRAM)
        .args(["prealloc-write", "--sides", "kernel", "--scale", "0.0001", "--runtime", "600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("round 1 of 3: kernel") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the program exited before the first run");
    }
    // Waits for the mount, then a moment longer so that fio is running.
    let start = std::time::Instant::now();
    while !leftovers(pid).iter().any(|found| found.contains("btrfs")) {
        assert!(start.elapsed().as_secs() < 120, "the file system was not mounted in time");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.ends_with("papilio-bench: interrupted\n"), "{rest}");
    assert_eq!(leftovers(pid), Vec::<String>::new());
}

#[test]
fn errors_are_one_line() {
    let wrong = |arguments: &[&str], code: i32, words: &str| {
        let output = bench(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.starts_with("papilio-bench: ") && message.contains(words), "{message}");
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    };
    wrong(&["--jobs", "000,007"], 2, "unknown job \"007\"");
    wrong(&["--sides", "ext4"], 2, "unknown side \"ext4\"");
    wrong(&["--against", "/no/such.so"], 1, "--against /no/such.so");
    wrong(&["--scale", "0"], 2, "--scale 0");
    wrong(&["sweep", "--over", "threads", "--rounds", "0"], 2, "--rounds 0");
    wrong(&["--report", "/nowhere/report.json"], 1, "/nowhere/report.json");
    wrong(&["--output", "/proc/nowhere"], 1, "/proc/nowhere/fio");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[]").unwrap();
    wrong(&["--report", file.path().to_str().unwrap()], 1, "not a report");
}

#[test]
fn missing_fio_names_the_package() {
    if ["/usr/sbin/fio", "/sbin/fio", "/usr/local/sbin/fio"].iter().any(|path| Path::new(path).exists()) {
        panic!("fio is installed in a directory that is searched regardless of PATH");
    }
    let output = Command::new(PROGRAM).env("PATH", "/nowhere").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("papilio-bench: fio is not installed"), "{}", text(&output.stderr));
}

#[test]
fn sides_that_cannot_run_are_reported() {
    let Some(_met) = require(&[FIO]) else { return };
    // fio cannot load this engine; the raw side still runs.
    let folder = tempfile::tempdir().unwrap();
    let engine = folder.path().join("libpapilio_fio.so");
    std::fs::write(&engine, "no library").unwrap();
    let sized =
        ["--jobs", "002", "--sides", "papilio,raw", "--rounds", "1", "--scale", "0.0001", "--runtime", "0.2"];
    let engine_argument = ["--engine", engine.to_str().unwrap(), "--json"];
    let output = bench(&[&sized[..], &engine_argument].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.left_out.len(), 1);
    let left = &report.left_out[0];
    assert_eq!((left.side, left.job.as_deref()), (Side::Papilio, Some("checksummed-write")));
    assert!(left.why.contains("libpapilio_fio.so"), "{}", left.why);
    assert!(report.jobs[0].side(Side::Raw).is_some());
    assert!(text(&output.stderr).contains("checksummed-write papilio: left out"), "{}", text(&output.stderr));
}

#[test]
fn nocow_check_times_both_modes() {
    let output = bench(&["nocow-check", "--rounds", "1", "--checks", "20"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert_eq!(table.lines().count(), 9, "{table}");
    assert!(table.contains("8192 KiB with checksums") && table.contains("4 KiB without"), "{table}");
}

#[test]
fn profiles_and_memory_are_in_the_report() {
    let Some(_met) = require(&[FIO]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (engine, output) = (engine(), folder.path().join("out"));
    let mut arguments =
        vec!["--jobs", "cached-read", "--sides", "papilio", "--rounds", "1", "--scale", "0.0001"];
    arguments.extend(["--runtime", "1", "--profile", "--engine", engine.to_str().unwrap()]);
    arguments.extend(["--output", output.to_str().unwrap()]);
    let done = bench(&arguments);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = Report::read(&output.join("report.json")).unwrap();
    let job = report.job("cached-read").unwrap();
    // A slow machine may fill only part of the cache in that time.
    let (memory, cache) = (job.memory(Side::Papilio).unwrap(), job.cache.unwrap());
    assert!(memory < 4 * cache, "{memory} bytes for a cache of {cache}");
    assert!(text(&done.stdout).contains("memory: peak MiB: papilio "), "{}", text(&done.stdout));
    let refused = |left: &LeftOut| left.why.starts_with("cannot profile: perf");
    if report.left_out.iter().any(refused) {
        assert!(job.profiles.is_empty());
    } else {
        assert_eq!(report.left_out, []);
        let profile = &job.profiles[0];
        assert!(profile.side == Side::Papilio && profile.samples > 5 && profile.symbols.len() > 5);
        assert!(profile.parts.iter().any(|(part, _)| part == "kernel and device"), "{profile:?}");
    }
}

#[test]
fn images_of_a_directory_are_compared() {
    if !Path::new(PROGRAM).with_file_name("papilio").is_file() {
        assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none(), "the command is not built");
        eprintln!("skipped: the papilio command is not built");
        return;
    }
    let output = bench(&["image", "--files", "150", "--rounds", "1", "--quiet"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(table.contains("papilio mkfs --rootdir") && table.contains("1.00 times papilio"), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
}
