//! Balance, devices, replacements and scrub of a mount, while files change.

use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, check_failure, eventually, fail, papilio, run, succeed};
use papilio::{BalanceFilter, BalanceOptions, DeviceId, ReplaceOptions};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::{Need, require};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

fn new_image(world: &World, name: &str, size: u64) -> String {
    let path = world.beside(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path.to_str().unwrap().to_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Writes and reads files of a mount until it is told to stop, then compares all of them.
fn change_files(directory: &Path, stop: &AtomicBool) {
    const FILES: usize = 6;
    const BYTES: usize = 3 << 20;
    let mut random = fastrand::Rng::with_seed(1);
    let mut contents = vec![vec![0; BYTES]; FILES];
    let open = |number: usize| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(number.to_string()))
            .unwrap()
    };
    let mut files: Vec<_> = (0..FILES).map(open).collect();
    files.iter_mut().for_each(|file| file.write_all(&vec![0; BYTES]).unwrap());
    let mut steps = 0;
    while !stop.load(Ordering::Relaxed) {
        let (number, at) = (random.usize(..FILES), random.usize(..BYTES - 70_000));
        let length = random.usize(1..70_000);
        let (file, content) = (&mut files[number], &mut contents[number]);
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        if random.bool() {
            content[at..at + length].fill(random.u8(..));
            file.write_all(&content[at..at + length]).unwrap();
        } else {
            let mut read = vec![0; length];
            file.read_exact(&mut read).unwrap();
            assert!(read == content[at..at + length], "file {number}, byte {at}");
        }
        if steps % 50 == 0 {
            file.sync_all().unwrap();
        }
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps");
    for (number, content) in contents.iter().enumerate() {
        assert!(fs::read(directory.join(number.to_string())).unwrap() == *content, "file {number}");
    }
}

#[test]
fn a_mount_is_balanced_and_its_devices_change_while_files_do() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let root = world.at("");
    let stop = AtomicBool::new(false);
    let added = new_image(&world, "second.img", 400 << 20);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| change_files(&world.directory(), &stop));
        let work = std::panic::catch_unwind(|| {
            assert!(succeed(["balance", "status", &root]).contains("No balance found"));
            let done = succeed(["balance", "start", &root]);
            assert!(done.starts_with("Done, had to relocate"), "{done}");
            assert!(succeed(["device", "add", &added, &root]).contains("was added"));
            fail(1, "in use", ["device", "add", &added, &root]);
            succeed(["balance", "start", "-f", "--data=convert=raid1", "--metadata=convert=raid1", &root]);
            let usage = succeed(["filesystem", "df", &root]);
            assert!(usage.contains("RAID1") && !usage.contains("single") || usage.contains("GlobalReserve"));
            fail(1, "needs 2 devices", ["device", "remove", &added, &root]);
            succeed(["balance", "start", "-f", "--data=convert=single", "--metadata=convert=dup", &root]);
            assert!(succeed(["device", "remove", "2", &root]).contains("device 2 removed"));
            fail(1, "not a device", ["device", "remove", "2", &root]);
            let scrubbed = succeed(["scrub", "start", "-B", &root]);
            assert!(scrubbed.contains("no errors found"), "{scrubbed}");
            assert!(succeed(["scrub", "status", &root]).contains("finished"));
            fail(1, "it is mounted", ["device", "stats", "--offline", &root]);
            fail(1, "it is mounted", ["filesystem", "resize", "--offline", "max", &root]);
            fail(2, "no scrub is running", ["scrub", "cancel", &root]);
            let limit = ["scrub", "limit", "-l", "1M", &root];
            succeed(limit);
            assert!(succeed(["scrub", "limit", &root]).contains("1048576 bytes"));
            succeed(["scrub", "start", "-c", "2", "-n", "5", &root]);
            // At this speed it would take longer than the test. Without a limit it ends.
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(succeed(["scrub", "status", &root]).contains("running"));
            if require(&[Need::Command("ionice")]).is_some() {
                let threads = format!("/proc/{}/task", world.server().as_raw_nonzero());
                let threads = fs::read_dir(threads).unwrap().map(|entry| entry.unwrap().file_name());
                let priority = |thread: std::ffi::OsString| run("ionice", &["-p", thread.to_str().unwrap()]);
                assert!(threads.map(priority).any(|shown| shown.contains("best-effort: prio 5")));
            }
            succeed(["scrub", "limit", "-l", "0", &root]);
            assert!(succeed(["scrub", "limit", &root]).contains("no limit"));
            eventually("the scrub ends", || succeed(["scrub", "status", &root]).contains("finished"));
            assert!(succeed(["device", "stats", "-z", &root]).contains("write_io_errs"));
            let options =
                BalanceOptions { data: Some(BalanceFilter::default()), ..BalanceOptions::default() };
            MountedPath::open(&world.directory()).unwrap().balance_and_wait(&options).unwrap();
            succeed(["filesystem", "resize", "400M", &root]);
        });
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        if let Err(panic) = work {
            std::panic::resume_unwind(panic);
        }
    });
    world.unmount();
    let image = world.image();
    assert_eq!(image.metadata().unwrap().len(), 400 << 20);
    succeed(["check", "--check-data-csum", image.to_str().unwrap()]);
    fail(1, "", ["check", &added]);
}

/// An unmount pauses a balance. A mount with `skip_balance` leaves it so, another one resumes it.
#[test]
fn a_balance_is_paused_by_the_unmount_and_resumed_by_the_next_mount() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let (root, image) = (world.at(""), world.image().to_str().unwrap().to_owned());
    fs::write(world.at("f"), vec![5; 60 << 20]).unwrap();
    // A snapshot of each makes the balance long enough to be met under way.
    fs::create_dir(world.at("many")).unwrap();
    for number in 0..3000 {
        fs::write(world.at(&format!("many/{number}")), vec![number as u8; 5000]).unwrap();
    }
    succeed(["filesystem", "sync", &root]);
    // A fast one may be over before the second begins, which then runs to its end.
    let met = (0..10).any(|_| {
        succeed(["balance", "start", "--background", &root]);
        let second = papilio(["balance", "start", &root]);
        if !second.status.success() {
            check_failure(&second, 1, "another operation runs");
        }
        !second.status.success()
    });
    assert!(met, "no balance was met under way");
    world.unmount();
    let status = papilio(["balance", "status", &image]);
    if status.status.code() == Some(0) {
        println!("the balance ended before the unmount: {}", text(&status));
        return;
    }
    assert!(status.status.code() == Some(2) && text(&status).contains("paused"), "{}", text(&status));
    world.mount(&["-o", "skip_balance"]);
    assert_eq!(papilio(["balance", "status", &root]).status.code(), Some(2));
    fail(1, "a balance is not running", ["balance", "pause", &root]);
    world.unmount();
    world.mount(&[]);
    eventually("the balance ends", || papilio(["balance", "status", &root]).status.success());
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![5; 60 << 20]);
    succeed(["balance", "start", "--background", &root]);
    succeed(["balance", "cancel", &root]);
    assert!(papilio(["balance", "status", &root]).status.success());
    world.unmount();
    succeed(["check", "--check-data-csum", &image]);
    fail(1, "no balance", ["balance", "cancel", &image]);
    fail(1, "no balance", ["balance", "resume", &image]);
    fail(1, "not mounted", ["balance", "pause", &image]);
}

#[test]
fn devices_of_a_mount_are_replaced_while_files_change() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let (root, size) = (world.at(""), world.image().metadata().unwrap().len());
    let stop = AtomicBool::new(false);
    let images = ["b.img", "c.img", "d.img", "e.img"].map(|name| new_image(&world, name, size));
    let small = new_image(&world, "small.img", 64 << 20);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| change_files(&world.directory(), &stop));
        let work = std::panic::catch_unwind(|| {
            assert!(succeed(["replace", "status", &root]).contains("Never started"));
            fail(1, "the file system needs", ["replace", "start", "1", &small, &root]);
            fail(1, "not a device", ["replace", "start", "7", &images[0], &root]);
            fail(1, "is not running", ["replace", "cancel", &root]);
            let done = succeed(["replace", "start", "1", &images[0], &root]);
            assert!(done.contains("device 1: finished, 0 write errs"), "{done}");
            assert!(succeed(["replace", "status", &root]).contains("finished"));
            // By its path, and beside a second device.
            succeed(["device", "add", &images[1], &root]);
            succeed(["balance", "start", "-f", "--data=convert=raid1", "--metadata=convert=raid1", &root]);
            fail(1, "in use", ["replace", "start", "1", &images[1], &root]);
            succeed(["replace", "start", "-r", &images[1], &images[2], &root]);
            MountedPath::open(&world.directory())
                .unwrap()
                .replace_and_wait(DeviceId(1), Path::new(&images[3]))
                .unwrap();
            let usage = succeed(["device", "usage", &root]);
            assert!(usage.contains(&images[2]) && usage.contains(&images[3]), "{usage}");
        });
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        if let Err(panic) = work {
            std::panic::resume_unwind(panic);
        }
    });
    world.unmount();
    succeed(["check", "--check-data-csum", "--device", &images[2], &images[3]]);
    for left in [world.image().to_str().unwrap(), &images[0], &images[1]] {
        fail(1, "", ["check", left]);
    }
}

/// An unmount pauses a replacement. A mount with the new device resumes it; another one is refused.
#[test]
fn a_replacement_is_paused_by_the_unmount_and_resumed_by_the_next_mount() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let (root, image) = (world.at(""), world.image().to_str().unwrap().to_owned());
    let target = new_image(&world, "target.img", world.image().metadata().unwrap().len());
    fs::write(world.at("f"), vec![5; 150 << 20]).unwrap();
    succeed(["filesystem", "sync", &root]);
    let mounted = MountedPath::open(&world.directory()).unwrap();
    mounted.start_replace(DeviceId(1), Path::new(&target), ReplaceOptions::default()).unwrap();
    drop(mounted);
    world.unmount();
    let status = text(&papilio(["replace", "status", &image]));
    if !status.contains("not complete") {
        println!("the replacement ended before the unmount: {status}");
        succeed(["check", "--check-data-csum", &target]);
        return;
    }
    let refused = papilio(["mount", &image, &root]);
    assert!(text(&refused).contains("being replaced"), "{}", text(&refused));
    world.mount(&["-o", &format!("device={target}")]);
    fs::write(world.at("g"), vec![6; 5 << 20]).unwrap();
    eventually("the replacement ends", || text(&papilio(["replace", "status", &root])).contains("finished"));
    world.unmount();
    succeed(["check", "--check-data-csum", &target]);
    assert_eq!(succeed(["cat", &format!("{target}:/g")]).len(), 5 << 20);
    fail(1, "", ["check", &image]);
}

/// A scrub would call good what the mount ignores.
#[test]
fn a_scrub_is_refused_where_faults_are_ignored() {
    let Some(world) = World::new(&[MOUNT, Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()) else {
        return;
    };
    let (image, point) = (world.image(), world.directory());
    let [image_name, point_name] = [&image, &point].map(|path| path.to_str().unwrap());
    for (options, is_allowed) in [
        ("ro", true),
        ("ro,rescue=ignoredatacsums", false),
        ("ro,rescue=ignoremetacsums", false),
        ("ro,rescue=ignorebadroots", false),
        ("ro,rescue=nologreplay", false),
        ("ro,rescue=all", false),
    ] {
        let by_kernel = {
            let _kernel = KernelMount::new(&image, &point, options);
            Command::new("btrfs").args(["scrub", "start", "-B", "-r", point_name]).output().unwrap()
        };
        assert_eq!(by_kernel.status.success(), is_allowed, "{options}: {}", text(&by_kernel));
        world.mount_plainly(&["-o", options]);
        let output = papilio(["scrub", "start", "-B", "-r", point_name]);
        assert_eq!(output.status.success(), is_allowed, "{options}: {}", text(&output));
        if !is_allowed {
            crate::world::check_failure(&output, 1, "is read-only");
        }
        world.unmount();
    }
    let ignoring = ["--rescue", "ignoredatacsums", "scrub", "start", "-B", "-r", image_name];
    fail(1, "leave out --rescue", ignoring);
    let fs = papilio::FileSystem::open_with(&image, &papilio::OpenOptions::new().verify_data(false)).unwrap();
    let refused = fs.scrub(&papilio::ScrubOptions::new().read_only(true), |_| true).unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
}
