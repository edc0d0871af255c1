//! The report as plain text, with a table for each job; also the rows and lines of other formats.

use super::plot::axis_number;
use super::statistics::{Spread, nanoseconds, number};
use super::{JobReport, Point, Report, Sweep};
use crate::job::{CHECKSUMMED_WRITE, Target};
use crate::side::Side;
use std::fmt::Write;

/// Default size of the library's tree block cache in bytes.
const TREE_BLOCKS: u64 = 64 << 20;

/// Column headings of a job's table.
pub const HEADS: [&str; 9] =
    ["side", "MiB/s", "min to max", "x kernel", "x raw", "x slow", "p50", "p99", "CPU µs/op"];

/// Returns the rows of a job's table, one for each side with results.
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
            // Only this side differs from the slow one in nothing but the switch.
            if side == Side::Papilio { ratio(side, Side::PapilioSlow) } else { "-".to_owned() },
            latency(50.0),
            latency(99.0),
            format!("{} ({})", number(machine), number(own)),
        ]);
    }
    rows
}

/// Returns a line with the targets of a job and the ratios that Papilio reached.
pub fn targets(job: &JobReport, target: &Target) -> String {
    let mut lines = Vec::new();
    for (name, other, aim) in [
        ("kernel", Side::Kernel, target.kernel),
        ("raw", Side::Raw, target.raw),
        ("slow switch", Side::PapilioSlow, target.slow),
    ] {
        let got = job.ratio(Side::Papilio, other);
        lines.push(match got {
            Some(got) => {
                let verdict = if got >= aim { "reached" } else { "missed" };
                format!("{aim} x {name}: {got:.2} ({verdict})")
            }
            None => format!("{aim} x {name}: not measured"),
        });
    }
    lines.join("; ")
}

/// Returns a line with Papilio's peak memory and its limit; `None` for a job without a limit.
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
        "peak MiB: {}; limit {}: {} of page cache, {} of tree blocks, plus 10 % ({}). \
         fio's own memory ({}) is excluded; for a mount it is the server's memory, without a page cache",
        words.join(", "),
        mebibytes(limit),
        mebibytes(cache),
        mebibytes(TREE_BLOCKS),
        if most <= limit { "kept" } else { "exceeded" },
        mebibytes(job.fio_memory.unwrap_or_default()),
    ))
}

/// Returns lines that compare `checksummed-write` with its model; none without a model.
pub fn model_lines(report: &Report) -> Vec<String> {
    let (Some(model), Some(job)) = (&report.model, report.job(CHECKSUMMED_WRITE)) else { return Vec::new() };
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
            |got| format!("{side} / model = {:.2}", got.median / value),
        );
        lines.push(format!("{name} = {formula} = {} MiB/s; {near}", number(value)));
    }
    if let Some(kernel) = job.bandwidth(Side::Kernel) {
        lines.push(format!("kernel / before = {:.2}", kernel.median / model.before()));
    }
    lines
}

/// Returns the column headings of a sweep's table for one job.
pub fn sweep_heads(sweep: &Sweep, id: &str) -> Vec<String> {
    let points = sweep.of_job(id).map(|point| axis_number(point.value as f64));
    std::iter::once("side".to_owned()).chain(points).collect()
}

/// Returns the rows of a sweep's table for one job: each side's median MiB/s at each point, and the
/// ratio to the kernel.
pub fn sweep_rows(sweep: &Sweep, id: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for side in Side::ALL {
        // The raw side's ratio to the kernel says nothing about Papilio.
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

/// Column headings of the comparison with another build.
pub const AGAINST_HEADS: [&str; 4] = ["job", "ratio", "min to max", "ratio of medians"];

/// Returns the comparisons with another build: the side, and the rows.
pub fn against(report: &Report) -> Vec<(Side, Vec<[String; 4]>)> {
    let compared = Side::ALL.into_iter().filter_map(|side| Some((side, side.other_build()?)));
    let tables = compared.map(|(ours, other)| (ours, against_rows(report, ours, other)));
    tables.filter(|(_, rows)| !rows.is_empty()).collect()
}

/// Returns the rows of the comparison of a side with that of another build; none without both.
///
/// `ratio` is the median of the ratios of each round. The last row is the geometric mean over jobs.
fn against_rows(report: &Report, ours: Side, other: Side) -> Vec<[String; 4]> {
    let (mut rows, mut paired_logs, mut median_logs) = (Vec::new(), Vec::new(), Vec::new());
    for job in &report.jobs {
        let (Some(paired), Some(medians)) = (job.paired_ratio(ours, other), job.ratio(ours, other)) else {
            continue;
        };
        paired_logs.push(paired.median.ln());
        median_logs.push(medians.ln());
        let (least, most) = (paired.least, paired.most);
        rows.push([
            job.id.clone(),
            format!("{:.3}", paired.median),
            format!("{least:.3} to {most:.3}"),
            format!("{medians:.3}"),
        ]);
    }
    if rows.len() > 1 {
        let mean = |logs: &[f64]| format!("{:.3}", (logs.iter().sum::<f64>() / logs.len() as f64).exp());
        rows.push(["geometric mean".into(), mean(&paired_logs), "-".into(), mean(&median_logs)]);
    }
    rows
}

/// Returns the whole report as text.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for line in facts(report) {
        let _ = writeln!(text, "{line}");
    }
    for job in &report.jobs {
        let Some(known) = job.job() else { continue };
        let _ = writeln!(text, "\n{known}");
        text += &aligned(&HEADS, &rows(job));
        let _ = writeln!(text, "  targets: {}", targets(job, &known.target));
        if job.id == CHECKSUMMED_WRITE {
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
            let _ = writeln!(text, "\n{id}: MiB/s (x kernel) over {}", sweep.over.unit());
            text += &aligned(&sweep_heads(sweep, id), &sweep_rows(sweep, id));
        }
    }
    for (side, rows) in against(report) {
        let _ = writeln!(text, "\n{side} / {side}-other, bandwidth of runs in the same round");
        text += &aligned(&AGAINST_HEADS, &rows);
    }
    if !report.left_out.is_empty() {
        let _ = writeln!(text, "\nleft out:");
    }
    for left in &report.left_out {
        let job = left.job.as_deref().unwrap_or("all jobs");
        let _ = writeln!(text, "  {}, {job}: {}", left.side, left.why);
    }
    if report.interrupted {
        let _ = writeln!(text, "\ninterrupted: the results are incomplete");
    }
    text
}

/// Returns lines about the machine and the parameters of the run.
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
                ": the machine was busy, so results are lower and spreads wider than necessary"
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

/// Formats a table with aligned columns; all but the first are right-aligned.
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
    fn text_has_every_part() {
        let text = text(&sample());
        for word in [
            "\nprealloc-write: random writes",
            "\ncached-read-huge: ",
            "left out:\n  kernel, cached-read-huge: needs a memory cgroup",
            "12 x kernel: 2.00 (missed)",
            "model: after",
            "x slow",
            "2 processors",
            "load average 0.10 before the run\n",
            "prealloc-write: MiB/s (x kernel) over snapshots",
            "200 (2.00)",
            "memory: peak MiB: papilio 300; limit 352: 256 of page cache, 64.0 of tree blocks, plus 10 % (kept)",
            "time of papilio: kernel and device 75 %, btree 25 %\n     75.0 %  kernel and device   shmem_write_end\n",
        ] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        assert!(!text.contains("interrupted") && !text.contains("papilio-other"), "{text}");
    }

    #[test]
    fn another_build_is_compared() {
        let mut report = sample();
        assert!(against(&report).is_empty());
        for job in &mut report.jobs[..2] {
            let mut other = job.side(Side::Papilio).unwrap().clone();
            other.side = Side::PapilioOther;
            other.runs.iter_mut().for_each(|run| run.fio.bandwidth_mib *= 0.5);
            job.sides.insert(2, other);
        }
        let tables = against(&report);
        assert_eq!((tables.len(), tables[0].0), (1, Side::Papilio));
        let rows = &tables[0].1;
        let cells = |row: &[String; 4]| row.join(" | ");
        assert_eq!(cells(&rows[0]), "prealloc-write | 2.000 | 2.000 to 2.000 | 2.000");
        assert_eq!(cells(&rows[2]), "geometric mean | 2.000 | - | 2.000");
        assert_eq!(rows.len(), 3);
        assert!(text(&report).contains("papilio / papilio-other"));
        for job in &mut report.jobs {
            let mut other = job.side(Side::Mount).unwrap().clone();
            other.side = Side::MountOther;
            job.sides.push(other);
        }
        assert_eq!(
            against(&report).iter().map(|(side, _)| *side).collect::<Vec<_>>(),
            [Side::Papilio, Side::Mount]
        );
        assert!(text(&report).contains("mount / mount-other"));
    }

    #[test]
    fn a_busy_machine_is_reported() {
        let mut report = sample();
        report.machine.load = 3.0;
        assert!(text(&report).contains("load average 3.00 before the run: the machine was busy"));
    }

    #[test]
    fn rows_hold_medians_and_ratios() {
        let report = sample();
        let rows = rows(report.job("prealloc-write").unwrap());
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[1][..6], ["papilio", "200", "180 to 220", "2.00", "0.33", "0.67"].map(str::to_owned));
        // 1.2 s for 51,200 operations; fio's own share is 0.5 s.
        assert_eq!(rows[1][8], "23.4 (9.77)");
        assert_eq!(rows[0][3], "-");
    }

    #[test]
    fn columns_are_aligned() {
        let report = sample();
        let text = aligned(&HEADS, &rows(report.job("prealloc-write").unwrap()));
        let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    }
}
