//! The report as text: a table for each job, on a terminal or anywhere.

use super::statistics::{Spread, nanoseconds, number};
use super::{JobReport, Point, Report, Sweep};
use crate::job::Target;
use crate::side::Side;
use std::fmt::Write;

/// Bytes of tree blocks that the library keeps where nothing else is said.
const TREE_BLOCKS: u64 = 64 << 20;

/// The heads of a job's table.
pub const HEADS: [&str; 9] =
    ["side", "MiB/s", "least to most", "x kernel", "x raw", "x slow", "p50", "p99", "CPU µs/op"];

/// A job's table: a row for each side that has figures.
pub fn rows(job: &JobReport) -> Vec<[String; 9]> {
    let ratio =
        |side, other| job.ratio(side, other).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let mut rows = Vec::new();
    for report in &job.sides {
        let side = report.side;
        let Spread { median, least, most } = report.spread(|run| run.fio.bandwidth_mib);
        let latency = |percent| report.latency_ns(percent).map_or_else(|| "-".to_owned(), nanoseconds);
        let machine = report.spread(|run| run.machine_us_per_operation()).median;
        let own = report.spread(|run| run.fio_us_per_operation()).median;
        rows.push([
            side.to_string(),
            number(median),
            format!("{} to {}", number(least), number(most)),
            ratio(side, Side::Kernel),
            ratio(side, Side::Raw),
            // Another side's distance from it says nothing about the switch.
            if side == Side::Papilio { ratio(side, Side::PapilioSlow) } else { "-".to_owned() },
            latency(50.0),
            latency(99.0),
            format!("{} ({})", number(machine), number(own)),
        ]);
    }
    rows
}

/// What Papilio aims at in a job, and how near it came, where it has figures.
pub fn aims(job: &JobReport, target: &Target) -> String {
    let mut aims = Vec::new();
    for (name, other, aim) in [
        ("kernel", Side::Kernel, target.kernel),
        ("raw", Side::Raw, target.raw),
        ("slow switch", Side::PapilioSlow, target.slow),
    ] {
        let got = job.ratio(Side::Papilio, other);
        aims.push(match got {
            Some(got) => {
                let verdict = if got >= aim { "reached" } else { "missed" };
                format!("{aim} x {name}: {got:.2} ({verdict})")
            }
            None => format!("{aim} x {name}: not measured"),
        });
    }
    aims.join("; ")
}

/// The memory that Papilio took beside its limit; `None` for a job without one.
pub fn memory_line(job: &JobReport) -> Option<String> {
    let mebibytes = |bytes: u64| number(bytes as f64 / f64::from(1 << 20));
    let took: Vec<(Side, u64)> =
        Side::ALL.into_iter().filter_map(|side| Some((side, job.memory(side)?))).collect();
    let (cache, most) = (job.cache?, took.iter().filter(|(side, _)| !side.is_mount()));
    let most = most.map(|(_, bytes)| *bytes).max()?;
    let limit = (cache + TREE_BLOCKS) * 11 / 10;
    let words: Vec<String> =
        took.iter().map(|(side, bytes)| format!("{side} {}", mebibytes(*bytes))).collect();
    Some(format!(
        "MiB at most: {}; the limit is {}: {} of page cache, {} of tree blocks, and 10 % ({}). \
         What fio itself takes ({}) is not in it; of the mount it is the server's, without a page cache of its own",
        words.join(", "),
        mebibytes(limit),
        mebibytes(cache),
        mebibytes(TREE_BLOCKS),
        if most <= limit { "kept" } else { "exceeded" },
        mebibytes(job.fio_memory.unwrap_or_default()),
    ))
}

/// Job 002 beside its model, a line each; none without a model.
pub fn model_lines(report: &Report) -> Vec<String> {
    let (Some(model), Some(job)) = (&report.model, report.job("002")) else { return Vec::new() };
    let mut lines = vec![format!(
        "one thread: memory {} MiB/s, CRC-32C {} MiB/s, backing {} MiB/s",
        number(model.memory),
        number(model.checksum),
        number(model.device)
    )];
    for (name, formula, value, side) in [
        ("before", "1/(1/m+1/c+1/d)", model.before(), Side::PapilioSlow),
        ("after", "1/(1/m+1/min(c,d))", model.after(), Side::Papilio),
    ] {
        let near = job.bandwidth(side).map_or_else(
            || format!("{side} not measured"),
            |got| format!("{side} reached {:.2} of it", got.median / value),
        );
        lines.push(format!("{name} = {formula} = {} MiB/s; {near}", number(value)));
    }
    if let Some(kernel) = job.bandwidth(Side::Kernel) {
        lines.push(format!("the kernel reached {:.2} of before", kernel.median / model.before()));
    }
    lines
}

/// The heads of a sweep's table.
pub fn sweep_heads(sweep: &Sweep, id: &str) -> Vec<String> {
    let points =
        sweep.of_job(id).map(|point| number(point.value as f64).replace(".00", "").replace(".0", ""));
    std::iter::once("side".to_owned()).chain(points).collect()
}

/// A sweep's table: for each side MiB/s at each point, by medians, and how many times the kernel's that is.
pub fn sweep_rows(sweep: &Sweep, id: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for side in Side::ALL {
        // How far the bare backing is from the kernel says nothing about either.
        let other = if side == Side::Raw { Side::Raw } else { Side::Kernel };
        let cell = |point: &Point| match (point.job.bandwidth(side), point.job.ratio(side, other)) {
            (Some(got), Some(ratio)) => format!("{} ({ratio:.2})", number(got.median)),
            (Some(got), None) => number(got.median),
            (None, _) => "-".to_owned(),
        };
        let cells: Vec<String> = sweep.of_job(id).map(cell).collect();
        if cells.iter().any(|cell| cell != "-") {
            rows.push(std::iter::once(side.to_string()).chain(cells).collect());
        }
    }
    rows
}

/// The whole report as text.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for line in facts(report) {
        let _ = writeln!(text, "{line}");
    }
    for job in &report.jobs {
        let Some(known) = job.job() else { continue };
        let _ = writeln!(text, "\n{known}");
        text += &aligned(&HEADS, &rows(job));
        let _ = writeln!(text, "  aims: {}", aims(job, &known.target));
        if job.id == "002" {
            for line in model_lines(report) {
                let _ = writeln!(text, "  model: {line}");
            }
        }
        if let Some(line) = memory_line(job) {
            let _ = writeln!(text, "  memory: {line}");
        }
        for profile in &job.profiles {
            let _ = writeln!(text, "  time of {}: {}", profile.side, profile.parts_line());
            for symbol in &profile.symbols {
                let _ = writeln!(text, "    {:5.1} %  {:18}  {}", symbol.percent, symbol.part, symbol.name);
            }
        }
    }
    for sweep in &report.sweeps {
        for id in sweep.jobs() {
            let _ = writeln!(text, "\n{id}: MiB/s over {} (x kernel)", sweep.over.unit());
            text += &aligned(&sweep_heads(sweep, id), &sweep_rows(sweep, id));
        }
    }
    if !report.left_out.is_empty() {
        let _ = writeln!(text, "\nleft out:");
    }
    for left in &report.left_out {
        let job = left.job.as_deref().unwrap_or("all jobs");
        let _ = writeln!(text, "  {}, {job}: {}", left.side, left.why);
    }
    if report.interrupted {
        let _ = writeln!(text, "\ninterrupted: not all was run");
    }
    text
}

/// Where and how it was run, a line each.
pub fn facts(report: &Report) -> Vec<String> {
    let machine = &report.machine;
    let mut programs = vec![format!("Linux {}", machine.kernel), format!("Papilio {}", machine.papilio)];
    programs.extend(machine.fio.clone());
    programs.extend(machine.btrfs_progs.clone());
    let backing = match report.backing {
        crate::backing::Kind::Ram => "a file in memory",
        crate::backing::Kind::File => "a file",
        crate::backing::Kind::Device => "a block device",
    };
    vec![
        format!(
            "{} processors ({}), {} GiB of memory",
            machine.processors,
            machine.processor,
            number(machine.memory as f64 / f64::from(1 << 30))
        ),
        format!(
            "load average {:.2} before the run{}",
            machine.load,
            if machine.was_busy() {
                ": the machine was busy, figures are lower and spreads wider than they need be"
            } else {
                ""
            }
        ),
        programs.join(", "),
        format!(
            "scale {}, {} rounds, on {backing} of {} MiB",
            number(report.scale),
            report.rounds,
            number((report.backing_bytes >> 20) as f64)
        ),
    ]
}

/// Columns under one another, numbers to the right.
fn aligned(heads: &[impl AsRef<str>], rows: &[impl AsRef<[String]>]) -> String {
    let heads: Vec<&str> = heads.iter().map(AsRef::as_ref).collect();
    let rows = rows.iter().map(|row| row.as_ref().iter().map(String::as_str).collect());
    let table: Vec<Vec<&str>> = std::iter::once(heads).chain(rows).collect();
    let width = |column: usize| {
        table
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let mut text = String::new();
    for row in &table {
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            let _ = match column {
                0 => write!(text, "  {cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn all_is_said() {
        let text = text(&sample());
        for word in [
            "000 NOCOW",
            "004-huge",
            "left out:\n  kernel, 004-huge: needs a memory cgroup",
            "12 x kernel: 2.00 (missed)",
            "model: after",
            "x slow",
            "2 processors",
            "load average 0.10 before the run\n",
            "000: MiB/s over snapshots (x kernel)",
            "200 (2.00)",
            "memory: MiB at most: papilio 300; the limit is 352: 256 of page cache, 64.0 of tree blocks, and 10 % (kept)",
            "time of papilio: kernel and device 75 %, btree 25 %\n     75.0 %  kernel and device   shmem_write_end\n",
        ] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        assert!(!text.contains("interrupted"));
    }

    #[test]
    fn a_busy_machine_is_named() {
        let mut report = sample();
        report.machine.load = 3.0;
        assert!(text(&report).contains("load average 3.00 before the run: the machine was busy"));
    }

    #[test]
    fn rows_hold_medians_and_ratios() {
        let report = sample();
        let rows = rows(report.job("000").unwrap());
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[1][..6], ["papilio", "200", "180 to 220", "2.00", "0.33", "0.67"].map(str::to_owned));
        // 1.2 s for 51,200 operations; fio's own share is 0.5 s.
        assert_eq!(rows[1][8], "23.4 (9.77)");
        assert_eq!(rows[0][3], "-");
    }

    #[test]
    fn columns_stand_under_one_another() {
        let report = sample();
        let text = aligned(&HEADS, &rows(report.job("000").unwrap()));
        let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    }
}
