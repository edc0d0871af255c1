//! Many shapes of ext and XFS, drawn by a seed each: the whole way and back.
//!
//! The seed chooses the content in turn, and draws the features of `mke2fs` or `mkfs.xfs`.
//! `PAPILIO_CONVERT_SHAPES` is the number of shapes of ext (60), `PAPILIO_CONVERT_XFS_SHAPES` that
//! of XFS (20); `PAPILIO_CONVERT_FIRST` is the first seed (0). They take long, and are ignored
//! without `--ignored`. With `PAPILIO_CONVERT_STOCK=1`, btrfs-convert converts a copy of each ext,
//! too.
//!
//! Each shape has a line. A shape that fails does not end the run: the last lines count what each
//! program converted and refused, and name the shapes that failed. Papilio may refuse a shape only
//! if that is expected ([`may_lack_room`]).

use super::fill::{
    deep_folders, everything, for_any_host, fragments, many_links, many_xattrs, nearly_full, programs,
    small_files, sparse_files,
};
use super::world::{Kind, NEEDS, World, XFS_NEEDS, compare_trees, copy, run};
use super::xfs_fill::{large_attributes, many_names, prototype, reflinks, scattered_inodes};
use papilio_convert::{ConvertError, ConvertOptions, Converted};
use papilio_oracle::{Scratch, require};
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the seeds of the shapes to convert.
fn seeds(name: &str, count: u64) -> Range<u64> {
    let first = number("PAPILIO_CONVERT_FIRST", 0);
    first..first + number(name, count)
}

/// Draws the arguments of `mke2fs`.
fn ext(random: &mut fastrand::Rng) -> String {
    let kind = ["ext2", "ext3", "ext4", "ext4", "ext4"][random.usize(0..5)];
    let mut features: Vec<String> = Vec::new();
    let names: &[&str] = match kind {
        "ext4" => &["64bit", "flex_bg", "metadata_csum", "inline_data", "large_dir", "dir_index"],
        _ => &["dir_index", "filetype"],
    };
    for name in names {
        features.push(format!("{}{name}", if random.bool() { "" } else { "^" }));
    }
    let more: &[&str] = match random.u8(0..6) {
        0 => &["^sparse_super", "^resize_inode"],
        1 if kind == "ext4" => &["bigalloc"],
        2 if kind == "ext4" => &["meta_bg", "^resize_inode"],
        3 if kind == "ext4" => &["sparse_super2", "^resize_inode"],
        4 if kind == "ext4" => &["^extent", "^64bit", "^inline_data"],
        _ => &[],
    };
    features.extend(more.iter().map(|name| (*name).to_owned()));
    let inode = [256, 512, 1024][random.usize(0..3)];
    let group = [4096, 8192, 32768][random.usize(0..3)];
    let mut text = format!("-t {kind} -b 4096 -I {inode} -O {}", features.join(","));
    if !text.contains("bigalloc") {
        text += &format!(" -g {group}");
    }
    text
}

/// Draws the arguments of `mkfs.xfs`.
fn xfs(random: &mut fastrand::Rng) -> String {
    let mut bit = || random.u8(0..2);
    let [reflink, rmap, free, big, counts, sparse, long] = [(); 7].map(|()| bit());
    let inode = [512, 1024, 2048][random.usize(0..3)];
    let groups = random.u32(2..=9);
    let directory = [4096, 8192, 16384, 65536][random.usize(0..4)];
    let sector = [512, 4096][random.usize(0..2)];
    let counts = counts & free;
    format!(
        "-m reflink={reflink},rmapbt={rmap},finobt={free},bigtime={big},inobtcount={counts} \
         -i size={inode},sparse={sparse},nrext64={long} -d agcount={groups} -n size={directory} \
         -s size={sector} -l size=24m"
    )
}

/// The end of a shape.
pub enum Outcome {
    /// Papilio converted it in these seconds, and everything was judged.
    Converted(f64),
    /// Papilio had a reason not to convert it, and changed nothing.
    Refused(String),
}

/// The result of btrfs-convert, if it had a copy of the shape.
pub type Stock = Option<Result<f64, String>>;

/// Whether a shape may have no free space in runs that metadata can use: small groups, on a device
/// of which 1 % is free.
fn may_lack_room(content: &str, arguments: &str) -> bool {
    content == "full" && arguments.contains("-g 4096")
}

/// The counts of a run.
#[derive(Default)]
struct Tally {
    converted: u32,
    refused: Vec<String>,
    failed: Vec<String>,
    stock_converted: u32,
    stock_failed: Vec<String>,
}

impl Tally {
    /// Runs a shape, and prints its line.
    fn shape(&mut self, name: &str, may_be_refused: bool, shape: impl FnOnce(&mut Stock) -> Outcome) {
        let begun = Instant::now();
        let mut stock = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| shape(&mut stock)));
        let verdict = match outcome {
            Ok(Outcome::Converted(seconds)) => {
                self.converted += 1;
                format!("converted in {seconds:.2} s")
            }
            Ok(Outcome::Refused(reason)) if may_be_refused => {
                self.refused.push(name.to_owned());
                format!("refused: {reason}")
            }
            Ok(Outcome::Refused(reason)) => {
                self.failed.push(name.to_owned());
                format!("FAILED, refused: {reason}")
            }
            Err(panic) => {
                self.failed.push(name.to_owned());
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
                format!("FAILED: {}", text.chars().take(300).collect::<String>().replace('\n', " "))
            }
        };
        let stock = match stock {
            None => String::new(),
            Some(Ok(seconds)) => {
                self.stock_converted += 1;
                format!("; btrfs-convert converted in {seconds:.2} s")
            }
            Some(Err(reason)) => {
                self.stock_failed.push(name.to_owned());
                format!("; btrfs-convert failed: {reason}")
            }
        };
        println!("{name}: {verdict}{stock} ({:.0} s in all)", begun.elapsed().as_secs_f64());
    }

    /// Prints the counts, and fails if a shape did.
    fn finish(self, kind: Kind) {
        println!(
            "{kind:?}: {} converted, {} refused as expected, {} failed",
            self.converted,
            self.refused.len(),
            self.failed.len()
        );
        if self.stock_converted as usize + self.stock_failed.len() > 0 {
            let failed = self.stock_failed.len();
            println!("{kind:?}: btrfs-convert: {} converted, {failed} failed", self.stock_converted);
        }
        assert!(self.failed.is_empty(), "{:#?}", self.failed);
    }
}

/// Converts a shape, judges the result, brings the source back, and judges that.
fn whole_way(world: &World, options: &ConvertOptions, stock: &mut Stock) -> Outcome {
    *stock = by_stock(world);
    let begun = Instant::now();
    let converted = match world.convert_with(options) {
        Ok(converted) => converted,
        Err(error @ ConvertError::NoRoom { .. }) => {
            world.check_back();
            return Outcome::Refused(error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let seconds = begun.elapsed().as_secs_f64();
    judge_plan(&converted);
    world.check_btrfs();
    world.scrub();
    world.compare_btrfs(&[]);
    world.roll_back().unwrap();
    world.check_back();
    Outcome::Converted(seconds)
}

/// Judges a source whose journal needs a replay.
fn journal_way(world: &World, stock: &mut Stock) -> Outcome {
    *stock = by_stock(world);
    Outcome::Converted(super::journal::both_ways(world))
}

/// Lets btrfs-convert convert a copy, if that is wanted. Returns the seconds, or its reason.
fn by_stock(world: &World) -> Stock {
    if number("PAPILIO_CONVERT_STOCK", 0) == 0 || !matches!(world.kind, Kind::Ext) {
        return None;
    }
    let image = world.scratch.path().join("stock");
    copy(&world.original, &image);
    let begun = Instant::now();
    let output = Command::new("timeout").args(["900", "btrfs-convert"]).arg(&image).output().unwrap();
    let (seconds, error) = (begun.elapsed().as_secs_f64(), String::from_utf8_lossy(&output.stderr));
    let reason = error.lines().find(|line| line.contains("ERROR")).unwrap_or_default();
    let checked = output.status.success().then(|| {
        let checked = Command::new("btrfs").args(["check", "--force"]).arg(&image).output().unwrap();
        checked.status.success()
    });
    fs::remove_file(&image).unwrap();
    Some(match checked {
        Some(true) => Ok(seconds),
        Some(false) => Err(format!("btrfs check finds faults, after {seconds:.2} s")),
        None => Err(format!("{} after {seconds:.2} s: {reason}", output.status)),
    })
}

/// The plan told how much metadata there would be.
fn judge_plan(converted: &Converted) {
    let (plan, used) = (&converted.plan, converted.metadata_used);
    let room = plan.metadata_room;
    assert!(used <= room, "{used} of {room}");
}

/// The contents of ext, in turn.
const EXT: [&str; 12] = [
    "everything",
    "programs",
    "journal",
    "sparse",
    "fragments",
    "full",
    "links",
    "attributes",
    "deep",
    "small",
    "large blocks",
    "journal of everything",
];

#[test]
#[ignore = "takes long"]
fn many_shapes_of_ext_go_both_ways() {
    if require(NEEDS).is_none() {
        return;
    }
    let mut tally = Tally::default();
    for seed in seeds("PAPILIO_CONVERT_SHAPES", 60) {
        let mut random = fastrand::Rng::with_seed(seed);
        let content = EXT[seed as usize % EXT.len()];
        let mut arguments = ext(&mut random);
        if content.starts_with("journal") {
            // The features that a journal's blocks have.
            arguments = arguments.replace("-t ext2", "-t ext3") + " -J size=8";
        }
        let name = format!("{seed}: {content}: {arguments}");
        tally.shape(&name, may_lack_room(content, &arguments), |stock| {
            ext_shape(seed, content, &arguments, &mut random, stock)
        });
    }
    tally.finish(Kind::Ext);
}

/// Makes a shape of ext, and takes it the whole way.
fn ext_shape(
    seed: u64,
    content: &str,
    arguments: &str,
    random: &mut fastrand::Rng,
    stock: &mut Stock,
) -> Outcome {
    let mut plain = |mib: u64, fill: &dyn Fn(&Path)| {
        whole_way(&World::new(arguments, mib, fill), &ConvertOptions::new(), stock)
    };
    match content {
        "programs" => plain(500, &programs),
        "journal" => {
            let world = super::journal::cut_off(arguments, small_files, |root| {
                fs::rename(root.join("small"), root.join("renamed")).unwrap();
                deep_folders(root);
            });
            journal_way(&world, stock)
        }
        "journal of everything" => {
            journal_way(&super::journal::cut_off(arguments, everything, super::journal::changes), stock)
        }
        "sparse" => plain(256, &sparse_files),
        // The first has 100,000 extents.
        "fragments" if seed < 12 => plain(1200, &|root| fragments(root, 100_000)),
        "fragments" => plain(400, &|root| fragments(root, 10_000)),
        "full" => {
            // One per cent stays free.
            let fill = |root: &Path| nearly_full(root, 22 << 20, true);
            whole_way(&World::new(&format!("{arguments} -m 0"), 2200, fill), &ConvertOptions::new(), stock)
        }
        "links" => plain(256, &|root| many_links(root, links(seed))),
        "attributes" => plain(300, &many_xattrs),
        "deep" => plain(256, &deep_folders),
        "small" => plain(256, &small_files),
        "large blocks" => large_blocks(random, stock),
        _ => plain(256, &everything),
    }
}

/// Links to a file. `btrfs check` needs time by the square of their number, so that only the first
/// shapes have many.
fn links(seed: u64) -> u64 {
    if seed < 12 { 31_000 } else { 8000 }
}

/// Blocks that are larger than pages: `mke2fs` fills the file system, because the kernel may not
/// mount it, and the host's files are the measure.
pub fn large_blocks(random: &mut fastrand::Rng, stock: &mut Stock) -> Outcome {
    let size = [8192u32, 16384, 32768, 65536][random.usize(0..4)];
    let features = ["^has_journal", "has_journal,^extent,^64bit", "metadata_csum"][random.usize(0..3)];
    let scratch = Scratch::new(400 << 20).unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    for_any_host(&source);
    let image = scratch.image("large", 300 << 20).unwrap();
    let (size, folder) = (size.to_string(), source.to_str().unwrap());
    let (path, original) = (image.to_str().unwrap().to_owned(), image.with_extension("original"));
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", &size, "-O", features, "-d", folder, &path]);
    copy(&image, &original);
    let world = World { kind: Kind::Ext, scratch, image, original };
    *stock = by_stock(&world);
    let begun = Instant::now();
    assert_eq!(world.convert().plan.block_size.to_string(), size);
    let seconds = begun.elapsed().as_secs_f64();
    world.check_btrfs();
    world.scrub();
    {
        let (mount, _loop) = world.mount_btrfs(true);
        compare_trees(&source, mount.path(), &["btime", "ctime", "atime", "mtime", "entry"]);
    }
    world.roll_back().unwrap();
    run("e2fsck", &["-fn", &path]);
    Outcome::Converted(seconds)
}

/// The contents of XFS, in turn.
const XFS: [&str; 10] = [
    "everything",
    "programs",
    "version 4",
    "fragments",
    "full",
    "small",
    "deep",
    "sparse inodes",
    "sparse",
    "links",
];

#[test]
#[ignore = "takes long"]
fn many_shapes_of_xfs_go_both_ways() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let mut tally = Tally::default();
    for seed in seeds("PAPILIO_CONVERT_XFS_SHAPES", 20) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (content, arguments) = (XFS[seed as usize % XFS.len()], xfs(&mut random));
        let name = format!("{seed}: {content}: {arguments}");
        tally.shape(&name, false, |stock| xfs_shape(seed, content, &arguments, &mut random, stock));
    }
    tally.finish(Kind::Xfs);
}

/// Makes a shape of XFS, and takes it the whole way.
fn xfs_shape(
    seed: u64,
    content: &str,
    arguments: &str,
    random: &mut fastrand::Rng,
    stock: &mut Stock,
) -> Outcome {
    let share = |root: &Path| {
        if arguments.contains("reflink=1") {
            reflinks(root);
        }
    };
    let mut plain = |arguments: &str, mib: u64, fill: &dyn Fn(&Path)| {
        whole_way(&World::xfs(arguments, mib, fill), &ConvertOptions::new(), stock)
    };
    match content {
        "programs" => plain(arguments, 500, &programs),
        "version 4" => version_4(random),
        "fragments" => {
            let (extents, mib) = if seed < 10 { (100_000, 1200) } else { (10_000, 400) };
            plain(arguments, mib, &|root| {
                fragments(root, extents);
                share(root);
            })
        }
        "full" => plain(arguments, 2200, &|root| nearly_full(root, 22 << 20, true)),
        "small" => plain(arguments, 260, &small_files),
        "deep" => plain(arguments, 260, &deep_folders),
        "sparse inodes" => {
            let arguments = "-i sparse=1 -l size=20m -m reflink=0,rmapbt=0,finobt=0,inobtcount=0";
            plain(arguments, 300, &scattered_inodes)
        }
        "sparse" => plain(arguments, 260, &|root| {
            sparse_files(root);
            share(root);
        }),
        "links" => plain(arguments, 260, &|root| many_links(root, links(seed))),
        _ => {
            let fill = |root: &Path| {
                everything(root);
                large_attributes(root);
                many_names(root, 3000);
                share(root);
            };
            let options = ConvertOptions::new().node_size(65536);
            whole_way(&World::xfs(arguments, 260, fill), &options, stock)
        }
    }
}

/// XFS of version 4, which `mkfs.xfs` fills from a prototype.
fn version_4(random: &mut fastrand::Rng) -> Outcome {
    let types = random.u8(0..2);
    let (inode, directory) = ([256, 512, 2048][random.usize(0..3)], [4096, 8192, 65536][random.usize(0..3)]);
    let (lazy, groups, sector) = (random.u8(0..2), random.u8(1..9), [512, 4096][random.usize(0..2)]);
    let arguments = format!(
        "-m crc=0 -n ftype={types},size={directory} -i size={} -l lazy-count={lazy},size=20m \
         -d agcount={groups} -s size={sector}",
        if sector == 4096 { 2048.min(inode * 2) } else { inode }
    );
    Outcome::Converted(four_both_ways(&[&arguments]))
}

/// Judges conversions of XFS of version 4, made with these arguments. Returns the seconds of the
/// last one.
pub fn four_both_ways(shapes: &[&str]) -> f64 {
    let scratch = Scratch::new(700 << 20).unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let description = scratch.path().join("prototype");
    fs::write(&description, prototype(&source)).unwrap();
    let mut seconds = 0.0;
    for (at, arguments) in shapes.iter().enumerate() {
        let image = scratch.image(&format!("four{at}"), 150 << 20).unwrap();
        let mut all: Vec<&str> = vec!["-q", "-p", description.to_str().unwrap()];
        all.extend(arguments.split_whitespace());
        all.push(image.to_str().unwrap());
        run("mkfs.xfs", &all);
        let world = World::of(Kind::Xfs, scratch.clone(), image);
        let begun = Instant::now();
        world.convert();
        seconds = begun.elapsed().as_secs_f64();
        world.check_btrfs();
        {
            let (mount, _loop) = world.mount_btrfs(true);
            compare_trees(&source, mount.path(), &["btime", "ctime", "atime", "mtime", "entry"]);
            Kind::Xfs.check(&mount.path().join("xfs_saved/image"));
        }
        world.roll_back().unwrap();
        Kind::Xfs.check(&world.image);
        world.compare_used_blocks();
    }
    seconds
}
