//! The plots of jobs and sweeps, as self-contained SVG documents.
//!
//! Owns the drawing of bars with spread ([`bandwidth`], [`cpu`]) and of lines ([`latency`],
//! [`sweep`], [`sweep_ratios`]).

use super::plot::{COLOURS, GRID, INK, Plot, axis_number, axis_time, colour, font, short_count};
use super::statistics::{Spread, number};
use super::{JobReport, SideReport, Sweep};
use crate::side::Side;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of a plot in pixels.
const WIDTH: u32 = 560;
/// Height in pixels of a bar and the space around it.
const BAR: u32 = 34;
/// Width in pixels of the names left of the bars.
const NAMES: u32 = 104;
/// Width in pixels of a legend of sides.
const SIDES_LEGEND: u32 = 126;
/// Width in pixels of a legend of jobs.
const JOBS_LEGEND: u32 = 164;
/// The percentiles of the latency plot.
pub const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];

/// A horizontal bar.
struct Bar {
    name: String,
    colour: RGBColor,
    value: f64,
    /// Ends of the spread, drawn as a line across the end of the bar.
    spread: (f64, f64),
    /// Part of the value, drawn darker.
    part: Option<f64>,
    text: String,
}

/// Draws all plots of a job.
///
/// # Errors
/// The drawing library fails.
pub fn of_job(job: &JobReport) -> anyhow::Result<Vec<Plot>> {
    if job.sides.is_empty() {
        return Ok(Vec::new());
    }
    let mut plots = vec![bandwidth(job)?];
    plots.extend(latency(job)?);
    plots.push(cpu(job)?);
    Ok(plots)
}

/// Draws the bandwidth of each side.
///
/// # Errors
/// The drawing library fails.
pub fn bandwidth(job: &JobReport) -> anyhow::Result<Plot> {
    let bar = |report: &SideReport| {
        let Spread { median, least, most } = report.spread(|run| run.fio.bandwidth_mib);
        Bar {
            name: report.side.to_string(),
            colour: colour(report.side),
            value: median,
            spread: (least, most),
            part: None,
            text: number(median),
        }
    };
    let rows: Vec<Bar> = job.sides.iter().map(bar).collect();
    let title = format!("{}: bandwidth", job.id);
    let svg = bars(&title, "MiB/s (bar: median; line: minimum to maximum)", &rows)?;
    Ok(Plot::new(format!("{}-bandwidth", job.id), title, &svg))
}

/// Draws the processor time per operation of each side.
///
/// # Errors
/// The drawing library fails.
pub fn cpu(job: &JobReport) -> anyhow::Result<Plot> {
    let bar = |report: &SideReport| {
        let Spread { median, least, most } = report.spread(|run| run.machine_us_per_operation());
        let own = report.spread(|run| run.fio_us_per_operation()).median;
        Bar {
            name: report.side.to_string(),
            colour: colour(report.side),
            value: median,
            spread: (least, most),
            part: Some(own.min(median)),
            text: format!("{} ({})", number(median), number(own)),
        }
    };
    let rows: Vec<Bar> = job.sides.iter().map(bar).collect();
    let title = format!("{}: processor time per operation", job.id);
    let svg = bars(&title, "µs of the whole machine (dark: fio's own processes)", &rows)?;
    Ok(Plot::new(format!("{}-cpu", job.id), title, &svg))
}

/// Draws the latency of each side by percentile; `None` if no side has latencies.
///
/// # Errors
/// The drawing library fails.
pub fn latency(job: &JobReport) -> anyhow::Result<Option<Plot>> {
    let mut lines = Vec::new();
    for report in &job.sides {
        let points: Vec<(f64, f64)> = PERCENTILES
            .iter()
            .enumerate()
            // A logarithmic axis has no zero.
            .filter_map(|(place, percent)| Some((place as f64, report.latency_ns(*percent)?.max(1.0))))
            .collect();
        if !points.is_empty() {
            lines.push(Line { name: report.side.to_string(), colour: colour(report.side), points });
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let title = format!("{}: latency by percentile", job.id);
    let names = PERCENTILES.map(|percent| format!("p{percent}"));
    let svg = draw_lines(
        &title,
        ("percentile of operations", "latency"),
        &names,
        &lines,
        &axis_time,
        SIDES_LEGEND,
    )?;
    Ok(Some(Plot::new(format!("{}-latency", job.id), title, &svg)))
}

/// Draws the bandwidth of a job over the points of a sweep; `None` without results.
///
/// # Errors
/// The drawing library fails.
pub fn sweep(sweep: &Sweep, id: &str) -> anyhow::Result<Option<Plot>> {
    let points = || sweep.of_job(id);
    let mut lines = Vec::new();
    for side in Side::ALL {
        let line: Vec<(f64, f64)> = points()
            .enumerate()
            .filter_map(|(place, point)| Some((place as f64, point.job.bandwidth(side)?.median.max(1e-3))))
            .collect();
        if !line.is_empty() {
            lines.push(Line { name: side.to_string(), colour: colour(side), points: line });
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let names: Vec<String> = points().map(|point| short_count(point.value)).collect();
    let title = format!("{id}: MiB/s over {}", sweep.over.unit());
    let svg = draw_lines(&title, (sweep.over.unit(), "MiB/s"), &names, &lines, &axis_number, SIDES_LEGEND)?;
    Ok(Some(Plot::new(format!("{id}-over-{}", sweep.over), title, &svg)))
}

/// Draws Papilio's bandwidth relative to the kernel over a sweep, a line for each job; `None`
/// without such a ratio.
///
/// # Errors
/// The drawing library fails.
pub fn sweep_ratios(sweep: &Sweep) -> anyhow::Result<Option<Plot>> {
    let mut names: Vec<u64> = sweep.points.iter().map(|point| point.value).collect();
    names.sort_unstable();
    names.dedup();
    let place = |value: u64| names.partition_point(|other| *other < value) as f64;
    let mut lines = Vec::new();
    for (number, id) in sweep.jobs().into_iter().enumerate() {
        let points: Vec<(f64, f64)> = sweep
            .of_job(id)
            .filter_map(|point| Some((place(point.value), point.job.ratio(Side::Papilio, Side::Kernel)?)))
            .map(|(place, ratio)| (place, ratio.max(1e-3)))
            .collect();
        if !points.is_empty() {
            lines.push(Line { name: id.to_owned(), colour: COLOURS[number % COLOURS.len()], points });
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let names: Vec<String> = names.into_iter().map(short_count).collect();
    let title = format!("Papilio / kernel, over {}", sweep.over.unit());
    let svg = draw_lines(
        &title,
        (sweep.over.unit(), "times the kernel's bandwidth"),
        &names,
        &lines,
        &axis_number,
        JOBS_LEGEND,
    )?;
    Ok(Some(Plot::new(format!("over-{}", sweep.over), title, &svg)))
}

/// Draws horizontal bars on a linear axis from 0.
fn bars(title: &str, unit: &str, rows: &[Bar]) -> anyhow::Result<String> {
    let height = 86 + BAR * rows.len().max(1) as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let rows_range = 0.0..rows.len().max(1) as f64;
        let largest = rows.iter().map(|row| row.spread.1.max(row.value)).fold(1e-9, f64::max);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, font(18))
            .margin(8)
            .margin_right(20)
            .x_label_area_size(42)
            .y_label_area_size(NAMES)
            // Leaves space for the number after the longest bar.
            .build_cartesian_2d(0.0..largest * 1.35, rows_range)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_labels(5)
            .x_desc(unit)
            .x_label_formatter(&|value| axis_number(*value))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(14))
            .axis_desc_style(font(14))
            .draw()?;
        for (place, row) in rows.iter().rev().enumerate() {
            let (low, high) = (place as f64 + 0.18, place as f64 + 0.82);
            let middle = f64::midpoint(low, high);
            let rectangle = |to: f64, style: ShapeStyle| Rectangle::new([(0.0, low), (to, high)], style);
            chart.draw_series([rectangle(row.value, row.colour.filled())])?;
            if let Some(part) = row.part {
                chart.draw_series([rectangle(part, BLACK.mix(0.35).filled())])?;
            }
            let (least, most) = row.spread;
            let style = ShapeStyle { color: INK.to_rgba(), filled: false, stroke_width: 2 };
            let (down, up) = (middle - 0.14, middle + 0.14);
            for points in
                [[(least, middle), (most, middle)], [(least, down), (least, up)], [(most, down), (most, up)]]
            {
                chart.draw_series([PathElement::new(points.to_vec(), style)])?;
            }
            let (x, y) = chart.backend_coord(&(row.value.max(most), middle));
            let after = font(15).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(row.text.clone(), (x + 7, y), after))?;
            let (left, _) = chart.plotting_area().get_pixel_range();
            let before = font(15).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(row.name.clone(), (left.start - 8, y), before))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// A line with a marker for each value; x is an index into the names of the axis.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws lines over named positions on a logarithmic axis, with a legend at the right.
fn draw_lines(
    title: &str,
    (x_title, y_title): (&str, &str),
    names: &[String],
    lines: &[Line],
    label: &dyn Fn(f64) -> String,
    legend: u32,
) -> anyhow::Result<String> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
    // Whole decades, so that the axis has at least two labels.
    let low = 10_f64.powf(least.log10().floor());
    let high = 10_f64.powf((most * 1.01).log10().ceil()).max(low * 10.0);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 330)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, font(18))
            .margin(8)
            .margin_right(legend)
            .x_label_area_size(46)
            .y_label_area_size(84)
            .build_cartesian_2d(-0.3..names.len() as f64 - 0.7, (low..high).log_scale())?;
        let decades = (high / low).log10().round() as usize;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc(x_title)
            .y_desc(y_title)
            .y_labels(decades + 1)
            .y_label_formatter(&|value| label(*value))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(14))
            .axis_desc_style(font(14))
            .draw()?;
        for (place, name) in names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(place as f64, low));
            let below = font(14).pos(Pos::new(HPos::Center, VPos::Top));
            root.draw(&Text::new(name.clone(), (x, y + 7), below))?;
        }
        for (place, line) in lines.iter().enumerate() {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.colour.stroke_width(2)))?;
            chart
                .draw_series(line.points.iter().map(|point| Circle::new(*point, 3, line.colour.filled())))?;
            let (x, y) = ((WIDTH - legend + 12) as i32, 46 + 22 * place as i32);
            root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], line.colour.filled()))?;
            let behind = font(14).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(line.name.clone(), (x + 18, y), behind))?;
        }
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn a_job_has_three_plots() {
        let report = sample();
        let plots = of_job(report.job("prealloc-write").unwrap()).unwrap();
        let names: Vec<&str> = plots.iter().map(|plot| plot.name.as_str()).collect();
        assert_eq!(names, ["prealloc-write-bandwidth", "prealloc-write-latency", "prealloc-write-cpu"]);
        for plot in &plots {
            assert!(plot.svg.starts_with("<svg role=\"img\""), "{}", plot.name);
            for side in report.sides() {
                assert!(plot.svg.contains(side.name()), "{} lacks {side}", plot.name);
                let RGBColor(r, g, b) = colour(side);
                assert!(plot.svg.contains(&format!("#{r:02X}{g:02X}{b:02X}")), "{} lacks {side}", plot.name);
            }
            assert!(plot.svg.contains("MiB/s") || plot.svg.contains("percentile") || plot.svg.contains("µs"));
        }
    }

    #[test]
    fn outliers_are_drawn() {
        let mut report = sample();
        let job = &mut report.jobs[0];
        job.sides[0].runs = vec![super::super::tests::run(1e-3)];
        job.sides[1].runs = vec![super::super::tests::run(1e7)];
        job.sides[1].runs[0].fio.latency_ns = vec![(50.0, 0)];
        assert_eq!(of_job(job).unwrap().len(), 3);
    }

    #[test]
    fn without_results_there_is_no_plot() {
        let mut report = sample();
        report.jobs.truncate(1);
        for side in &mut report.jobs[0].sides {
            side.runs.iter_mut().for_each(|run| run.fio.latency_ns.clear());
        }
        assert_eq!(of_job(&report.jobs[0]).unwrap().len(), 2);
        report.jobs[0].sides.clear();
        assert!(of_job(&report.jobs[0]).unwrap().is_empty());
    }

    #[test]
    fn a_sweep_has_a_line_for_each_job() {
        let report = sample();
        let plot = sweep_ratios(&report.sweeps[0]).unwrap().unwrap();
        assert_eq!(plot.name, "over-snapshots");
        assert!(plot.svg.contains("\nprealloc-write\n"), "{}", plot.svg);
        let mut sweep = report.sweeps[0].clone();
        sweep.points.iter_mut().for_each(|point| point.job.sides.retain(|side| side.side != Side::Kernel));
        assert!(sweep_ratios(&sweep).unwrap().is_none());
    }
}
