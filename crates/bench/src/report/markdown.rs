//! The report as Markdown with its plots as files next to it, to be kept in a repository.

use super::escape::markdown as escaped;
use super::plot::Plot;
use super::{JobReport, Report, Sweep, overview, plots, table};
use crate::job::CHECKSUMMED_WRITE;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// Columns of a line of text.
const WIDTH: usize = 100;
/// Directory of the plots, relative to the Markdown file.
const PLOTS: &str = "plots";
/// Text after this line of an existing file is written by hand and kept.
const BY_HAND: &str = "<!-- Written by hand from here on; papilio bench keeps it. -->\n";

/// Writes the Markdown to `path` and the plots to the directory `plots` next to it.
///
/// Text after [`BY_HAND`] in an existing file is kept.
///
/// # Errors
/// A plot cannot be drawn, or a file cannot be written.
pub fn write(report: &Report, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("")).join(PLOTS);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut all: Vec<Plot> = overview::overview(report)?.into_iter().collect();
    for job in &report.jobs {
        all.extend(plots::of_job(job)?);
    }
    for sweep in &report.sweeps {
        all.extend(plots::sweep_ratios(sweep)?);
    }
    for plot in &all {
        let file = folder.join(format!("{}.svg", plot.name));
        std::fs::write(&file, &plot.svg).with_context(|| file.display().to_string())?;
    }
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let mut text = wrapped(&text(report, &all));
    if let Some(start) = old.find(BY_HAND) {
        text = format!("{}\n\n{}", text.trim_end(), &old[start..]);
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// Wraps paragraphs and list items at [`WIDTH`] columns. Tables, code, headings and images stay as
/// they are.
fn wrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let stays = ["|", "    ", "![", "#", "<"].iter().any(|start| line.starts_with(start));
        if stays || line.chars().count() <= WIDTH {
            out += line;
            out.push('\n');
            continue;
        }
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut column = 0;
        for word in line.split(' ') {
            let width = word.chars().count();
            if column > 0 && column + 1 + width > WIDTH {
                out.push('\n');
                out += indent;
                column = indent.len();
            } else if column > 0 {
                out.push(' ');
                column += 1;
            }
            out += word;
            column += width;
        }
        out.push('\n');
    }
    out
}

/// Formats a plot as an image in a paragraph of its own.
fn image(plot: &Plot) -> String {
    format!("![{}]({PLOTS}/{}.svg)\n\n", plot.title, plot.name)
}

fn text(report: &Report, all: &[Plot]) -> String {
    let plot = |name: &str| all.iter().find(|plot| plot.name == name).map(image).unwrap_or_default();
    let mut text = String::from("# Papilio compared with the kernel's Btrfs\n\n");
    for fact in table::facts(report) {
        let _ = writeln!(text, "- {}", escaped(&fact));
    }
    text += "\nCommands:\n\n";
    for command in report.commands() {
        let _ = writeln!(text, "    {command}");
    }
    text += "\n";
    if report.interrupted {
        text += "**The run was interrupted: the results are incomplete.**\n\n";
    }
    text += "| side | |\n|---|---|\n";
    for side in report.sides() {
        let _ = writeln!(text, "| {side} | {} |", side.description());
    }
    text += "\n";
    text += &plot("overview");
    for job in &report.jobs {
        text += &job_section(report, job, &plot);
    }
    for sweep in &report.sweeps {
        text += &sweep_section(sweep, &plot);
    }
    for (side, rows) in table::against(report) {
        let _ = writeln!(text, "## {side} against the other build\n");
        table(&mut text, &table::AGAINST_HEADS, &rows);
    }
    if !report.left_out.is_empty() {
        text += "## Left out\n\n";
    }
    for left in &report.left_out {
        let job = left.job.as_deref().unwrap_or("all jobs");
        let _ = writeln!(text, "- {}, {}: {}", left.side, escaped(job), escaped(&left.why));
    }
    text
}

/// Formats a job: its table, targets, profiles and plots.
fn job_section(report: &Report, job: &JobReport, plot: &dyn Fn(&str) -> String) -> String {
    let Some(known) = job.job() else { return String::new() };
    let mut text = format!("## {}\n\n", known.id);
    let _ = writeln!(text, "- {}", escaped(known.title));
    let _ = writeln!(text, "- from *{}* ({})", escaped(known.change), escaped(known.published));
    let _ = writeln!(text, "- targets: {}", escaped(&table::targets(job, &known.target)));
    let _ = writeln!(text, "- switch: `{}`; papilio-slow: `{}`", known.fast, known.slow);
    if job.id == CHECKSUMMED_WRITE {
        for line in table::model_lines(report) {
            let _ = writeln!(text, "- model: {}", escaped(&line));
        }
    }
    if let Some(line) = table::memory_line(job) {
        let _ = writeln!(text, "- memory: {}", escaped(&line));
    }
    text += "\n";
    table(&mut text, &table::HEADS, &table::rows(job));
    if !job.profiles.is_empty() {
        text += "| profile | where the time goes |\n|---|---|\n";
        for profile in &job.profiles {
            let _ = writeln!(text, "| {} | {} |", profile.side, profile.parts_line());
        }
        text += "\n";
    }
    for kind in ["bandwidth", "latency", "cpu"] {
        text += &plot(&format!("{}-{kind}", job.id));
    }
    text
}

/// Formats a sweep: one table of all jobs, and a plot of the ratios.
fn sweep_section(sweep: &Sweep, plot: &dyn Fn(&str) -> String) -> String {
    let mut text = format!("## Over {}\n\n", sweep.over.unit());
    text += "Median MiB/s, and the ratio to the kernel in brackets.\n\n";
    // Jobs with the same points share a table.
    let mut tables: Vec<(Vec<String>, Vec<Vec<String>>)> = Vec::new();
    for id in sweep.jobs() {
        let heads: Vec<String> =
            std::iter::once("job".to_owned()).chain(table::sweep_heads(sweep, id)).collect();
        let rows = table::sweep_rows(sweep, id);
        let rows = rows.into_iter().map(|row| std::iter::once(id.to_owned()).chain(row).collect());
        match tables.last_mut() {
            Some((known, all)) if *known == heads => all.extend(rows),
            _ => tables.push((heads, rows.collect())),
        }
    }
    for (heads, rows) in tables {
        table(&mut text, &heads, &rows);
    }
    text + &plot(&format!("over-{}", sweep.over))
}

/// Appends a table; all columns but the first are right-aligned.
fn table(text: &mut String, heads: &[impl AsRef<str>], rows: &[impl AsRef<[String]>]) {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    *text += &line(heads.iter().map(|head| head.as_ref().to_owned()).collect());
    let _ = writeln!(text, "|---|{}", "---:|".repeat(heads.len() - 1));
    for row in rows {
        *text += &line(row.as_ref().iter().map(|cell| escaped(cell)).collect());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn long_lines_are_wrapped_and_tables_are_not() {
        let item = format!("- {}", "word ".repeat(50).trim_end());
        let table = format!("| {} |", "cell ".repeat(50));
        let text = wrapped(&format!("{item}\n{table}\nshort\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&table.as_str()) && lines.contains(&"short"));
        assert!(lines.iter().all(|line| line.starts_with('|') || line.chars().count() <= WIDTH), "{text}");
        assert!(lines[1].starts_with("  word"));
        assert_eq!(text.matches("word").count(), 50);
    }

    #[test]
    fn all_images_exist() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results/bench.md");
        write(&sample(), &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let images: Vec<&str> =
            text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
        assert_eq!(images.len(), 8 * 3 + 2);
        for image in images {
            let svg = std::fs::read_to_string(folder.path().join("results").join(image)).unwrap();
            assert!(svg.starts_with("<svg "), "{image}");
        }
        assert!(text.contains("| kernel | 100 | 90.0 to 110 | - | 0.17 | - |"), "{text}");
        assert!(text.contains(r"A \<processor\> & more"));
    }

    #[test]
    fn text_written_by_hand_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bench.md");
        write(&sample(), &path).unwrap();
        let made = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("old\n\n{BY_HAND}\n## Words\n")).unwrap();
        write(&sample(), &path).unwrap();
        let expected = format!("{}\n\n{BY_HAND}\n## Words\n", made.trim_end());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        write(&sample(), &path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn table_rows_have_all_cells() {
        let text = text(&sample(), &[]);
        let cells = text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count());
        // Jobs have nine columns, the sweep six, profiles and sides two.
        assert!(cells.collect::<Vec<_>>().iter().all(|count| [10, 7, 3].contains(count)), "{text}");
        assert!(text.contains("- memory: peak MiB: papilio 300;"), "{text}");
        assert!(text.contains("| papilio | kernel and device 75 %, btree 25 % |"), "{text}");
        assert!(text.contains("| prealloc-write | papilio | 200 (2.00) |"), "{text}");
    }
}
