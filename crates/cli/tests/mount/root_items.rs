//! The fields of root items and directory items after changes of subvolumes: each operation leaves
//! in them what the kernel's Btrfs leaves for the same operation on the same image. A side effect
//! on a subvolume that is only read is a difference, too.
//!
//! Numbers of transactions are compared by their order: those of the image before the operation as
//! they are, and later ones by rank. The two sides commit at different moments.
//!
//! One value depends on more than the operation: `rtransid` is the transaction in which a received
//! subvolume got its end. On our mount the creation is a transaction of its own, and the kernel may
//! still be in that one. It may write data of the stream back later, so that `ctransid` is above
//! it. It is never before `otransid`.

use crate::kernel::KernelMount;
use crate::world::{World, run, succeed};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::{Need, clean_subvolumes};
use rustix::fs::{CWD, RenameFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The mount that an operation changes.
struct Side<'a> {
    root: &'a Path,
    is_ours: bool,
    stream: &'a Path,
}

impl Side<'_> {
    fn at(&self, path: &str) -> String {
        self.root.join(path).to_str().unwrap().to_owned()
    }

    fn open(&self, path: &str) -> MountedPath {
        MountedPath::open(&self.root.join(path)).unwrap()
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        self.open("").create_snapshot(&self.open(source), name.as_bytes(), read_only).unwrap();
    }

    fn sync(&self) {
        self.open("").sync().unwrap();
    }

    /// Deletes a subvolume, and waits until it is gone.
    fn delete(&self, name: &str) {
        self.open("").delete_subvolume(name.as_bytes()).unwrap();
        let root = self.at("");
        match self.is_ours {
            true => drop(succeed(["subvolume", "sync", &root])),
            false => clean_subvolumes(self.root).unwrap(),
        }
    }

    fn receive(&self, into: &str) {
        let (into, stream) = (self.at(into), self.stream.to_str().unwrap());
        match self.is_ours {
            true => drop(succeed(["receive", "-q", "-f", stream, &into])),
            false => drop(run("btrfs", &["-q", "receive", "-f", stream, &into])),
        }
    }

    /// Renames with flags of `renameat2`.
    fn rename(&self, from: &str, to: &str, flags: RenameFlags) {
        rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags).unwrap();
    }
}

type Operation = (&'static str, fn(&Side<'_>));

/// The image has the subvolumes `s` (256) and `other` (257), and `kept` (258), a read-only snapshot
/// of `s`. All have a file `f`. The directory `d` has the files `a` and `b`, and `e` has the file
/// `c` and the directory `empty`.
const OPERATIONS: &[Operation] = &[
    ("nothing", |_| {}),
    ("create", |side| side.open("").create_subvolume(b"new").unwrap()),
    ("create inside", |side| side.open("s").create_subvolume(b"new").unwrap()),
    ("snapshot", |side| side.snapshot("s", "new", false)),
    ("read-only snapshot", |side| side.snapshot("s", "new", true)),
    ("snapshot of a snapshot", |side| side.snapshot("kept", "new", false)),
    ("read-only snapshot of a snapshot", |side| side.snapshot("kept", "new", true)),
    ("two snapshots", |side| {
        side.snapshot("s", "new", true);
        side.snapshot("s", "newer", true);
    }),
    ("write, then a snapshot", |side| {
        fs::write(side.at("s/f"), "changed").unwrap();
        side.snapshot("s", "new", true);
    }),
    ("write after a snapshot", |side| {
        side.snapshot("s", "new", true);
        fs::write(side.at("s/f"), "changed").unwrap();
        side.sync();
    }),
    ("write in a snapshot", |side| {
        side.snapshot("s", "new", false);
        fs::write(side.at("new/f"), "changed").unwrap();
        side.sync();
    }),
    ("write", |side| fs::write(side.at("s/f"), "changed").unwrap()),
    ("rename", |side| fs::rename(side.at("other"), side.at("moved")).unwrap()),
    ("rename into another", |side| fs::rename(side.at("other"), side.at("s/moved")).unwrap()),
    ("rename a file", |side| fs::rename(side.at("d/a"), side.at("d/x")).unwrap()),
    ("rename a file away", |side| fs::rename(side.at("d/a"), side.at("e/x")).unwrap()),
    ("rename a file over another", |side| fs::rename(side.at("d/a"), side.at("d/b")).unwrap()),
    ("rename a file away over another", |side| {
        fs::hard_link(side.at("e/c"), side.at("c")).unwrap();
        fs::rename(side.at("d/a"), side.at("e/c")).unwrap();
    }),
    ("rename a directory", |side| fs::rename(side.at("e"), side.at("d/e")).unwrap()),
    ("exchange files", |side| side.rename("d/a", "d/b", RenameFlags::EXCHANGE)),
    ("exchange files of two directories", |side| side.rename("d/a", "e/c", RenameFlags::EXCHANGE)),
    ("rename over a directory", |side| fs::rename(side.at("other"), side.at("e/empty")).unwrap()),
    ("exchange with a directory", |side| side.rename("other", "e/empty", RenameFlags::EXCHANGE)),
    ("exchange subvolumes", |side| side.rename("other", "s", RenameFlags::EXCHANGE)),
    ("exchange subvolumes of two", |side| {
        side.open("s").create_subvolume(b"new").unwrap();
        // Ours is committed, and the kernel's is not.
        side.sync();
        side.rename("other", "s/new", RenameFlags::EXCHANGE);
    }),
    ("leave a whiteout", |side| side.rename("d/a", "d/x", RenameFlags::WHITEOUT)),
    ("leave a whiteout, away over another", |side| side.rename("d/a", "e/c", RenameFlags::WHITEOUT)),
    ("remove names", |side| {
        fs::remove_file(side.at("d/a")).unwrap();
        fs::remove_dir(side.at("e/empty")).unwrap();
    }),
    ("add names", |side| {
        fs::hard_link(side.at("d/a"), side.at("e/a")).unwrap();
        fs::create_dir(side.at("e/new")).unwrap();
        std::os::unix::fs::symlink("a", side.at("d/link")).unwrap();
    }),
    ("delete", |side| side.delete("other")),
    ("delete a snapshot", |side| side.delete("kept")),
    ("make read-only", |side| side.open("s").set_subvolume_read_only(true).unwrap()),
    ("make writable", |side| side.open("kept").set_subvolume_read_only(false).unwrap()),
    ("make read-only again", |side| side.open("kept").set_subvolume_read_only(true).unwrap()),
    ("set-received", |side| side.open("s").mark_received([7; 16]).unwrap()),
    ("set-received, then writable and not", |side| {
        side.open("s").mark_received([7; 16]).unwrap();
        side.open("s").set_subvolume_read_only(true).unwrap();
    }),
    ("set-default", |side| drop(succeed(["subvolume", "set-default", &side.at("s")]))),
    ("quota enable", |side| {
        side.open("").enable_quotas(false).unwrap();
        side.open("").wait_for_quota_rescan().unwrap();
    }),
    ("receive", |side| side.receive("")),
    ("receive inside", |side| side.receive("other")),
];

/// Fields with the number of a transaction.
const TRANSACTIONS: [&str; 8] = [
    "generation",
    "last_snapshot",
    "generation_v2",
    "ctransid",
    "otransid",
    "stransid",
    "rtransid",
    "transid",
];
const TIMES: [&str; 5] = ["atime", "ctime", "mtime", "otime", "stime"];
/// Fields whose values say where something lies, and those that the head of this file names.
const OTHERS: [&str; 3] = ["bytenr", "itemoff", "byte_limit"];

/// The items of a tree: the lines of each, by its key.
fn items(image: &Path, tree: &str) -> BTreeMap<String, Vec<String>> {
    let dump = succeed(["inspect-internal", "dump-tree", "-t", tree, image.to_str().unwrap()]);
    let mut items = BTreeMap::new();
    let mut lines: Option<&mut Vec<String>> = None;
    for line in dump.lines() {
        let item = line.strip_prefix("\titem ").and_then(|rest| rest.split_once(" key "));
        match item {
            Some((_, rest)) => {
                let key = rest.split(')').next().unwrap().to_owned();
                lines = Some(items.entry(key).or_default());
            }
            None if line.starts_with("\t\t") => {
                lines.as_mut().expect("a line of an item").push(line.trim().to_owned());
            }
            None => lines = None,
        }
    }
    items
}

/// Returns the items that are compared: root items of subvolumes, references to them, and the items
/// of the top level and of the root directories of subvolumes.
fn fields(image: &Path) -> BTreeMap<String, Vec<String>> {
    let is_subvolume = |key: &str| {
        let id = key.trim_start_matches('(').split(' ').next().unwrap();
        id == "FS_TREE" || id.parse::<u64>().is_ok_and(|id| id >= 256)
    };
    let roots = items(image, "root");
    let mut found: BTreeMap<_, _> = roots
        .into_iter()
        .filter(|(key, _)| key.contains(" ROOT_") && is_subvolume(key))
        .map(|(key, lines)| (format!("root tree {key}"), lines))
        .collect();
    found.extend(items(image, "5").into_iter().map(|(key, lines)| (format!("top level {key}"), lines)));
    for tree in ["256", "257", "258"] {
        if found.keys().any(|key| key.starts_with(&format!("root tree ({tree} ROOT_ITEM"))) {
            let own = items(image, tree).into_iter().filter(|(key, _)| key.starts_with("(256 "));
            found.extend(own.map(|(key, lines)| (format!("tree {tree} {key}"), lines)));
        }
    }
    found
}

fn generation(image: &Path) -> u64 {
    let dump = succeed(["inspect-internal", "dump-super", image.to_str().unwrap()]);
    let line = dump.lines().find(|line| line.starts_with("generation")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Calls `with` for each word and the word before it.
fn map_words(line: &str, mut with: impl FnMut(&str, &str) -> String) -> String {
    let mut before = "";
    let words = line.split_whitespace().map(|word| {
        let mapped = with(before, word);
        before = word;
        mapped
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the word after `field` in a line.
fn value<'a>(line: &'a str, field: &str) -> &'a str {
    line.split_whitespace().skip_while(|word| *word != field).nth(1).expect("the line has the field")
}

/// Makes the fields of an image comparable with those of another.
fn comparable(image: &Path, before: &BTreeMap<String, Vec<String>>, last: u64) -> Vec<String> {
    let after = fields(image);
    let mut later = BTreeSet::new();
    let mut uuids = BTreeMap::new();
    for (key, lines) in &after {
        let offset = key.rsplit(' ').next().unwrap();
        later.extend(offset.parse::<u64>().ok().filter(|_| key.contains("ROOT_ITEM")));
        for line in lines {
            map_words(line, |field, word| {
                if TRANSACTIONS.contains(&field) {
                    later.extend(word.parse::<u64>());
                }
                if field == "uuid" {
                    uuids.insert(word.to_owned(), key.split(' ').nth(2).unwrap().to_owned());
                }
                String::new()
            });
        }
    }
    let later: Vec<u64> = later.into_iter().filter(|number| *number > last).collect();
    let number = |word: &str| match word.parse::<u64>() {
        Ok(found) if found > last && found < u64::MAX => {
            format!("later-{}", later.iter().position(|one| *one == found).unwrap_or(usize::MAX))
        }
        _ => word.to_owned(),
    };
    let known: BTreeSet<&str> = before.values().flatten().flat_map(|line| line.split_whitespace()).collect();
    let mut all = Vec::new();
    for (key, lines) in &after {
        let shown = match key.rsplit_once(' ') {
            Some((rest, offset)) if key.contains("ROOT_ITEM") => format!("{rest} {}", number(offset)),
            _ => key.clone(),
        };
        // The kernel lets a new inode begin with the count that the memory of another one had.
        let is_new = key.contains(" INODE_ITEM ")
            && lines.iter().any(|line| {
                line.starts_with("generation") && value(line, "generation").parse::<u64>().unwrap() > last
            });
        for line in lines {
            let is_time = TIMES.iter().chain(&["rtime"]).any(|time| line.starts_with(time));
            let line = if is_time { line.split(" (").next().unwrap() } else { line };
            let mapped = map_words(line, |field, word| match field {
                _ if OTHERS.contains(&field) => "-".to_owned(),
                "ROOT_ITEM" => number(word.trim_end_matches(')')),
                "rtransid" if word != "0" => {
                    let [received, made] =
                        [word, value(line, "otransid")].map(|word| word.parse::<u64>().unwrap());
                    if received < made { "before otransid" } else { "set" }.to_owned()
                }
                "sequence" if is_new => "-".to_owned(),
                _ if TRANSACTIONS.contains(&field) => number(word),
                "uuid" | "parent_uuid" | "received_uuid" => match uuids.get(word) {
                    _ if word.starts_with("00000000") => "none".to_owned(),
                    Some(owner) if field != "uuid" => format!("of {owner}"),
                    _ if known.contains(word) => "as before".to_owned(),
                    _ => "new".to_owned(),
                },
                _ if is_time && !field.is_empty() => match known.contains(word) {
                    true if word == "0.0" => "none".to_owned(),
                    true => "as before".to_owned(),
                    false => "new".to_owned(),
                },
                _ => word.to_owned(),
            });
            all.push(format!("{shown}: {mapped}"));
        }
    }
    all
}

/// Comparisons of an operation, at most.
const ATTEMPTS: u32 = 3;

/// Returns the first result without differences, or the last one.
fn first_equal(mut compared: impl Iterator<Item = Vec<String>>) -> Vec<String> {
    let mut last = Vec::new();
    let equal = compared.find_map(|found| {
        last = found;
        last.is_empty().then(Vec::new)
    });
    equal.unwrap_or(last)
}

#[test]
fn operations_leave_the_fields_that_the_kernel_leaves() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let (pristine, image, stream) = (world.beside("pristine.img"), world.image(), world.beside("stream"));
    let (directory, copied) = (world.directory(), world.beside("copy.img"));
    {
        let _kernel = KernelMount::new(&image, &directory, "noatime");
        let side = Side { root: &directory, is_ours: false, stream: &stream };
        for name in ["s", "other"] {
            side.open("").create_subvolume(name.as_bytes()).unwrap();
            fs::write(side.at(&format!("{name}/f")), "content").unwrap();
        }
        fs::create_dir(side.at("d")).unwrap();
        fs::create_dir_all(side.at("e/empty")).unwrap();
        for name in ["d/a", "d/b", "e/c"] {
            fs::write(side.at(name), name).unwrap();
        }
        side.snapshot("s", "kept", true);
        side.snapshot("other", "sent", true);
        run("btrfs", &["-q", "send", "-f", stream.to_str().unwrap(), &side.at("sent")]);
        side.open("").delete_subvolume(b"sent").unwrap();
        clean_subvolumes(&directory).unwrap();
        side.sync();
    }
    let copy = |from: &Path, to: &Path| {
        run("cp", &["--sparse=auto", from.to_str().unwrap(), to.to_str().unwrap()]);
    };
    copy(&image, &pristine);
    let (before, last) = (fields(&pristine), generation(&pristine));
    let compare = |name: &str, operation: &dyn Fn(&Side<'_>)| {
        let mut found = [false, true].map(|is_ours| {
            copy(&pristine, &image);
            let side = Side { root: &directory, is_ours, stream: &stream };
            if is_ours {
                // Where the kernel gathers writes, FUSE stores times of renamed files by calls of
                // their own, which count as changes.
                world.mount(&["-o", "noatime,nowriteback_cache"]);
                operation(&side);
                world.unmount();
            } else {
                let _kernel = KernelMount::new(&image, &directory, "noatime");
                operation(&side);
            }
            // The kernel frees the loop device some time after the unmount.
            copy(&image, &copied);
            comparable(&copied, &before, last)
        });
        let [theirs, ours] = &mut found;
        let kernel: BTreeSet<_> = theirs.iter().collect();
        let papilio: BTreeSet<_> = ours.iter().collect();
        let kernels = kernel.difference(&papilio).map(|line| format!("{name}: kernel: {line}"));
        let ours = papilio.difference(&kernel).map(|line| format!("{name}: papilio: {line}"));
        kernels.chain(ours).collect::<Vec<_>>()
    };
    let mut differences = Vec::new();
    for (name, operation) in OPERATIONS {
        // On a slow machine a commit of either side may come between two steps of an operation, and
        // adds a transaction. A difference of the operation itself is there each time.
        let compared = (0..ATTEMPTS).map(|_| compare(name, operation));
        differences.extend(first_equal(compared));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
