//! `dedupe` by checksums: the space that it frees, that nothing else changes, and bad input. The
//! kernel's mount and its numbers decide.

use crate::common::{assert_clean, fail, papilio, succeed, succeed_json, succeed_text, text};
use crate::fixture::noise;
use crate::fixture::{run, string};
use papilio::format::ChecksumType;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
const MIB: usize = 1 << 20;

/// Two blocks with one CRC-32C: their difference is the polynomial.
fn colliding() -> [Vec<u8>; 2] {
    let one = noise(77, 4096);
    let mut other = one.clone();
    for bit in 0..33 {
        let is_set = 0x1_1edc_6f41_u64 >> (32 - bit) & 1 == 1;
        other[100 + bit / 8] ^= u8::from(is_set) << (bit % 8);
    }
    assert_ne!(one, other);
    assert_eq!(ChecksumType::Crc32c.compute(&one), ChecksumType::Crc32c.compute(&other));
    [one, other]
}

/// Fills a subvolume with all kinds of equal and unequal data. Each file is written back alone, so
/// that it has extents of its own.
fn fill(folder: &Path) {
    let common = noise(1, 3 * MIB);
    let mut changed = common.clone();
    changed[MIB + 5] ^= 1;
    let words: Vec<u8> =
        (0..100_000_u32).flat_map(|number| format!("{} ", number / 9).into_bytes()).collect();
    let zeros = [noise(8, 8192), vec![0; MIB], noise(9, 8192)].concat();
    let [one, other] = colliding();
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("a", common.clone()),
        ("b", common.clone()),
        ("shifted", [noise(2, 256 << 10), common.clone()].concat()),
        ("changed", changed),
        ("part", common[MIB..2 * MIB + 777].to_vec()),
        ("tail", noise(3, 70_001)),
        ("tail again", noise(3, 70_001)),
        ("longer tail", noise(3, 70_500)),
        ("unique", noise(4, MIB)),
        ("zeros", zeros.clone()),
        ("zeros again", zeros),
        ("inline", b"inline".to_vec()),
        ("inline again", b"inline".to_vec()),
        ("one", one.clone()),
        ("other", other.clone()),
        ("one again", one),
        ("other again", other),
        ("packed/words", words.clone()),
        ("packed/words again", words.clone()),
        ("packed/other words", words[777..].to_vec()),
        ("words", words),
        ("in place/a", noise(6, MIB)),
        ("in place/b", noise(6, MIB)),
    ];
    fs::create_dir(folder.join("packed")).unwrap();
    fs::create_dir(folder.join("in place")).unwrap();
    run("btrfs", &["property", "set", string(&folder.join("packed")), "compression", "zstd"]);
    run("chattr", &["+C", string(&folder.join("in place"))]);
    for (name, content) in files {
        let file = File::create(folder.join(name)).unwrap();
        file.write_all_at(&content, 0).unwrap();
        file.sync_all().unwrap();
    }
    run("cp", &["--reflink=always", string(&folder.join("b")), string(&folder.join("b reflinked"))]);
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.write_all_at(&common[..MIB], 5 << 20).unwrap();
    sparse.sync_all().unwrap();
    let allocated = folder.join("allocated");
    run("fallocate", &["-l", "1M", string(&allocated)]);
    let allocated = File::options().write(true).open(allocated).unwrap();
    allocated.write_all_at(&common[..512 << 10], 0).unwrap();
    allocated.sync_all().unwrap();
}

/// The content and the times of everything below a mount.
fn state_of(top: &Path) -> BTreeMap<PathBuf, (i64, i64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
            let content = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let [a, b, c, d] = times;
            found.insert(path.strip_prefix(top).unwrap().to_path_buf(), (a, b, c, d, content));
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// Returns the bytes of data in use.
fn data_in_use(mounted: &Path) -> u64 {
    run("btrfs", &["filesystem", "sync", string(mounted)]);
    let shown = run("btrfs", &["filesystem", "df", "--raw", string(mounted)]);
    let data = shown.lines().find(|line| line.starts_with("Data")).unwrap();
    data.rsplit_once("used=").unwrap().1.parse().unwrap()
}

/// Makes an image that the kernel fills, with a read-only and a writable snapshot.
fn image(scratch: &Scratch, by_kernel: bool) -> (PathBuf, ImageSet) {
    let path = scratch.image("image", 700 << 20).unwrap();
    match by_kernel {
        true => drop(run("mkfs.btrfs", &["-q", "-f", string(&path)])),
        false => drop(succeed(["mkfs", "-q", string(&path)])),
    }
    let images = ImageSet::open(scratch, vec![path.clone()]);
    let mounted = images.mount().unwrap();
    let top = mounted.path();
    run("btrfs", &["subvolume", "create", string(&top.join("sub"))]);
    fill(&top.join("sub"));
    fs::write(top.join("outside"), noise(1, 3 * MIB)).unwrap();
    for (name, flags) in [("fixed", &["-r"][..]), ("writable", &[])] {
        let (source, target) = (top.join("sub"), top.join(name));
        run("btrfs", &[&["subvolume", "snapshot"], flags, &[string(&source), string(&target)]].concat());
    }
    mounted.unmount().unwrap();
    (path, images)
}

/// Checks a report for [`image`] and returns the bytes that it says are free, with those of files
/// without checksums.
fn freed(report: &Value) -> u64 {
    let number = |name: &str| report[name].as_u64().unwrap();
    // `b`, `shifted`, `outside` or their like, `tail`, `zeros`, and the words.
    assert!(number("bytes_freed") > 9 * MIB as u64, "{report}");
    assert!(number("bytes_written_anew") >= 256 << 10, "{report}");
    assert!(number("extents_with_equal_checksums_only") >= 1, "{report}");
    assert_eq!(number("tree_blocks_unreadable"), 0);
    assert_eq!(report["read"]["bytes_read"], 2 * MIB as u64, "{report}");
    assert!(report["read"]["bytes_shared"].as_u64().unwrap() >= MIB as u64, "{report}");
    number("bytes_freed") + MIB as u64
}

#[test]
fn an_image_keeps_its_content_and_gets_the_space_that_is_stated() {
    if require(NEEDS).is_none() {
        return;
    }
    for by_kernel in [true, false] {
        let scratch = Scratch::new(2 << 30).unwrap();
        let (path, images) = image(&scratch, by_kernel);
        let mounted = images.mount_read_only().unwrap();
        let (before, used) = (state_of(mounted.path()), data_in_use(mounted.path()));
        mounted.unmount().unwrap();
        let root = format!("{}:/", path.display());
        let dry = succeed_json(["dedupe", "-n", "--json", &root]);
        let report = succeed_json(["dedupe", "--json", &root]);
        assert!(dry["bytes_freed"].as_u64() >= report["bytes_freed"].as_u64(), "{dry} {report}");
        let stated = freed(&report);
        images.btrfs_check().unwrap();
        assert_clean(&path);
        let mounted = images.mount().unwrap();
        assert!(state_of(mounted.path()) == before, "content and times stay");
        assert_eq!(used - data_in_use(mounted.path()), stated, "{report}");
        let flags = run("btrfs", &["property", "get", string(&mounted.path().join("fixed")), "ro"]);
        assert_eq!(flags, "ro=true\n");
        run("btrfs", &["scrub", "start", "-B", string(mounted.path())]);
        mounted.unmount().unwrap();
        let again = succeed_json(["dedupe", "--json", &root]);
        assert_eq!(again["bytes_freed"], 0, "{again}");
    }
}

#[test]
fn a_mount_of_the_kernel_keeps_its_content_and_gets_the_space_that_is_stated() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let (_, images) = image(&scratch, true);
    let mounted = images.mount().unwrap();
    let (before, used) = (state_of(mounted.path()), data_in_use(mounted.path()));
    let report = succeed_json(["dedupe", "--json", string(mounted.path())]);
    let stated = freed(&report);
    assert!(state_of(mounted.path()) == before, "content and times stay");
    assert_eq!(used - data_in_use(mounted.path()), stated, "{report}");
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

/// Unmounts a mount of Papilio that a failed test leaves.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = papilio(["umount".as_ref(), "--lazy".as_ref(), self.0.as_os_str()]);
        }
    }
}

#[test]
fn a_mount_of_papilio_keeps_its_content_and_gets_the_space_that_is_stated() {
    if require(&[NEEDS, &[Need::Fuse]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let (path, images) = image(&scratch, true);
    let mounted = images.mount_read_only().unwrap();
    let (before, used) = (state_of(mounted.path()), data_in_use(mounted.path()));
    mounted.unmount().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let top = string(folder.path());
    let _unmounted = Unmounted(folder.path());
    for options in ["subvol=/", "subvol=sub"] {
        succeed(["mount", "-o", options, string(&path), top]);
        // Where data of one subvolume is shown, all of the file system takes part.
        let report = succeed_json(["dedupe", "--json", top]);
        let refused = papilio(["dedupe", "--json", &format!("{}:/", path.display())]);
        crate::common::unmount(top.as_ref());
        if options == "subvol=/" {
            let stated = freed(&report);
            let mounted = images.mount_read_only().unwrap();
            assert!(state_of(mounted.path()) == before, "content and times stay");
            assert_eq!(used - data_in_use(mounted.path()), stated, "{report}");
            mounted.unmount().unwrap();
        } else {
            assert_eq!(report["bytes_freed"], 0, "{report}");
        }
        crate::common::check_failure(&refused, 1, "mounted");
    }
    assert_clean(&path);
    images.btrfs_check().unwrap();
}

#[test]
fn equal_blocks_in_a_mount_of_papilio_are_shared_by_reading() {
    if require(&[Need::Root, Need::Fuse]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, top) = (folder.path().join("image"), folder.path().join("top"));
    fs::create_dir(&top).unwrap();
    let _unmounted = Unmounted(&top);
    succeed(["mkfs", "-q", "-b", "256M", string(&image)]);
    succeed(["mount", string(&image), string(&top)]);
    let (one, other) = (noise(1, 2 * MIB), noise(2, MIB));
    for (name, content) in [("a", &one), ("b", &one), ("c", &other)] {
        fs::write(top.join(name), content).unwrap();
    }
    let done = succeed_json(["dedupe", "--read", "--json", string(&top)]);
    assert_eq!(done["bytes_shared"], 2 * MIB as u64, "{done}");
    assert!(succeed_text(["dedupe", "--read", string(&top)]).contains("(0 bytes) shared"));
    for (name, content) in [("a", &one), ("b", &one), ("c", &other)] {
        assert!(&fs::read(top.join(name)).unwrap() == content, "{name}");
    }
    crate::common::unmount(&top);
    assert_clean(&image);
}

#[test]
fn a_directory_gives_up_only_its_own_extents() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let shown = string(&image);
    succeed(["mkfs", "-q", "-b", "256M", shown]);
    let host = folder.path().join("host");
    for (seed, names) in [(1, ["x/a", "y/a", "y/b"]), (2, ["x/c", "x/d", "y/c"])] {
        fs::write(&host, noise(seed, MIB)).unwrap();
        for name in names {
            let parent = name.split('/').next().unwrap();
            succeed(["mkdir", "-p", &format!("{shown}:/{parent}")]);
            succeed(["cp", string(&host), &format!("{shown}:/{name}")]);
        }
    }
    let freed =
        |place: &str| succeed_json(["dedupe", "--json", &format!("{shown}:{place}")])["bytes_freed"].clone();
    assert_eq!(freed("/x"), 3 * MIB as u64);
    assert_eq!(freed("/x"), MIB as u64, "x/a uses the extent of one of y, and the other has the same");
    assert_eq!(freed("/x"), 0);
    assert_eq!(freed("/"), 0);
    assert_clean(&image);
}

#[test]
fn pairs_beyond_the_memory_go_to_files_with_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    succeed(["mkfs", "-q", "-b", "256M", string(&image)]);
    let host = folder.path().join("host");
    for (number, seed) in [1, 2, 3, 2, 1, 4].into_iter().enumerate() {
        fs::write(&host, [noise(number as u64 + 50, 8192), noise(seed, 4 * MIB)].concat()).unwrap();
        succeed(["cp", string(&host), &format!("{}:/{number}", image.display())]);
    }
    let dry = |memory: &str| {
        succeed_json(["dedupe", "-n", "--json", "--memory", memory, &format!("{}:/", image.display())])
    };
    let in_memory = dry("256M");
    assert_eq!(in_memory["bytes_freed"], 8 * MIB as u64, "{in_memory}");
    assert_eq!(dry("1K"), in_memory);
    let none = papilio(["dedupe", "--no-copy", "--json", &format!("{}:/", image.display())]);
    assert_eq!(serde_json::from_slice::<Value>(&none.stdout).unwrap()["bytes_freed"], 0);
    // No space for pairs that do not fit into memory.
    let mut command = crate::common::command();
    command.env("TMPDIR", folder.path().join("missing"));
    let output =
        command.args(["dedupe", "--memory", "1K", &format!("{}:/", image.display())]).output().unwrap();
    crate::common::check_failure(&output, 1, "missing: ");
    if require(&[Need::Root, Need::Command("unshare")]).is_none() {
        return;
    }
    // A folder for temporary files that has room for a page only.
    let (small, before) = (folder.path().join("small"), fs::read(&image).unwrap());
    fs::create_dir(&small).unwrap();
    let script = "mount -t tmpfs -o size=4k none \"$1\" && shift && exec \"$@\"";
    let mut spilling = std::process::Command::new("unshare");
    spilling.args(["-m", "sh", "-c", script, "sh"]).arg(&small).arg(crate::common::binary());
    spilling.args(["dedupe", "--memory", "1K", &format!("{}:/", image.display())]).env("TMPDIR", &small);
    crate::common::check_failure(&spilling.output().unwrap(), 1, "No space left on device");
    assert!(fs::read(&image).unwrap() == before, "nothing is shared before all is known");
}

#[test]
fn the_next_run_looks_only_at_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let (shown, state) = (string(&image), folder.path().join("state"));
    let root = format!("{shown}:/");
    succeed(["mkfs", "-q", "-b", "512M", shown]);
    let host = folder.path().join("host");
    let put = |name: &str, content: &[u8]| {
        fs::write(&host, content).unwrap();
        succeed(["cp", string(&host), &format!("{shown}:/{name}")]);
    };
    for number in 0..40 {
        put(&format!("file{number}"), &noise(number, MIB));
    }
    put("file3 again", &noise(3, MIB));
    let arguments = ["dedupe", "--json", "--state", string(&state), &root];
    let first = succeed_json(arguments);
    assert_eq!((&first["extents"], &first["bytes_freed"]), (&41.into(), &(MIB as u64).into()), "{first}");
    let second = succeed_json(arguments);
    assert_eq!((&second["extents"], &second["bytes_compared"]), (&0.into(), &0.into()), "{second}");
    // A new copy, and a new file of which two old ones have parts.
    put("file5 again", &noise(5, MIB));
    put("parts", &[&noise(7, MIB)[8192..], &noise(8, 4096), &noise(9, MIB)[..MIB - 8192]].concat());
    let third = succeed_json(arguments);
    assert!(third["extents"].as_u64().unwrap() < 41, "{third}");
    assert_eq!(third["bytes_freed"], 3 * MIB as u64 - 16384, "{third}");
    assert_eq!(third["bytes_written_anew"], 4096, "{third}");
    // The data that the state names is gone, and its place may be used anew.
    for number in 10..30 {
        succeed(["rm", &format!("{shown}:/file{number}")]);
    }
    put("other", &noise(99, 4 * MIB));
    put("file12", &noise(12, MIB));
    let fourth = succeed_json(arguments);
    assert_eq!(fourth["bytes_freed"], 0, "{fourth}");
    put("file12 again", &noise(12, MIB));
    assert_eq!(succeed_json(arguments)["bytes_freed"], MIB as u64);
    assert_clean(&image);

    // Wrong state files.
    let good = fs::read(&state).unwrap();
    fs::write(&state, &good[..good.len() / 2]).unwrap();
    let output = papilio(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("it was cut off; all checksums are read anew"));
    assert_eq!(succeed_json(arguments)["extents"], 0);
    let other = folder.path().join("other");
    succeed(["mkfs", "-q", "-b", "128M", string(&other)]);
    let foreign = format!("{}:/", other.display());
    fail(1, "it belongs to the file system", ["dedupe", "--state", string(&state), &foreign]);
    fs::write(&state, "a note of mine").unwrap();
    fail(1, "it is no state file of dedupe; name another", ["dedupe", "--state", string(&state), &root]);
    assert_eq!(fs::read(&state).unwrap(), b"a note of mine");
    fail(1, "none", ["dedupe", "--state", "/none/state", &root]);
    let part = format!("{shown}:/file1");
    fail(2, "--state is for a whole file system", ["dedupe", "--state", string(&state), &part]);
}

#[test]
fn damaged_trees_are_named_and_the_rest_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let shown = string(&image);
    let root = format!("{shown}:/");
    succeed(["mkfs", "-q", "-b", "512M", "-m", "single", "-n", "4096", shown]);
    let host = folder.path().join("host");
    for number in 0..60 {
        fs::write(&host, noise(number / 2, MIB)).unwrap();
        succeed(["cp", string(&host), &format!("{shown}:/file{number}")]);
    }
    // Leaves of the checksum tree name themselves and their tree.
    let device = File::options().read(true).write(true).open(&image).unwrap();
    let mut leaves = Vec::new();
    for line in succeed_text(["inspect", "dump-tree", "-t", "csum", shown]).lines() {
        if let Some(rest) = line.strip_prefix("leaf ") {
            leaves.push(rest.split(' ').next().unwrap().parse::<u64>().unwrap());
        }
    }
    assert!(leaves.len() > 4, "{leaves:?}");
    let bad = leaves[leaves.len() / 2];
    let mut block = [0; 4096];
    let mut damaged = 0;
    for place in (0..(512 << 20)).step_by(4096) {
        device.read_exact_at(&mut block, place).unwrap();
        if block[48..56] == bad.to_le_bytes() && block[88..96] == 7_u64.to_le_bytes() {
            block[2000] ^= 1;
            device.write_all_at(&block, place).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let output = papilio(["dedupe", "--json", &root]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("tree blocks or items cannot be read"), "{stderr}");
    assert!(stderr.contains(&bad.to_string()), "the block is named: {stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["bytes_freed"].as_u64().unwrap() > 15 * MIB as u64, "{report}");
    for number in 0..60 {
        // The data that the bad block describes cannot be verified.
        let read = papilio(["cat", &format!("{shown}:/file{number}")]);
        assert!(!read.status.success() || read.stdout == noise(number / 2, MIB), "{number}");
    }
}

#[test]
fn users_without_rights_are_told() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("image", 256 << 20).unwrap();
    run("mkfs.btrfs", &["-q", "-f", string(&path)]);
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount().unwrap();
    let binary = scratch.path().join("papilio");
    fs::copy(crate::common::binary(), &binary).unwrap();
    for folder in [scratch.path(), mounted.path()] {
        run("chmod", &["755", string(folder)]);
    }
    let arguments = ["--reuid=1000", "--regid=1000", "--clear-groups", string(&binary), "dedupe"];
    let output = Command::new("setpriv").args(arguments).arg(mounted.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.to_lowercase().contains("permi"), "{stderr}");
    mounted.unmount().unwrap();
}
