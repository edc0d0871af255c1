//! `papilio bench age`: works on one file system for a long time, and shows how it ages.
//!
//! Owns the arguments, and [`run`], which runs a [`workload`], prints a row for each
//! [point](AgePoint), writes plots, and checks the file system at the end.

mod kind;
mod plot;
mod point;
mod workload;

use crate::measure::print_line;
use anyhow::{Context, bail};
pub use kind::Workload;
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions, RaidProfile};
use papilio_oracle::Scratch;
use point::{AgePoint, Ager};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `age`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Work to do
    #[arg(value_enum, default_value = "churn")]
    workload: Workload,
    /// Amount of work [default: 1000000 operations, 100 times full and back, 1000 snapshots,
    /// 1000000 extents, 1000000 names, 60 seconds]
    #[arg(long)]
    amount: Option<u64>,
    /// Minutes after which the work ends, done or not
    #[arg(long)]
    minutes: Option<u64>,
    /// Size of the device in bytes [default: 2 GiB; 512 MiB for fill, 8 GiB for names]
    #[arg(long)]
    size: Option<u64>,
    /// Points to measure at
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    points: u64,
    /// Seed of the random operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the image
    #[arg(long, default_value = "/dev/shm")]
    backing: PathBuf,
    /// Bytes of page cache
    #[arg(long, default_value_t = 64 << 20)]
    cache: u64,
    /// Directory for a plot of each quantity and a table of the points
    #[arg(long)]
    output: Option<PathBuf>,
    /// Keep the image at this path, for other checks
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Runs a workload and shows its points.
///
/// # Errors
/// An operation fails, or the check at the end finds a fault.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let workload = arguments.workload;
    let amount = arguments.amount.unwrap_or(workload.default_amount()).max(1);
    let size = arguments.size.unwrap_or(workload.default_size());
    if let Some(folder) = &arguments.output {
        crate::output::prepare_folder(folder)?;
    }
    let scratch = Scratch::under(&arguments.backing, size)?;
    let image = arguments.keep.clone().unwrap_or_else(|| scratch.unique("aged"));
    let mut made = MkfsOptions::new().size(size);
    if workload == Workload::Names {
        // 10,000,000 names take 5 GiB of metadata.
        made = made.metadata_profile(RaidProfile::Single);
    }
    papilio::mkfs(&image, &made)?;
    let open = OpenOptions::new().write(true).cache_bytes(arguments.cache);
    let fs = FileSystem::open_with(&image, &open)?;
    let step = amount.div_ceil(arguments.points);
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    let mut ager = Ager::new(fs.clone(), step, arguments.seed, limit);
    print_line(format_args!("{}", AgePoint::heading(workload.unit())))?;
    workload::run(&mut ager, workload, amount)
        .with_context(|| format!("after {} {}", ager.age(), workload.unit()))?;
    let points = ager.into_points();
    fs.close()?;

    let checked = CheckOptions::new().data_csum(true);
    let report = FileSystem::open(&image)?.check(&checked)?;
    print_line(format_args!("check: {} findings", report.findings.len()))?;
    if let Some(folder) = &arguments.output {
        let table = points.iter().map(AgePoint::line).collect::<Vec<_>>().join("\n");
        let text = format!("{}\n{table}\n", AgePoint::columns(workload.unit()));
        crate::output::write(&folder.join(format!("age-{}.tsv", workload.name())), &text)?;
        for plot in plot::all(workload, &points)? {
            crate::output::write(&folder.join(format!("{}.svg", plot.name)), &plot.svg)?;
        }
    }
    if arguments.keep.is_none() {
        std::fs::remove_file(&image).with_context(|| image.display().to_string())?;
    }
    if !report.is_clean() {
        bail!("the aged file system has {} faults: {:?}", report.findings.len(), report.findings.first());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_oracle::{ImageSet, Need, require};

    fn small(workload: Workload, amount: u64) {
        let scratch = Scratch::new(1 << 30).unwrap();
        let (image, output) = (scratch.unique("kept"), scratch.path().join("output"));
        let arguments = Arguments {
            workload,
            amount: Some(amount),
            minutes: None,
            size: Some(300 << 20),
            points: 4,
            seed: 3,
            backing: scratch.path().to_owned(),
            cache: 4 << 20,
            output: Some(output.clone()),
            keep: Some(image.clone()),
        };
        run(&arguments).unwrap();
        let name = workload.name();
        let table = std::fs::read_to_string(output.join(format!("age-{name}.tsv"))).unwrap();
        assert!((4..=11).contains(&table.lines().count()), "{table}");
        for quantity in ["time", "space", "memory"] {
            let svg = std::fs::read_to_string(output.join(format!("age-{name}-{quantity}.svg"))).unwrap();
            assert!(svg.contains("<polyline"), "{name}, {quantity}");
        }
        if require(Need::KERNEL_MOUNT).is_some() {
            let images = ImageSet::open(&scratch, vec![image]);
            images.btrfs_check().unwrap();
            drop(images.mount_read_only().unwrap());
        }
    }

    #[test]
    fn each_workload_leaves_a_clean_file_system() {
        small(Workload::Churn, 120_000);
        small(Workload::Fill, 4);
        small(Workload::Snapshots, 60);
        small(Workload::Extents, 20_000);
        small(Workload::Names, 20_000);
        small(Workload::Stream, 3);
    }
}
