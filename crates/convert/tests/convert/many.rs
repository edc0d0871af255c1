//! Many shapes of ext and XFS, drawn by a seed each: the whole way and back.
//!
//! `PAPILIO_CONVERT_SHAPES` is the number of shapes of each (1).

use super::fill::everything;
use super::world::{NEEDS, World, XFS_NEEDS};
use super::xfs_fill::{large_attributes, many_names, reflinks};
use papilio_convert::ConvertOptions;
use papilio_oracle::require;

fn count() -> u64 {
    std::env::var("PAPILIO_CONVERT_SHAPES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
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

#[test]
fn many_shapes_of_ext_go_both_ways() {
    if require(NEEDS).is_none() {
        return;
    }
    for seed in 0..count() {
        let arguments = ext(&mut fastrand::Rng::with_seed(seed));
        println!("{seed}: {arguments}");
        let world = World::new(&arguments, 256, everything);
        world.convert();
        world.check_btrfs();
        world.compare_btrfs(&[]);
        world.roll_back().unwrap();
        world.check_back();
    }
}

#[test]
fn many_shapes_of_xfs_go_both_ways() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    for seed in 0..count() {
        let arguments = xfs(&mut fastrand::Rng::with_seed(seed));
        println!("{seed}: {arguments}");
        let world = World::xfs(&arguments, 260, |root| {
            everything(root);
            large_attributes(root);
            many_names(root, 3000);
            if arguments.contains("reflink=1") {
                reflinks(root);
            }
        });
        world.convert_with(&ConvertOptions::new().node_size(65536)).unwrap();
        world.check_btrfs();
        world.compare_btrfs(&[]);
        world.roll_back().unwrap();
        world.check_back();
    }
}
