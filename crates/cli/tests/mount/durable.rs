//! The durability of commands: the server is killed when one returns, and the image must show the
//! command's effect. The rows are those of the table in docs/durability.md.

use crate::world::{MOUNT, World, run, succeed, unmount};
use papilio_oracle::{Need, require};
use std::fs;

/// A row of the table. Commands are words separated by blanks; `@` stands for the mount point and
/// `%` for a second device. Those that begin with `!` are programs of the system.
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
    row(&["!touch @/s/new"], "filesystem sync @", ("ls @:/s", "new")),
    row(&["!touch @/s/new"], "!sync @/s/new", ("ls @:/s", "new")),
];

fn words<'a>(text: &'a str, at: &'a str, second: &'a str) -> Vec<String> {
    text.split(' ').map(|word| word.replace('@', at).replace('%', second)).collect()
}

fn carry_out(text: &str, at: &str, second: &str) -> String {
    let words = words(text.trim_start_matches('!'), at, second);
    if text.starts_with('!') {
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        return run(&words[0], &arguments);
    }
    succeed(&words)
}

#[test]
fn an_acknowledged_command_survives_the_death_of_the_server() {
    let Some(world) = World::new(MOUNT) else { return };
    let kernel = require(&[Need::Command("btrfs")]).is_some();
    let second = world.beside("second.img");
    let (second, at) = (second.to_str().unwrap(), world.directory());
    let at = at.to_str().unwrap();
    let pristine = world.beside("pristine.img");
    world.mount(&["-o", "commit=3600"]);
    for path in ["s", "other"] {
        succeed(["subvolume", "create", &world.at(path)]);
        fs::write(world.at(path) + "/f", "content").unwrap();
    }
    world.unmount();
    fs::copy(world.image(), &pristine).unwrap();
    for (index, row) in ROWS.iter().enumerate() {
        fs::copy(&pristine, world.image()).unwrap();
        fs::File::create(second).unwrap().set_len(512 << 20).unwrap();
        world.mount(&["-o", "commit=3600"]);
        row.setup.iter().for_each(|command| drop(carry_out(command, at, second)));
        carry_out(row.command, at, second);
        world.kill_server();
        unmount(&world.directory());
        let image = world.image();
        let mut shown = words(row.shows.0, image.to_str().unwrap(), second);
        if row.command.starts_with("device add") {
            shown.extend(["--device".to_owned(), second.to_owned()]);
        }
        let shown = succeed(&shown);
        let (wanted, text) = match row.shows.1.strip_prefix('-') {
            Some(text) => (false, text),
            None => (true, row.shows.1),
        };
        assert_eq!(shown.contains(text), wanted, "{}: {text:?} in\n{shown}", row.command);
        let mut check = vec!["check", image.to_str().unwrap()];
        if row.command.starts_with("device add") {
            check.extend(["--device", second]);
        } else if kernel && index % 5 == 0 {
            run("btrfs", &["check", "--check-data-csum", image.to_str().unwrap()]);
        }
        succeed(check);
    }
}
