//! `papilio-oracle`: makes file systems with the kernel, for benches and long runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use papilio_oracle::{
    CompareOptions, HostTree, ImageSet, Manifest, ManifestOptions, Need, RingSwitch, Scratch, TreeSpec,
    compare, matrix, preset, scratch,
};

/// Make file systems with the kernel's Btrfs, read them and compare trees
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make and fill a file system: OUT/PRESET-0.img, -1.img and so on
    Make {
        /// The shape: a name that `list` prints, or `all`
        #[arg(long, default_value = "default")]
        preset: String,
        /// Approximate number of files
        #[arg(long, default_value_t = 300)]
        files: u64,
        /// Approximate bytes of content
        #[arg(long, default_value_t = 16 << 20)]
        bytes: u64,
        /// Seed of all random choices
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Run `btrfs check` on the result
        #[arg(long)]
        check: bool,
        /// Output folder, created if necessary
        out: PathBuf,
    },
    /// List the shapes
    List,
    /// Mount the images of one file system and walk them: print counts, or every entry
    Walk {
        /// Print every entry
        #[arg(long)]
        verbose: bool,
        /// The images, one per device
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
    /// Compare two folders on the host
    Compare {
        /// Compare only the facts that a copy preserves: no inode numbers, no change times
        #[arg(long)]
        copy: bool,
        /// The left folder
        left: PathBuf,
        /// The right folder
        right: PathBuf,
    },
    /// Remove the remains of killed runs
    Clean,
    /// For tests: hold the file SWITCH, a stand-in for the kernel's switch, on until stdin ends
    #[command(hide = true)]
    HoldSwitch {
        /// The file that stands in for the switch
        switch: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Make { preset, files, bytes, seed, check, out } => {
            let spec = TreeSpec { files, bytes, seed, ..TreeSpec::default() };
            make(&preset, spec, check, &out)
        }
        Command::List => {
            for preset in matrix() {
                println!("{:24} {} device(s)", preset.name, preset.spec.devices);
            }
            Ok(())
        }
        Command::Walk { verbose, images } => walk(images, verbose),
        Command::Compare { copy, left, right } => {
            let options = if copy { CompareOptions::COPY } else { CompareOptions::SAME_IMAGE };
            let report = compare(&HostTree::new(left), &HostTree::new(right), &options);
            println!("{report}");
            if report.is_equal() { Ok(()) } else { bail!("the trees differ") }
        }
        Command::Clean => {
            scratch::clean_leftovers().iter().for_each(|path| println!("removed {}", path.display()));
            Ok(())
        }
        Command::HoldSwitch { switch } => {
            let _held = RingSwitch::on_at(&switch)?;
            println!("on");
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            Ok(())
        }
    }
}

fn needs() -> anyhow::Result<()> {
    match Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

fn make(name: &str, tree: TreeSpec, check: bool, out: &Path) -> anyhow::Result<()> {
    needs()?;
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let scratch = Scratch::new(0)?;
    let chosen = match name {
        "all" => matrix().into_iter().map(|preset| (preset.name, preset.spec)).collect(),
        _ => {
            let spec =
                preset(name).with_context(|| format!("no preset '{name}'; `list` prints the names"))?;
            vec![(name.to_owned(), spec)]
        }
    };
    for (name, spec) in chosen {
        let spec = spec.sized_for(tree.bytes);
        let free = scratch::free_space(out)?;
        let needed = tree.bytes.saturating_mul(spec.copies());
        if free < needed {
            bail!("{}: {free} bytes free, about {needed} needed", out.display());
        }
        let images = spec.make_in(&scratch, out, &name)?;
        let mounted = images.mount()?;
        let start = std::time::Instant::now();
        let done = tree.populate(mounted.path()).with_context(|| name.clone())?;
        mounted.unmount()?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{name}: {} entries, {} bytes in {seconds:.1} s", done.entries, done.bytes);
        if check && images.checkable() {
            images.btrfs_check()?;
            println!("{name}: btrfs check is clean");
        }
    }
    Ok(())
}

fn walk(images: Vec<PathBuf>, verbose: bool) -> anyhow::Result<()> {
    needs()?;
    let scratch = Scratch::new(0)?;
    let mounted = ImageSet::open(&scratch, images).mount_read_only()?;
    let manifest = Manifest::read(&HostTree::new(mounted.path()), ManifestOptions::default())?;
    if verbose {
        for (path, entry) in &manifest.entries {
            let m = &entry.metadata;
            println!("{path:?} {:?} {:o} {}:{} {} {}", m.kind, m.mode, m.uid, m.gid, m.nlink, m.size);
        }
    }
    println!("{} entries, {} bytes", manifest.entries.len(), manifest.bytes());
    Ok(())
}
