//! Many shapes of ext and XFS, drawn by a seed each: the whole way and back.
//!
//! The seed chooses the content in turn, and draws the features of `mke2fs` or `mkfs.xfs`.
//! `PAPILIO_CONVERT_SHAPES` is the number of shapes of ext (60), `PAPILIO_CONVERT_XFS_SHAPES` that
//! of XFS (20); `PAPILIO_CONVERT_FIRST` is the first seed (0). They take long, and are ignored
//! without `--ignored`. With `PAPILIO_CONVERT_STOCK=1`, btrfs-convert converts a copy of each ext,
//! too, and a line tells its time and whether it succeeded.

use super::fill::{
    deep_folders, everything, for_any_host, fragments, many_links, many_xattrs, nearly_full, programs,
    small_files, sparse_files,
};
use super::world::{Kind, NEEDS, World, XFS_NEEDS, compare_trees, copy, run};
use super::xfs_fill::{large_attributes, many_names, prototype, reflinks, scattered_inodes};
use papilio_convert::{ConvertOptions, Converted};
use papilio_oracle::{Scratch, require};
use std::fs;
use std::ops::Range;
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

/// Converts a shape, judges the result, brings the source back, and judges that.
fn whole_way(world: &World, options: &ConvertOptions) {
    let begun = Instant::now();
    let converted = world.convert_with(options).unwrap();
    println!("  converted in {:.2} s", begun.elapsed().as_secs_f64());
    stock(world);
    judge_plan(&converted);
    world.check_btrfs();
    world.scrub();
    world.compare_btrfs(&[]);
    world.roll_back().unwrap();
    world.check_back();
}

/// Lets btrfs-convert convert a copy, if that is wanted.
fn stock(world: &World) {
    if number("PAPILIO_CONVERT_STOCK", 0) == 0 || !matches!(world.kind, Kind::Ext) {
        return;
    }
    let image = world.scratch.path().join("stock");
    copy(&world.original, &image);
    let begun = Instant::now();
    let output = Command::new("btrfs-convert").arg(&image).output().unwrap();
    let (seconds, error) = (begun.elapsed().as_secs_f64(), String::from_utf8_lossy(&output.stderr));
    let reason = error.lines().find(|line| line.contains("ERROR")).unwrap_or_default();
    println!("  btrfs-convert: {} in {seconds:.2} s {reason}", output.status);
    fs::remove_file(&image).unwrap();
}

/// The plan told how much metadata there would be.
fn judge_plan(converted: &Converted) {
    let (plan, used) = (&converted.plan, converted.metadata_used);
    let room = plan.metadata_room;
    println!("  metadata: {} of {} planned and {room} set aside", used, plan.metadata_bytes);
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
    for seed in seeds("PAPILIO_CONVERT_SHAPES", 60) {
        let mut random = fastrand::Rng::with_seed(seed);
        let content = EXT[seed as usize % EXT.len()];
        let mut arguments = ext(&mut random);
        if content.starts_with("journal") {
            // The features that a journal's blocks have.
            arguments = arguments.replace("-t ext2", "-t ext3") + " -J size=8";
        }
        println!("{seed}: {content}: {arguments}");
        let begun = Instant::now();
        let options = ConvertOptions::new();
        match content {
            "programs" => whole_way(&World::new(&arguments, 500, programs), &options),
            "journal" => {
                super::journal::both_ways(&super::journal::cut_off(&arguments, small_files, |root| {
                    fs::rename(root.join("small"), root.join("renamed")).unwrap();
                    deep_folders(root);
                }))
            }
            "journal of everything" => {
                super::journal::both_ways(&super::journal::cut_off(
                    &arguments,
                    everything,
                    super::journal::changes,
                ));
            }
            "sparse" => whole_way(&World::new(&arguments, 256, sparse_files), &options),
            // The first has 100,000 extents.
            "fragments" => {
                let extents = if seed < 12 { 100_000 } else { 10_000 };
                let mib = if seed < 12 { 1200 } else { 400 };
                whole_way(&World::new(&arguments, mib, |root| fragments(root, extents)), &options);
            }
            "full" => {
                // One per cent stays free.
                let fill = |root: &Path| nearly_full(root, 22 << 20, true);
                whole_way(&World::new(&format!("{arguments} -m 0"), 2200, fill), &options);
            }
            "links" => whole_way(&World::new(&arguments, 256, |root| many_links(root, 31_000)), &options),
            "attributes" => whole_way(&World::new(&arguments, 300, many_xattrs), &options),
            "deep" => whole_way(&World::new(&arguments, 256, deep_folders), &options),
            "small" => whole_way(&World::new(&arguments, 256, small_files), &options),
            "large blocks" => large_blocks(&mut random),
            _ => whole_way(&World::new(&arguments, 256, everything), &options),
        }
        println!("  {:.1} s", begun.elapsed().as_secs_f64());
    }
}

/// Blocks that are larger than pages: `mke2fs` fills the file system, because the kernel may not
/// mount it, and the host's files are the measure.
pub fn large_blocks(random: &mut fastrand::Rng) {
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
    assert_eq!(world.convert().plan.block_size.to_string(), size);
    world.check_btrfs();
    world.scrub();
    {
        let (mount, _loop) = world.mount_btrfs(true);
        compare_trees(&source, mount.path(), &["btime", "ctime", "atime", "mtime", "entry"]);
    }
    world.roll_back().unwrap();
    run("e2fsck", &["-fn", &path]);
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
    for seed in seeds("PAPILIO_CONVERT_XFS_SHAPES", 20) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (content, arguments) = (XFS[seed as usize % XFS.len()], xfs(&mut random));
        println!("{seed}: {content}: {arguments}");
        let begun = Instant::now();
        let share = |root: &Path| {
            if arguments.contains("reflink=1") {
                reflinks(root);
            }
        };
        let options = ConvertOptions::new().node_size(65536);
        let plain = ConvertOptions::new();
        match content {
            "programs" => whole_way(&World::xfs(&arguments, 500, programs), &plain),
            "version 4" => version_4(&mut random),
            "fragments" => {
                let fill = |root: &Path| {
                    fragments(root, if seed < 10 { 100_000 } else { 10_000 });
                    share(root);
                };
                whole_way(&World::xfs(&arguments, if seed < 10 { 1200 } else { 400 }, fill), &plain);
            }
            "full" => {
                let fill = |root: &Path| nearly_full(root, 22 << 20, true);
                whole_way(&World::xfs(&arguments, 2200, fill), &plain);
            }
            "small" => whole_way(&World::xfs(&arguments, 260, small_files), &plain),
            "deep" => whole_way(&World::xfs(&arguments, 260, deep_folders), &plain),
            "sparse inodes" => {
                let arguments = "-i sparse=1 -l size=20m -m reflink=0,rmapbt=0,finobt=0,inobtcount=0";
                whole_way(&World::xfs(arguments, 300, scattered_inodes), &plain);
            }
            "sparse" => {
                let fill = |root: &Path| {
                    sparse_files(root);
                    share(root);
                };
                whole_way(&World::xfs(&arguments, 260, fill), &plain);
            }
            "links" => whole_way(&World::xfs(&arguments, 260, |root| many_links(root, 60_000)), &plain),
            _ => {
                let fill = |root: &Path| {
                    everything(root);
                    large_attributes(root);
                    many_names(root, 3000);
                    share(root);
                };
                whole_way(&World::xfs(&arguments, 260, fill), &options);
            }
        }
        println!("  {:.1} s", begun.elapsed().as_secs_f64());
    }
}

/// XFS of version 4, which `mkfs.xfs` fills from a prototype.
fn version_4(random: &mut fastrand::Rng) {
    let types = random.u8(0..2);
    let (inode, directory) = ([256, 512, 2048][random.usize(0..3)], [4096, 8192, 65536][random.usize(0..3)]);
    let (lazy, groups, sector) = (random.u8(0..2), random.u8(1..9), [512, 4096][random.usize(0..2)]);
    let arguments = format!(
        "-m crc=0 -n ftype={types},size={directory} -i size={} -l lazy-count={lazy},size=20m \
         -d agcount={groups} -s size={sector}",
        if sector == 4096 { 2048.min(inode * 2) } else { inode }
    );
    println!("  {arguments}");
    four_both_ways(&[&arguments]);
}

/// Judges conversions of XFS of version 4, made with these arguments.
pub fn four_both_ways(shapes: &[&str]) {
    let scratch = Scratch::new(700 << 20).unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let description = scratch.path().join("prototype");
    fs::write(&description, prototype(&source)).unwrap();
    for (at, arguments) in shapes.iter().enumerate() {
        let image = scratch.image(&format!("four{at}"), 150 << 20).unwrap();
        let mut all: Vec<&str> = vec!["-q", "-p", description.to_str().unwrap()];
        all.extend(arguments.split_whitespace());
        all.push(image.to_str().unwrap());
        run("mkfs.xfs", &all);
        let world = World::of(Kind::Xfs, scratch.clone(), image);
        world.convert();
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
}
