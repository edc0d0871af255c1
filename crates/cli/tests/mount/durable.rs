//! The durability of commands: the server is killed when one returns, and the image must show the
//! command's effect. The rows are those of the table in docs/durability.md.

use crate::world::{MOUNT, World, papilio, run, succeed, unmount};
use papilio_oracle::{Need, require};
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the table. Commands are words separated by blanks; `@` stands for the mount point, `%`
/// for a second device, and `#` for a stream. Those that begin with `!` are programs of the system.
struct Row {
    setup: &'static [&'static str],
    command: &'static str,
    /// A command on the image, in which `@` stands for the image, and a text that it must print;
    /// none if the text begins with `-`.
    shows: (&'static str, &'static str),
}

const fn row(
    setup: &'static [&'static str],
    command: &'static str,
    shows: (&'static str, &'static str),
) -> Row {
    Row { setup, command, shows }
}

const QUOTAS: &str = "quota enable @";
const COUNTED: &str = "quota rescan -W @";
const LIST: &str = "subvolume list @";
const ROOTS: &str = "inspect-internal dump-tree -t root @";
const QUOTA_TREE: &str = "inspect-internal dump-tree -t quota @";
const SUPER: &str = "inspect-internal dump-super @";
const SECOND: &str = "inspect-internal dump-super %";
const USE: &str = "compsize @:/s/big";
const SHARED: &str = "compsize @:/s";

const ROWS: &[Row] = &[
    row(&[], "subvolume create @/new", (LIST, "path new")),
    row(&[], "subvolume snapshot @/s @/new", (LIST, "path new")),
    row(&[], "subvolume snapshot -r @/s @/other/new", (LIST, "path other/new")),
    row(&[QUOTAS, COUNTED], "subvolume snapshot @/s @/new", (LIST, "path new")),
    row(&[], "subvolume delete -c @/other", (LIST, "-path other")),
    row(&[], "subvolume delete -C @/other", (LIST, "-path other")),
    row(&["subvolume delete @/other"], "subvolume sync @", (LIST, "-path other")),
    row(&["!mv @/other @/new"], "filesystem sync @", (LIST, "path new")),
    row(&["!mv @/other @/s/new"], "!sync @/s", (LIST, "path s/new")),
    row(&[], "subvolume set-default @/s", ("subvolume get-default @", "path s")),
    row(&[], "property set @/s ro true", ("property get @:/s ro", "ro=true")),
    row(&["property set @/s ro true"], "property set @/s ro false", ("property get @:/s ro", "ro=false")),
    row(&[], "filesystem label @ changed", ("filesystem label @", "changed")),
    row(&[], "property set @ label changed", ("filesystem label @", "changed")),
    row(&[], "filesystem resize 400M @", (SUPER, "total_bytes\t\t419430400")),
    row(&["filesystem resize 400M @"], "filesystem resize 450M @", (SUPER, "total_bytes\t\t471859200")),
    row(&[], "quota enable @", (QUOTA_TREE, "QGROUP_STATUS")),
    row(&[], "quota enable --simple @", (QUOTA_TREE, "QGROUP_STATUS")),
    row(&[QUOTAS], "quota disable @", (ROOTS, "-QUOTA_TREE")),
    row(&[QUOTAS, COUNTED], "quota rescan -w @", ("quota status @", "-inconsistent")),
    row(&[QUOTAS, COUNTED], "qgroup create 1/1 @", (QUOTA_TREE, "1/1")),
    row(&[QUOTAS, COUNTED, "qgroup create 1/1 @"], "qgroup destroy 1/1 @", (QUOTA_TREE, "-1/1")),
    row(
        &[QUOTAS, COUNTED, "qgroup create 1/1 @"],
        "qgroup assign --no-rescan 0/256 1/1 @",
        (QUOTA_TREE, "QGROUP_RELATION"),
    ),
    row(
        &[QUOTAS, COUNTED, "qgroup create 1/1 @", "qgroup assign 0/256 1/1 @"],
        "qgroup remove --no-rescan 0/256 1/1 @",
        (QUOTA_TREE, "-QGROUP_RELATION"),
    ),
    row(&[QUOTAS, COUNTED], "qgroup limit 10M 0/256 @", (QUOTA_TREE, "10485760")),
    row(&[], "device add % @", (SUPER, "num_devices\t\t2")),
    row(&["device add % @"], "device remove % @", (SUPER, "num_devices\t\t1")),
    row(&[], "balance start --full-balance @", (ROOTS, "-BALANCE")),
    row(&[], "replace start 1 % @", (SECOND, "dev_item.devid\t\t1")),
    row(&[], "receive -q -f # @", (LIST, "path sent")),
    row(&[], "receive -q -f # @/other", (LIST, "path other/sent")),
    row(&["filesystem defragment -czstd @/s/big"], "filesystem sync @", (USE, "zstd")),
    row(&["filesystem defragment -czstd @/s/big"], "!sync @/s/big", (USE, "zstd")),
    row(&["!cp @/s/big @/s/copy"], "!sync @/s/copy", ("cat @:/s/copy", "the last line")),
    row(&["!rm @/s/big"], "filesystem sync @", ("ls @:/s", "-big\n")),
    row(&["!rm @/s/big"], "!fstrim @", ("cat @:/s/same", "the last line")),
    row(&["!touch @/s/new"], "filesystem sync @", ("ls @:/s", "new")),
    row(&["!touch @/s/new"], "!sync @/s/new", ("ls @:/s", "new")),
];

/// The meanings of the signs in commands.
#[derive(Clone, Copy)]
struct Signs<'a> {
    /// `@`
    at: &'a str,
    /// `%`
    second: &'a str,
    /// `#`
    stream: &'a str,
}

impl Signs<'_> {
    fn words(&self, text: &str) -> Vec<String> {
        let word =
            |word: &str| word.replace('@', self.at).replace('%', self.second).replace('#', self.stream);
        text.split(' ').map(word).collect()
    }

    fn carry_out(&self, text: &str) -> String {
        let words = self.words(text.trim_start_matches('!'));
        if text.starts_with('!') {
            let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            return run(&words[0], &arguments);
        }
        succeed(&words)
    }

    /// Asserts what a row says about the image `@`, after its command.
    fn assert_shows(&self, row: &Row, kernel: bool) {
        let (adds, replaces) = (row.command.starts_with("device add"), row.command.starts_with("replace"));
        let mut shown = self.words(row.shows.0);
        let mut check = vec!["check", if replaces { self.second } else { self.at }];
        if adds {
            shown.extend(["--device".to_owned(), self.second.to_owned()]);
            check.extend(["--device", self.second]);
        }
        let shown = succeed(&shown);
        let (wanted, text) = match row.shows.1.strip_prefix('-') {
            Some(text) => (false, text),
            None => (true, row.shows.1),
        };
        assert_eq!(shown.contains(text), wanted, "{}: {text:?} in\n{shown}", row.command);
        if kernel && !adds {
            run("btrfs", &["check", "--check-data-csum", check[1]]);
        }
        succeed(check);
    }
}

/// Copies an image, without its holes.
fn copy(from: &Path, to: &Path) {
    run("cp", &["--sparse=auto", from.to_str().unwrap(), to.to_str().unwrap()]);
}

/// Makes the file system of the rows, and a stream of a snapshot `sent`.
fn make_pristine(world: &World) -> (PathBuf, PathBuf) {
    let (pristine, stream) = (world.beside("pristine.img"), world.beside("stream"));
    world.mount(&["-o", "commit=3600"]);
    for path in ["s", "other"] {
        succeed(["subvolume", "create", &world.at(path)]);
        fs::write(world.at(path) + "/f", "content").unwrap();
    }
    let lines: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    for path in ["s/big", "s/same"] {
        fs::write(world.at(path), lines.clone() + "the last line\n").unwrap();
    }
    let (snapshot, file) = (world.at("sent"), stream.to_str().unwrap());
    succeed(["subvolume", "snapshot", "-r", &world.at("s"), &snapshot]);
    succeed(["send", "-q", "-f", file, &snapshot]);
    succeed(["subvolume", "delete", "-c", &snapshot]);
    succeed(["subvolume", "sync", &world.at("")]);
    world.unmount();
    copy(&world.image(), &pristine);
    (pristine, stream)
}

#[test]
fn an_acknowledged_command_survives_the_death_of_the_server() {
    let Some(world) = World::new(MOUNT) else { return };
    let kernel = require(&[Need::Command("btrfs")]).is_some();
    let (second, at, image) = (world.beside("second.img"), world.directory(), world.image());
    let (pristine, stream) = make_pristine(&world);
    let signs = Signs {
        at: at.to_str().unwrap(),
        second: second.to_str().unwrap(),
        stream: stream.to_str().unwrap(),
    };
    for (index, row) in ROWS.iter().enumerate() {
        copy(&pristine, &image);
        fs::File::create(&second).unwrap().set_len(512 << 20).unwrap();
        world.mount(&["-o", "commit=3600"]);
        row.setup.iter().for_each(|command| drop(signs.carry_out(command)));
        signs.carry_out(row.command);
        world.kill_server();
        unmount(&world.directory());
        Signs { at: image.to_str().unwrap(), ..signs }.assert_shows(row, kernel && index % 5 == 0);
    }
}

/// Rows for images: `@` stands for the image in the commands, too.
const ON_IMAGES: &[Row] = &[
    row(&[], "subvolume create @:/new", (LIST, "path new")),
    row(&[], "subvolume snapshot @:/s @:/new", (LIST, "path new")),
    row(&[], "subvolume snapshot -r @:/s @:/new", ("property get @:/new ro", "ro=true")),
    row(&[], "subvolume delete @:/other", (LIST, "-path other")),
    row(&[], "subvolume set-default @:/s", ("subvolume get-default @", "path s")),
    row(&[], "property set @:/s ro true", ("property get @:/s ro", "ro=true")),
    row(&[], "property set @:/s/f compression zstd", ("property get @:/s/f compression", "zstd")),
    row(&[], "filesystem label @ changed", ("filesystem label @", "changed")),
    row(&[], "filesystem resize 400M @", (SUPER, "total_bytes\t\t419430400")),
    row(&[], "quota enable @", (QUOTA_TREE, "QGROUP_STATUS")),
    row(&["quota enable @"], "quota disable @", (ROOTS, "-QUOTA_TREE")),
    row(&["quota enable @"], "quota rescan @", ("quota status @", "-inconsistent")),
    row(&["quota enable @"], "qgroup create 1/1 @", (QUOTA_TREE, "1/1")),
    row(&["quota enable @"], "qgroup limit 10M 0/256 @", (QUOTA_TREE, "10485760")),
    row(&[], "device add % @", (SUPER, "num_devices\t\t2")),
    row(&["device add % @"], "device remove % @ --device %", (SUPER, "num_devices\t\t1")),
    row(&[], "replace start 1 % @", (SECOND, "dev_item.devid\t\t1")),
    row(&[], "balance start --full-balance @", (ROOTS, "-BALANCE")),
    row(&[], "receive -q -f # @", (LIST, "path sent")),
    row(&[], "filesystem defragment -czstd @:/s/big", (USE, "zstd")),
    row(&[], "dedupe --read @:/s", (SHARED, "(4 refs)")),
    row(&[], "mkdir @:/s/new", ("ls @:/s", "new")),
    row(&[], "mv @:/s/f @:/s/new", ("ls @:/s", "new")),
    row(&[], "rm @:/s/f", ("ls @:/s", "-f\n")),
    row(&[], "rm -r @:/other", (LIST, "-path other")),
    row(&[], "ln @:/s/f @:/s/new", ("ls @:/s", "new")),
    row(&[], "touch @:/s/new", ("ls @:/s", "new")),
    row(&[], "truncate -s 3 @:/s/f", ("cat @:/s/f", "-content")),
    row(&[], "chmod 741 @:/s/f", ("stat @:/s/f", "0741")),
    row(&[], "chown 77 @:/s/f", ("stat @:/s/f", "77")),
    row(&[], "setfattr -n user.new -v value @:/s/f", ("getfattr -d @:/s/f", "user.new")),
    row(&[], "cp @:/s/big @:/s/new", ("cat @:/s/new", "the last line")),
    row(&[], "cp # @:/s/new", ("ls @:/s", "new")),
];

/// A command on an image commits before it ends: a copy of the image that is made then has all of
/// it.
#[test]
fn an_image_has_what_a_command_did_when_it_ends() {
    let Some(world) = World::new(MOUNT) else { return };
    let kernel = require(&[Need::Command("btrfs")]).is_some();
    let (second, image, copied) = (world.beside("second.img"), world.image(), world.beside("copy.img"));
    let (pristine, stream) = make_pristine(&world);
    let signs = Signs {
        at: image.to_str().unwrap(),
        second: second.to_str().unwrap(),
        stream: stream.to_str().unwrap(),
    };
    for (index, row) in ON_IMAGES.iter().enumerate() {
        copy(&pristine, &image);
        fs::File::create(&second).unwrap().set_len(512 << 20).unwrap();
        row.setup.iter().for_each(|command| drop(signs.carry_out(command)));
        signs.carry_out(row.command);
        copy(&image, &copied);
        Signs { at: copied.to_str().unwrap(), ..signs }.assert_shows(row, kernel && index % 5 == 0);
    }
}

/// Counters of errors that were reset stay so once the file system is synced.
#[test]
fn reset_counters_of_errors_survive_the_death_of_the_server() {
    let Some(world) = World::new(MOUNT) else { return };
    let (image, at) = (world.image(), world.at(""));
    world.mount(&[]);
    fs::write(world.at("f"), b"a mark in the data ".repeat(4000)).unwrap();
    world.unmount();
    let mut bytes = fs::read(&image).unwrap();
    let mark = b"a mark in the data";
    let place = bytes.chunks(4096).position(|sector| sector.starts_with(mark)).expect("the data") * 4096;
    bytes[place] ^= 1;
    fs::write(&image, bytes).unwrap();
    let errors = |path: &str| succeed(["device", "stats", path]).contains("corruption_errs  1");
    world.mount(&["-o", "commit=3600"]);
    assert!(fs::read(world.at("f")).is_err());
    succeed(["filesystem", "sync", &at]);
    world.kill_server();
    unmount(&world.directory());
    let path = image.to_str().unwrap();
    assert!(errors(path), "{}", succeed(["device", "stats", path]));
    world.mount(&["-o", "commit=3600"]);
    assert!(succeed(["device", "stats", "-z", &at]).contains("corruption_errs  1"));
    succeed(["filesystem", "sync", &at]);
    world.kill_server();
    unmount(&world.directory());
    assert!(!errors(path), "{}", succeed(["device", "stats", path]));
}

/// A balance that was paused is in the image, and goes on with the next mount.
#[test]
fn a_paused_balance_survives_the_death_of_the_server() {
    let Some(world) = World::new(MOUNT) else { return };
    let (image, at) = (world.image(), world.at(""));
    let path = image.to_str().unwrap();
    let bytes: Vec<u8> =
        (0..1_000_000_u32).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    world.mount(&["-o", "commit=3600"]);
    for number in 0..40 {
        fs::write(world.at(&format!("f{number}")), &bytes).unwrap();
    }
    let paused = (0..20).any(|_| {
        succeed(["balance", "start", "--background", "--full-balance", &at]);
        papilio(["balance", "pause", &at]).status.success()
    });
    assert!(paused, "each balance ended before it was paused");
    world.kill_server();
    unmount(&world.directory());
    assert!(succeed(["inspect-internal", "dump-tree", "-t", "root", path]).contains("BALANCE"));
    succeed(["check", path]);
    world.mount(&["-o", "skip_balance"]);
    assert!(String::from_utf8_lossy(&papilio(["balance", "status", &at]).stdout).contains("paused"));
    succeed(["balance", "resume", &at]);
    for number in 0..40 {
        assert!(fs::read(world.at(&format!("f{number}"))).unwrap() == bytes);
    }
    world.unmount();
    assert!(!succeed(["inspect-internal", "dump-tree", "-t", "root", path]).contains("BALANCE"));
    succeed(["check", "--check-data-csum", path]);
}
