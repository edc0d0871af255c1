//! The report as Markdown with its plots as files beside it, to be kept in a repository.

use super::plots::{self, Plot};
use super::{Report, table};
use crate::profile::Profile;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// The folder of the plots, beside the Markdown.
const PLOTS: &str = "plots";
/// What follows this line in a file that is there already is by hand and stays.
const BY_HAND: &str = "<!-- By hand from here on; papilio bench leaves it. -->\n";

/// Writes the Markdown to `path` and the plots into the folder `plots` beside it. What stands in the file behind
/// [`BY_HAND`] is kept.
///
/// # Errors
/// A plot cannot be drawn, a file not be written.
pub fn write(report: &Report, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("")).join(PLOTS);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut all: Vec<Plot> = plots::overview(report)?.into_iter().collect();
    for job in &report.jobs {
        all.extend(plots::of_job(job)?);
    }
    for sweep in &report.sweeps {
        for id in sweep.jobs() {
            all.extend(plots::sweep(sweep, id)?);
        }
    }
    for plot in &all {
        let file = folder.join(format!("{}.svg", plot.name));
        std::fs::write(&file, &plot.svg).with_context(|| file.display().to_string())?;
    }
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let mut text = text(report, &all);
    if let Some(start) = old.find(BY_HAND) {
        text = format!("{}\n\n{}", text.trim_end(), &old[start..]);
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

fn image(plot: &Plot) -> String {
    format!("![{}]({PLOTS}/{}.svg)", plot.title, plot.name)
}

/// Text as it stands in Markdown: nothing of it is a mark.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '\\' | '`' | '*' | '_' | '<' | '>' | '|' | '[' | ']') {
            out.push('\\');
        }
        out.push(if letter.is_control() { ' ' } else { letter });
    }
    out
}

fn text(report: &Report, all: &[Plot]) -> String {
    let mut text = String::from("# Papilio beside the kernel's Btrfs\n\n");
    for fact in table::facts(report) {
        let _ = writeln!(text, "- {}", escaped(&fact));
    }
    text += "\nMade by:\n\n";
    for command in report.commands() {
        let _ = writeln!(text, "    {command}");
    }
    text.push('\n');
    if report.interrupted {
        text += "**The run was interrupted: not all was run.**\n\n";
    }
    for side in report.sides() {
        let _ = writeln!(text, "- **{side}**: {}", side.description());
    }
    text.push('\n');
    if let Some(overview) = all.iter().find(|plot| plot.name == "overview") {
        let _ = writeln!(text, "{}\n", image(overview));
    }
    for job in &report.jobs {
        let Some(known) = job.job() else { continue };
        let _ = writeln!(text, "## {known}\n");
        let _ = writeln!(text, "From *{}*: {}.\n", escaped(known.change), escaped(known.published));
        let _ = writeln!(text, "| {} |", table::HEADS.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(table::HEADS.len() - 1));
        for row in table::rows(job) {
            let cells: Vec<String> = row.iter().map(|cell| escaped(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        let _ = writeln!(text, "\nAims: {}.\n", escaped(&table::aims(job, &known.target)));
        let _ = writeln!(text, "Switch: `{}`; papilio-slow has `{}`.\n", known.fast, known.slow);
        if job.id == "002" {
            for line in table::model_lines(report) {
                let _ = writeln!(text, "- model: {}", escaped(&line));
            }
            text.push('\n');
        }
        if let Some(line) = table::memory_line(job) {
            let _ = writeln!(text, "Memory, {}.\n", escaped(&line));
        }
        for profile in &job.profiles {
            text += &time(profile);
        }
        let prefix = format!("{}-", job.id);
        for kind in ["bandwidth", "latency", "cpu"] {
            let name = format!("{prefix}{kind}");
            if let Some(plot) = all.iter().find(|plot| plot.name == name) {
                let _ = writeln!(text, "{}\n", image(plot));
            }
        }
    }
    for sweep in &report.sweeps {
        let _ = writeln!(text, "## Over {}\n", sweep.over.unit());
        let _ = writeln!(text, "MiB/s, and how many times the kernel's.\n");
        for id in sweep.jobs() {
            let heads = table::sweep_heads(sweep, id);
            let _ = writeln!(text, "**{id}**\n\n| {} |", heads.join(" | "));
            let _ = writeln!(text, "|---|{}", "---:|".repeat(heads.len() - 1));
            for row in table::sweep_rows(sweep, id) {
                let _ = writeln!(text, "| {} |", row.join(" | "));
            }
            text.push('\n');
            let name = format!("{id}-over-{}", sweep.over);
            if let Some(plot) = all.iter().find(|plot| plot.name == name) {
                let _ = writeln!(text, "{}\n", image(plot));
            }
        }
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

/// A profile: its parts to be seen, its symbols to be unfolded.
fn time(profile: &Profile) -> String {
    let (side, line) = (profile.side, profile.parts_line());
    let mut text = format!("<details><summary>Time of {side}: {line}</summary>\n\n");
    text += "| % | part | symbol |\n|---:|---|---|\n";
    for symbol in &profile.symbols {
        let _ = writeln!(text, "| {:.1} | {} | {} |", symbol.percent, symbol.part, escaped(&symbol.name));
    }
    text + "\n</details>\n\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn all_images_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docs/bench.md");
        write(&sample(), &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let images: Vec<&str> =
            text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
        assert_eq!(images.len(), 8 * 3 + 2);
        for image in images {
            let svg = std::fs::read_to_string(folder.path().join("docs").join(image)).unwrap();
            assert!(svg.starts_with("<svg "), "{image}");
        }
        assert!(text.contains("| kernel | 100 | 90.0 to 110 | - | 0.17 | - |"), "{text}");
        assert!(text.contains(r"A \<processor\> & more"));
    }

    #[test]
    fn what_is_by_hand_stays() {
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
    fn tables_have_as_many_cells_in_every_row() {
        let text = text(&sample(), &[]);
        let cells = text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count());
        // The sweep has four points, a profile three columns.
        assert!(cells.collect::<Vec<_>>().iter().all(|count| [10, 6, 4].contains(count)));
        assert!(text.contains("Memory, MiB at most: papilio 300;"), "{text}");
        assert!(text.contains(r"| 25.0 | btree | \<papilio::btree::Tree as Get\>::get |"), "{text}");
    }
}
