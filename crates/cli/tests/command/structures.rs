//! Commands on chunks, addresses and devices, compared with btrfs-progs on a kernel mount of the
//! image.

use crate::common::{assert_clean, command, fail, succeed_json, succeed_text as succeed, text};
use crate::fixture::noise;
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Need, Scratch, require, sys};
use std::fs;
use std::path::Path;
use std::process::Command;

const NEEDS: &[Need] =
    &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs"), Need::Command("mkfs.btrfs")];

/// Runs the stock command.
fn stock(program: &str, arguments: &[&str]) -> String {
    let program = papilio_oracle::requirement::find_command(program).unwrap();
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn btrfs(arguments: &[&str]) -> String {
    stock("btrfs", arguments)
}

/// An image that the kernel made and has mounted.
struct World {
    mounted: Option<Mounted>,
    images: ImageSet,
    _scratch: Scratch,
}

impl World {
    fn new(spec: FileSystemSpec) -> Option<Self> {
        let _met = require(NEEDS)?;
        let scratch = Scratch::new(600 << 20).unwrap();
        let images = spec.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        Some(Self { mounted: Some(mounted), images, _scratch: scratch })
    }

    fn root(&self) -> &Path {
        self.mounted.as_ref().unwrap().path()
    }

    fn at(&self, name: &str) -> String {
        self.root().join(name).to_str().unwrap().to_owned()
    }

    fn mount(&self) -> &str {
        self.root().to_str().unwrap()
    }

    fn sync(&self) {
        self.mounted.as_ref().unwrap().sync().unwrap();
    }

    fn image(&self) -> String {
        self.images.paths()[0].to_str().unwrap().to_owned()
    }

    fn unmount(&mut self) {
        self.mounted.take().unwrap().unmount().unwrap();
    }
}

#[test]
fn addresses_and_inodes_lead_to_the_paths_of_btrfs() {
    let Some(mut world) = World::new(FileSystemSpec::default()) else { return };
    sys::create_subvolume(&world.root().join("sub")).unwrap();
    fs::create_dir(world.at("sub/d")).unwrap();
    fs::write(world.at("sub/d/f"), noise(1, 300_000)).unwrap();
    fs::hard_link(world.at("sub/d/f"), world.at("sub/again")).unwrap();
    sys::create_snapshot(&world.root().join("sub"), &world.root().join("snap"), true).unwrap();
    world.sync();
    let sorted = |text: String| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(world.at("sub/d/f")).unwrap()).to_string();
    let ours = succeed(["inspect", "inode-resolve", &inode, &world.at("sub")]);
    assert_eq!(sorted(ours), sorted(btrfs(&["inspect-internal", "inode-resolve", &inode, &world.at("sub")])));
    let dump = btrfs(&["inspect-internal", "dump-tree", "-t", "256", &world.image()]);
    let byte = dump.split("disk byte ").nth(1).unwrap().split(' ').next().unwrap();
    let ours = succeed(["inspect", "logical-resolve", "-s", "128k", "-P", byte, world.mount()]);
    assert_eq!(ours.lines().count(), 2, "{ours}");
    assert_eq!(
        sorted(ours),
        sorted(btrfs(&["inspect-internal", "logical-resolve", "-P", byte, world.mount()]))
    );
    let paths = sorted(succeed(["inspect", "logical-resolve", byte, world.mount()]));
    let expected = ["/snap/again", "/snap/d/f", "/sub/again", "/sub/d/f"];
    assert_eq!(paths, expected.map(|path| format!("{}{path}", world.mount())));
    fail(1, "nothing is at", ["inspect", "logical-resolve", "4096", world.mount()]);
    let listed = succeed(["subvolume", "list", world.mount()]);
    assert_eq!(listed, btrfs(&["subvolume", "list", world.mount()]));
    let chunks = succeed(["inspect", "list-chunks", "-b", world.mount()]);
    let least = succeed(["inspect", "min-dev-size", world.mount()]);
    let mapped = succeed(["inspect", "map-logical", "-l", byte, "-b", "8192", world.mount()]);
    world.unmount();
    assert_eq!(sorted(succeed(["inspect", "logical-resolve", byte, &world.image()])), expected);
    assert_eq!(succeed(["inspect", "list-chunks", "-b", &world.image()]), chunks);
    assert_eq!(succeed(["inspect", "min-dev-size", &world.image()]), least);
    // The mount named a loop device.
    let places = |text: String| text.split(" device ").next().unwrap().to_owned();
    let ours = succeed(["inspect", "map-logical", "-l", byte, "-b", "8192", &world.image()]);
    assert_eq!(places(ours), places(mapped.clone()));
    if papilio_oracle::requirement::find_command("btrfs-map-logical").is_some() {
        let theirs = stock("btrfs-map-logical", &["-l", byte, "-b", "8192", &world.image()]);
        assert_eq!(places(theirs), places(mapped));
    }
    let copied = world.images.paths()[0].with_extension("bytes");
    let output = copied.to_str().unwrap();
    succeed(["inspect", "map-logical", "-l", byte, "-b", "8192", "-o", output, &world.image()]);
    assert!(fs::read(&copied).unwrap() == noise(1, 300_000)[..8192]);
    fail(1, "there is no copy 2", ["inspect", "map-logical", "-l", byte, "-c", "2", &world.image()]);
    let free =
        command().args(["inspect", "map-logical", "-l", "1000000000", &world.image()]).output().unwrap();
    assert_eq!(free.status.code(), Some(1), "no chunk is there");
}

#[test]
fn chunks_are_listed_with_their_use() {
    let folder = tempfile::tempdir().unwrap();
    let images = ["a", "b"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    succeed(["mkfs", "-q", "-b", "256M", "-d", "raid1", &images[0], &images[1]]);
    let list = |options: &[&str]| {
        succeed_json(
            [&["inspect", "list-chunks", "--json", "--device", &images[1], &images[0]], options].concat(),
        )
    };
    let lines = list(&[]);
    let lines = lines.as_array().unwrap();
    // System, metadata and data, on each device.
    assert_eq!(lines.len(), 6, "{lines:?}");
    let usage = succeed_json(["filesystem", "df", "--json", "--device", &images[1], &images[0]]);
    for line in lines {
        assert_eq!(line["profile"], "RAID1");
        assert_eq!(line["length"], line["chunk_length"]);
        let of_kind = usage.as_array().unwrap().iter().find(|row| row["type"] == line["type"]).unwrap();
        assert_eq!(of_kind["used"], line["used"], "{usage}");
    }
    let keys = |name: &str, lines: &serde_json::Value| -> Vec<u64> {
        lines.as_array().unwrap().iter().map(|line| line[name].as_u64().unwrap()).collect()
    };
    assert!(keys("devid", &list(&[])).is_sorted());
    assert!(keys("logical_start", &list(&["--sort", "lstart"])).is_sorted());
    assert!(keys("length", &list(&["--sort", "-length,devid"])).iter().rev().is_sorted());
    assert_eq!(
        command().args(["inspect", "list-chunks", "--sort", "x", &images[0]]).output().unwrap().status.code(),
        Some(2)
    );
    let table = succeed(["inspect", "list-chunks", "--device", &images[1], &images[0]]);
    assert!(table.starts_with("Devid PNumber ") && table.lines().count() == 8, "{table}");
}

#[test]
fn swap_files_are_made_and_mapped() {
    let Some(mut world) = World::new(FileSystemSpec::default()) else { return };
    let at = |name: &str, world: &World| format!("{}:/{name}", world.image());
    succeed(["filesystem", "mkswapfile", "-s", "1M", &world.at("on the mount")]);
    world.sync();
    let mapped = succeed(["inspect", "map-swapfile", &world.at("on the mount")]);
    assert_eq!(mapped, btrfs(&["inspect-internal", "map-swapfile", &world.at("on the mount")]));
    fs::write(world.at("plain"), noise(1, 100_000)).unwrap();
    fail(1, "copied on write", ["inspect", "map-swapfile", &world.at("plain")]);
    fail(1, "exists", ["filesystem", "mkswapfile", &world.at("plain")]);
    world.unmount();
    assert_eq!(succeed(["inspect", "map-swapfile", &at("on the mount", &world)]), mapped);
    fail(1, "copied on write", ["inspect", "map-swapfile", &at("plain", &world)]);
    let said =
        succeed(["filesystem", "mkswapfile", "--size", "3M", "-U", "clear", &at("in the image", &world)]);
    assert!(said.contains("3.00MiB (3145728)"), "{said}");
    fail(2, "40 KiB", ["filesystem", "mkswapfile", "-s", "8k", &at("small", &world)]);
    let ours = succeed(["inspect", "map-swapfile", &at("in the image", &world)]);
    let offset = succeed(["inspect", "map-swapfile", "-r", &at("in the image", &world)]);
    assert_eq!(ours.lines().last().unwrap().split_whitespace().last().unwrap(), offset.trim());
    assert_clean(Path::new(&world.image()));
    world.mounted = Some(world.images.mount().unwrap());
    assert_eq!(btrfs(&["inspect-internal", "map-swapfile", &world.at("in the image")]), ours);
    let bytes = fs::read(world.at("in the image")).unwrap();
    assert_eq!((bytes.len(), &bytes[4086..4096]), (3 << 20, &b"SWAPSPACE2"[..]));
    if let Some(blkid) = papilio_oracle::requirement::find_command("blkid") {
        let probed = Command::new(blkid).args(["-p", &world.at("in the image")]).output().unwrap();
        assert!(text(&probed.stdout).contains("TYPE=\"swap\""), "{}", text(&probed.stdout));
    }
    world.unmount();
}

#[test]
fn mounts_of_the_kernel_are_described_as_by_btrfs() {
    let Some(mut world) = World::new(FileSystemSpec::default()) else { return };
    let outer = world.root().join("outer");
    sys::create_subvolume(&outer).unwrap();
    sys::create_subvolume(&outer.join("inner")).unwrap();
    sys::create_subvolume(&outer.join("inner/most")).unwrap();
    sys::create_snapshot(&outer, &world.root().join("snap"), true).unwrap();
    world.sync();
    // btrfs-progs 6.2 print the time of creation as a send time that is zero.
    let left_out = ["Quota group:", "Send time:"];
    let shown = succeed(["subvolume", "show", &world.at("outer")]);
    let theirs = btrfs(&["subvolume", "show", &world.at("outer")]);
    let without_quota = |text: &str| {
        text.lines()
            .filter(|line| !left_out.iter().any(|part| line.contains(part)))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(without_quota(&shown), without_quota(&theirs));
    let table = |text: String| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let stats = succeed(["filesystem", "commit-stats", world.mount()]);
    assert!(stats.contains("Total commits:") && stats.starts_with("UUID: "), "{stats}");
    assert!(
        succeed_json(["filesystem", "commit-stats", "--json", world.mount()])["commits"].as_u64() > Some(0)
    );
    let said = btrfs(&["device", "stats", "-T", world.mount()]);
    fail(1, "not empty", ["subvolume", "delete", &world.at("outer")]);
    succeed(["subvolume", "delete", "-R", "-c", &world.at("outer")]);
    assert!(!outer.exists());
    assert_eq!(succeed(["subvolume", "list", world.mount()]).lines().count(), 1);
    let image = world.image();
    world.unmount();
    assert_eq!(table(succeed(["device", "stats", "-T", &image])).len(), table(said).len());
    succeed([
        "subvolume",
        "create",
        &format!("{image}:/a"),
        &format!("{image}:/a/b"),
        &format!("{image}:/a/b/c"),
    ]);
    fail(1, "not empty", ["subvolume", "delete", &format!("{image}:/a")]);
    succeed(["subvolume", "delete", "--recursive", &format!("{image}:/a")]);
    assert_eq!(succeed(["subvolume", "list", &image]).lines().count(), 1);
    assert_clean(Path::new(&image));
}

#[test]
fn trees_are_dumped_in_the_order_of_btrfs() {
    let Some(mut world) = World::new(FileSystemSpec { nodesize: Some(4096), ..FileSystemSpec::default() })
    else {
        return;
    };
    for number in 0..2000 {
        fs::write(world.at(&format!("a file with a long name {number}")), "x").unwrap();
    }
    let image = world.image();
    world.unmount();
    let blocks = |text: String| -> Vec<String> {
        let starts = |line: &&str| line.starts_with("leaf ") || line.starts_with("node ");
        let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let mut found: Vec<_> = text.lines().filter(starts).map(words).collect();
        // The header has two lines.
        found.dedup();
        found
    };
    for order in ["--bfs", "--dfs"] {
        let ours = blocks(succeed(["inspect", "dump-tree", "--noscan", order, "-t", "5", &image]));
        let theirs = blocks(btrfs(&["inspect-internal", "dump-tree", order, "-t", "5", &image]));
        assert!(ours.len() > 50, "{ours:?}");
        assert!(ours == theirs, "{order}: {ours:?} {theirs:?}");
    }
    let hidden = succeed(["inspect", "dump-tree", "--hide-names", "-t", "5", &image]);
    assert!(!hidden.contains("long name"));
    let one = |option: &str| succeed(["inspect", "dump-super", option, "1", &image]);
    assert_eq!(one("-i"), one("-s"));
}

#[test]
fn odd_options_of_devices_and_properties() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    succeed(["mkfs", "-q", "-L", "one", "-b", "256M", &a]);
    fail(1, "not mounted", ["filesystem", "resize", "cancel", &a]);
    fail(1, "not mounted", ["device", "remove", "cancel", &a]);
    fail(2, "cancel stands alone", ["device", "remove", "cancel", "1", &a]);
    fail(1, "not mounted", ["filesystem", "commit-stats", &a]);
    fs::File::create(&b).unwrap().set_len(256 << 20).unwrap();
    succeed(["device", "add", "-K", "--enqueue", &b, &a]);
    fail(1, "no missing devices", ["device", "remove", "missing", "--device", &b, &a]);
    succeed(["balance", "start", "-f", "-mconvert=raid1", "-sconvert=raid1", "--device", &b, &a]);
    fs::remove_file(&b).unwrap();
    fail(1, "RAID1 needs 2 devices", ["-q", "device", "remove", "missing", "--degraded", &a]);
    let spare = folder.path().join("spare");
    fs::File::create(&spare).unwrap().set_len(256 << 20).unwrap();
    let spare = spare.to_str().unwrap();
    succeed(["-q", "device", "add", "--degraded", spare, &a]);
    succeed(["-q", "device", "remove", "missing", "--degraded", "--device", spare, &a]);
    succeed(["check", "--device", spare, &a]);

    succeed(["mkfs", "-qf", "-L", "one", &a]);
    assert_eq!(succeed(["property", "get", "-t", "f", &a]), "label=one\n");
    succeed(["property", "set", "-t", "device", &a, "label", "two"]);
    assert_eq!(succeed(["property", "get", "-t", "filesystem", &a, "label"]), "label=two\n");
    assert_eq!(succeed(["property", "get", "-t", "s", &a]), "ro=false\n");
    assert_eq!(succeed(["property", "get", "-t", "i", &a]), "");
    assert!(succeed(["property", "list", "-t", "filesystem", &a]).starts_with("label "));
    fail(2, "no such property", ["property", "get", "-t", "i", &a, "ro"]);
    let features = succeed(["mkfs", "-O", "list-all"]);
    assert!(
        features.contains("\nmixed-bg            - ") && features.contains(", default=5.15)"),
        "{features}"
    );
    fail(2, "name an image", ["mkfs", "-f"]);

    succeed(["quota", "enable", &a]);
    succeed(["subvolume", "create", &format!("{a}:/s")]);
    succeed(["qgroup", "limit", "1G", &format!("{a}:/s")]);
    let shown = succeed(["subvolume", "show", "--mbytes", &format!("{a}:/s")]);
    assert!(shown.contains("\tQuota group:\t\t0/256\n\t  Limit referenced:\t1024.00MiB\n"), "{shown}");
    assert!(shown.ends_with("\t  Usage referenced:\t0.02MiB\n\t  Usage exclusive:\t0.02MiB\n"), "{shown}");
}
