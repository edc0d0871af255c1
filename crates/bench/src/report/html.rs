//! The report as a self-contained HTML page: inline SVG plots and style, the JSON at the end, no
//! scripts.

use super::escape::html as escaped;
use super::plot::{self, Plot};
use super::{JobReport, Report, Sweep, overview, plots, table};
use crate::job::CHECKSUMMED_WRITE;
use crate::side::Side;
use std::fmt::Write;

/// Style of the page. Its colours and those of the plots follow the reader's light or dark mode.
const STYLE: &str = "
:root { color-scheme: light dark; --ink: #222; --ground: #fff; --grid: #ccc; --soft: #f3f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --ground: #16181d; --grid: #4a4f5a; --soft: #22252c; }
}
body { margin: 0 auto; max-width: 1180px; padding: 1.5rem; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .3rem; border-top: 1px solid var(--grid); padding-top: 1rem; }
p { margin: .4rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; background: var(--soft); border-radius: 4px; }
code { padding: .1rem .3rem; overflow-wrap: anywhere; }
pre { padding: .7rem; overflow-x: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .7rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: .5rem; }
figure { margin: 0; }
svg { max-width: 100%; height: auto; display: block; }
svg [fill='#333333'] { fill: var(--ink); }
svg [stroke='#333333'] { stroke: var(--ink); }
svg [stroke='#CCCCCC'] { stroke: var(--grid); }
svg [fill='#FFFFFF'] { fill: var(--ground); }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .35rem 0 0; border-radius: 2px; }
.key li { display: inline-block; margin-right: 1.2rem; }
.key { padding: 0; }
";

/// Renders the page.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(report: &Report) -> anyhow::Result<String> {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    // Without an icon in the page, a browser requests one from the server.
    page += "<link rel=\"icon\" href=\"data:,\">\n<title>Papilio compared with the kernel's Btrfs</title>\n";
    let _ = write!(page, "<style>{STYLE}</style>\n</head>\n<body>\n");
    page += "<h1>Papilio compared with the kernel's Btrfs</h1>\n";
    for fact in table::facts(report) {
        let _ = writeln!(page, "<p>{}</p>", escaped(&fact));
    }
    for command in report.commands() {
        let _ = writeln!(page, "<p>Made by <code>{}</code></p>", escaped(&command));
    }
    if report.interrupted {
        page += "<p><strong>The run was interrupted: the results are incomplete.</strong></p>\n";
    }
    page += &key(report);
    if let Some(overview) = overview::overview(report)? {
        let _ = writeln!(page, "<div class=\"plots\">{}</div>", figure(&overview));
    }
    for job in &report.jobs {
        page += &section(report, job)?;
    }
    for sweep in &report.sweeps {
        page += &sweep_section(sweep)?;
    }
    for (side, rows) in table::against(report) {
        let _ = writeln!(page, "<h2 id=\"against-{side}\">{side} against the other build</h2>");
        page += &html_table(&table::AGAINST_HEADS, &rows);
    }
    page += &left_out(report);
    page += "<h2>Columns</h2>\n<p>MiB/s is the median over the rounds, followed by the minimum and maximum. ";
    page += "x kernel, x raw and x slow are ratios of medians. ";
    page += "p50 and p99 are percentiles of the time from submission to completion. ";
    page +=
        "CPU µs/op is the processor time of the whole machine per operation (from /proc/stat, with kernel ";
    page += "workers and FUSE servers). In brackets is that of fio's own processes, which fio itself reports.</p>\n";
    // "</" in a JSON string could end the script element.
    let json = report.to_json()?.replace("</", "<\\/");
    let _ =
        write!(page, "<script type=\"application/json\" id=\"report\">\n{json}</script>\n</body>\n</html>\n");
    Ok(page)
}

fn key(report: &Report) -> String {
    let mut list = String::from("<ul class=\"key\">\n");
    for side in report.sides() {
        let plotters::style::RGBColor(r, g, b) = plot::colour(side);
        let (name, what) = (side.name(), escaped(side.description()));
        let _ = writeln!(
            list,
            "<li><span style=\"background:#{r:02x}{g:02x}{b:02x}\"></span><strong>{name}</strong> {what}</li>"
        );
    }
    list + "</ul>\n"
}

fn figure(plot: &Plot) -> String {
    format!("<figure id=\"{}\">{}</figure>", plot.name, plot.svg)
}

fn section(report: &Report, job: &JobReport) -> anyhow::Result<String> {
    let Some(known) = job.job() else { return Ok(String::new()) };
    let mut section = format!("<h2 id=\"job-{}\">{}</h2>\n", job.id, escaped(&known.to_string()));
    let _ = writeln!(
        section,
        "<p>From <em>{}</em>: {}. In this run: {} MiB of files{}.</p>",
        escaped(known.change),
        escaped(known.published),
        job.file_bytes >> 20,
        job.cache.map_or_else(String::new, |cache| format!(", {} MiB of cache", cache >> 20)),
    );
    section += &html_table(&table::HEADS, &table::rows(job));
    let _ = writeln!(section, "<p>Targets: {}</p>", escaped(&table::targets(job, &known.target)));
    let _ = writeln!(
        section,
        "<p>Switch: <code>{}</code>; for {}: <code>{}</code>.</p>",
        known.fast,
        Side::PapilioSlow,
        known.slow
    );
    if job.id == CHECKSUMMED_WRITE {
        for line in table::model_lines(report) {
            let _ = writeln!(section, "<p>Model: {}</p>", escaped(&line));
        }
    }
    if let Some(line) = table::memory_line(job) {
        let _ = writeln!(section, "<p>Memory, {}.</p>", escaped(&line));
    }
    for profile in &job.profiles {
        let rows = profile
            .symbols
            .iter()
            .map(|symbol| [symbol.name.clone(), symbol.part.clone(), format!("{:.1}", symbol.percent)]);
        let table = html_table(&["symbol", "part", "%"], &rows.collect::<Vec<_>>());
        let (side, parts) = (profile.side, escaped(&profile.parts_line()));
        let _ = writeln!(section, "<details><summary>Time of {side}: {parts}</summary>{table}</details>");
    }
    let plots = plots::of_job(job)?;
    // The latency plot is the tallest: the two others share a column.
    let (lines, bars): (Vec<&Plot>, Vec<&Plot>) =
        plots.iter().partition(|plot| plot.name.ends_with("-latency"));
    let column = |plots: &[&Plot]| plots.iter().map(|plot| figure(plot)).collect::<String>();
    let (bars, lines) = (column(&bars), column(&lines));
    let _ = writeln!(section, "<div class=\"plots\"><div>{bars}</div><div>{lines}</div></div>");
    let _ =
        writeln!(section, "<details><summary>Job file</summary><pre>{}</pre></details>", escaped(&job.file));
    Ok(section)
}

/// Renders a sweep: a plot of all ratios, and for each job a table and a plot.
fn sweep_section(sweep: &Sweep) -> anyhow::Result<String> {
    let (over, unit) = (sweep.over, sweep.over.unit());
    let mut section = format!(
        "<h2 id=\"over-{over}\">Over {unit}</h2>\n<p>Median MiB/s, and the ratio to the kernel in brackets.</p>\n"
    );
    if let Some(ratios) = plots::sweep_ratios(sweep)? {
        let _ = writeln!(section, "<div class=\"plots\">{}</div>", figure(&ratios));
    }
    section += "<div class=\"plots\">";
    for id in sweep.jobs() {
        let plot = plots::sweep(sweep, id)?.as_ref().map(figure).unwrap_or_default();
        let table = html_table(&table::sweep_heads(sweep, id), &table::sweep_rows(sweep, id));
        let _ = write!(section, "<div>{plot}{table}</div>");
    }
    Ok(section + "</div>\n")
}

fn html_table(heads: &[impl AsRef<str>], rows: &[impl AsRef<[String]>]) -> String {
    let mut table = String::from("<div class=\"scroll\"><table>\n<tr>");
    for head in heads {
        let _ = write!(table, "<th>{}</th>", escaped(head.as_ref()));
    }
    table += "</tr>\n";
    for row in rows {
        table += "<tr>";
        for cell in row.as_ref() {
            let _ = write!(table, "<td>{}</td>", escaped(cell));
        }
        table += "</tr>\n";
    }
    table + "</table></div>\n"
}

fn left_out(report: &Report) -> String {
    if report.left_out.is_empty() {
        return String::new();
    }
    let mut text = String::from("<h2>Left out</h2>\n<ul>\n");
    for left in &report.left_out {
        let job = left.job.as_deref().unwrap_or("all jobs");
        let _ = writeln!(text, "<li>{}, {}: {}</li>", left.side, escaped(job), escaped(&left.why));
    }
    text + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_page_is_self_contained() {
        let page = page(&sample()).unwrap();
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            let found =
                page.match_indices(outside).filter(|(at, _)| !page[*at..].starts_with("http://www.w3.org/"));
            assert_eq!(found.count(), 0, "{outside}");
        }
        // Three plots for each job, the overview, and two for the sweep.
        assert_eq!(page.matches("<svg ").count(), 8 * 3 + 3);
        assert_eq!(page.matches("</svg>").count(), 8 * 3 + 3);
        assert!(page.contains("A &lt;processor&gt; &amp; more"));
        assert!(page.contains("<summary>Time of papilio: kernel and device 75 %, btree 25 %</summary>"));
        assert!(
            page.contains("<td>&lt;papilio::btree::Tree as Get&gt;::get</td><td>btree</td><td>25.0</td>")
        );
        assert!(page.contains("<p>Memory, peak MiB: papilio 300;"));
        assert_eq!(page.matches("</script>").count(), 1);
    }

    #[test]
    fn the_page_contains_the_json() {
        let report = sample();
        let page = page(&report).unwrap();
        let start = page.find("id=\"report\">").unwrap() + "id=\"report\">".len();
        let json = page[start..].split("</script>").next().unwrap();
        let read: Report = serde_json::from_str(json).unwrap();
        assert_eq!(read, report);
    }
}
