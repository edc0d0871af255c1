//! The plots, as SVG that stands by itself.
//!
//! Owns the drawing of bars with spread ([`bandwidth`], [`cpu`]), of latency by percentile ([`latency`]) and of
//! the ratios of all jobs ([`overview`]). Ink, grid and ground have fixed colours ([`INK`], [`GRID`], white) that a
//! page may give others by their attributes; the sides' colours are told apart by colour-blind people too.

use super::statistics::{Spread, nanoseconds, number};
use super::{JobReport, Report, SideReport, Sweep};
use crate::side::Side;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Text and axes.
pub const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
/// Lines behind the figures.
pub const GRID: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);
/// Pixels of a plot's width.
const WIDTH: u32 = 560;
/// Pixels of a bar with its share of the space between bars.
const BAR: u32 = 34;
/// Pixels for the names beside the bars.
const NAMES: u32 = 100;
/// Pixels for the names beside the lines.
const LEGEND: u32 = 122;
/// The percentiles of the latency plot.
pub const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];

/// A plot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// Its file's name without a suffix.
    pub name: String,
    /// What it shows, in words.
    pub title: String,
    /// The SVG.
    pub svg: String,
}

impl Plot {
    fn new(name: String, title: String, svg: String) -> Self {
        let label = super::html::escaped(&title);
        let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1);
        Self { name, title, svg }
    }
}

/// The colour of a side: those of Okabe and Ito.
pub fn colour(side: Side) -> RGBColor {
    match side {
        Side::Kernel => RGBColor(0x00, 0x72, 0xb2),
        Side::Papilio => RGBColor(0xd5, 0x5e, 0x00),
        Side::PapilioSlow => RGBColor(0xe6, 0x9f, 0x00),
        Side::Mount => RGBColor(0x00, 0x9e, 0x73),
        Side::MountRing => RGBColor(0xcc, 0x79, 0xa7),
        Side::Raw => RGBColor(0x8c, 0x8c, 0x8c),
    }
}

/// A horizontal bar.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) value: f64,
    /// Where a line across its end begins and ends.
    pub(super) spread: Option<(f64, f64)>,
    /// A part of it, drawn darker.
    pub(super) part: Option<f64>,
    pub(super) text: String,
}

/// All plots of a job.
///
/// # Errors
/// The drawing library's.
pub fn of_job(job: &JobReport) -> anyhow::Result<Vec<Plot>> {
    if job.sides.is_empty() {
        return Ok(Vec::new());
    }
    let mut plots = vec![bandwidth(job)?];
    plots.extend(latency(job)?);
    plots.push(cpu(job)?);
    Ok(plots)
}

/// How much is moved in a second.
///
/// # Errors
/// The drawing library's.
pub fn bandwidth(job: &JobReport) -> anyhow::Result<Plot> {
    let bar = |report: &SideReport| {
        let Spread { median, least, most } = report.spread(|run| run.fio.bandwidth_mib);
        Bar {
            name: report.side.to_string(),
            colour: colour(report.side),
            value: median,
            spread: Some((least, most)),
            part: None,
            text: number(median),
        }
    };
    let rows: Vec<Bar> = job.sides.iter().map(bar).collect();
    let title = format!("{}: bandwidth", job.id);
    let svg = bars(&title, "MiB/s (median; the line: least to most)", &rows, false)?;
    Ok(Plot::new(format!("{}-bandwidth", job.id), title, svg))
}

/// Processor time for an operation.
///
/// # Errors
/// The drawing library's.
pub fn cpu(job: &JobReport) -> anyhow::Result<Plot> {
    let bar = |report: &SideReport| {
        let Spread { median, least, most } = report.spread(|run| run.machine_us_per_operation());
        let own = report.spread(|run| run.fio_us_per_operation()).median;
        Bar {
            name: report.side.to_string(),
            colour: colour(report.side),
            value: median,
            spread: Some((least, most)),
            part: Some(own.min(median)),
            text: format!("{} ({})", number(median), number(own)),
        }
    };
    let rows: Vec<Bar> = job.sides.iter().map(bar).collect();
    let title = format!("{}: processor time for an operation", job.id);
    let svg = bars(&title, "µs of the whole machine (dark: fio's own processes)", &rows, false)?;
    Ok(Plot::new(format!("{}-cpu", job.id), title, svg))
}

/// How many times the kernel's bandwidth each side has, for all jobs; `None` without the kernel.
///
/// # Errors
/// The drawing library's.
pub fn overview(report: &Report) -> anyhow::Result<Option<Plot>> {
    let mut rows = Vec::new();
    for job in &report.jobs {
        for side in [Side::Papilio, Side::Mount, Side::MountRing, Side::Raw] {
            let Some(ratio) = job.ratio(side, Side::Kernel) else { continue };
            rows.push(Bar {
                name: format!("{} {side}", job.id),
                colour: colour(side),
                value: ratio,
                spread: None,
                part: None,
                text: number(ratio),
            });
        }
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let title = "Bandwidth as a multiple of the kernel's Btrfs".to_owned();
    let svg = bars(&title, "times the kernel's (logarithmic; 1 is the kernel)", &rows, true)?;
    Ok(Some(Plot::new("overview".into(), title, svg)))
}

/// How long operations take, by percentile; `None` where no side says.
///
/// # Errors
/// The drawing library's.
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
    let svg = draw_lines(&title, "percentile of operations", &names, &lines, &round_time)?;
    Ok(Some(Plot::new(format!("{}-latency", job.id), title, svg)))
}

/// How the bandwidth of a job moves with what is swept over; `None` without a figure.
///
/// # Errors
/// The drawing library's.
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
    let names: Vec<String> = points().map(|point| axis_number(point.value as f64)).collect();
    let title = format!("{id}: MiB/s over {}", sweep.over.unit());
    let svg = draw_lines(&title, sweep.over.unit(), &names, &lines, &axis_number)?;
    Ok(Some(Plot::new(format!("{id}-over-{}", sweep.over), title, svg)))
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Bars under one another, on an axis from 0, or on a logarithmic one that holds 1.
pub(super) fn bars(title: &str, unit: &str, rows: &[Bar], logarithmic: bool) -> anyhow::Result<String> {
    let height = 86 + BAR * rows.len().max(1) as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let names = if logarithmic { NAMES + 64 } else { NAMES };
        let mut builder = ChartBuilder::on(&root);
        builder
            .caption(title, font(18))
            .margin(8)
            .margin_right(20)
            .x_label_area_size(42)
            .y_label_area_size(names);
        let rows_range = 0.0..rows.len().max(1) as f64;
        let most = |row: &Bar| row.spread.map_or(row.value, |(_, most)| most.max(row.value));
        let largest = rows.iter().map(most).fold(1e-9, f64::max);
        if logarithmic {
            let least = rows.iter().map(|row| row.value).fold(1.0, f64::min).max(1e-3);
            let range = ((least / 1.5)..(largest.max(1.0) * 3.0)).log_scale();
            let mut chart = builder.build_cartesian_2d(range, rows_range)?;
            mesh!(chart, unit);
            for (place, row) in rows.iter().enumerate() {
                draw_bar!(root, chart, row, rows.len() - 1 - place, 1.0);
            }
        } else {
            // Room for the figure behind the longest bar.
            let mut chart = builder.build_cartesian_2d(0.0..largest * 1.35, rows_range)?;
            mesh!(chart, unit);
            for (place, row) in rows.iter().enumerate() {
                draw_bar!(root, chart, row, rows.len() - 1 - place, 0.0);
            }
        }
        root.present()?;
    }
    Ok(svg)
}

/// Axis, grid and unit of bars; a macro because each kind of axis is a type of its own.
macro_rules! mesh {
    ($chart:ident, $unit:expr) => {
        $chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_labels(5)
            .x_desc($unit)
            .x_label_formatter(&|value| axis_number(*value))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(14))
            .axis_desc_style(font(14))
            .draw()?
    };
}
use mesh;

/// A bar from `$from` with its name, spread and figure.
macro_rules! draw_bar {
    ($root:ident, $chart:ident, $row:ident, $place:expr, $from:expr) => {{
        let (low, high) = ($place as f64 + 0.18, $place as f64 + 0.82);
        let middle = f64::midpoint(low, high);
        let rectangle = |to: f64, style: ShapeStyle| Rectangle::new([($from, low), (to, high)], style);
        $chart.draw_series([rectangle($row.value, $row.colour.filled())])?;
        if let Some(part) = $row.part {
            $chart.draw_series([rectangle(part, BLACK.mix(0.35).filled())])?;
        }
        let mut end = $row.value.max($from);
        if let Some((least, most)) = $row.spread {
            end = end.max(most);
            let style = ShapeStyle { color: INK.to_rgba(), filled: false, stroke_width: 2 };
            let (down, up) = (middle - 0.14, middle + 0.14);
            for points in
                [[(least, middle), (most, middle)], [(least, down), (least, up)], [(most, down), (most, up)]]
            {
                $chart.draw_series([PathElement::new(points.to_vec(), style)])?;
            }
        }
        let (x, y) = $chart.backend_coord(&(end, middle));
        let behind = font(15).pos(Pos::new(HPos::Left, VPos::Center));
        $root.draw(&Text::new($row.text.clone(), (x + 7, y), behind))?;
        let (left, _) = $chart.plotting_area().get_pixel_range();
        let before = font(15).pos(Pos::new(HPos::Right, VPos::Center));
        $root.draw(&Text::new($row.name.clone(), (left.start - 8, y), before))?;
    }};
}
use draw_bar;

/// A number on an axis: no more digits than it needs.
fn axis_number(value: f64) -> String {
    if value >= 1.0 && (value - value.round()).abs() < 1e-9 {
        return number(value.round()).trim_end_matches(".00").trim_end_matches(".0").to_owned();
    }
    if value == 0.0 { "0".to_owned() } else { number(value) }
}

/// A time on an axis.
fn round_time(value: f64) -> String {
    nanoseconds(value).replace(".00 ", " ").replace(".0 ", " ")
}

/// A line with a point for each of its values; x counts the names of the axis, from 0.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over named places, on a logarithmic axis.
pub(super) fn draw_lines(
    title: &str,
    x_title: &str,
    names: &[String],
    lines: &[Line],
    label: &dyn Fn(f64) -> String,
) -> anyhow::Result<String> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
    // Whole decades, so that the axis has at least two names.
    let low = 10_f64.powf(least.log10().floor());
    let high = 10_f64.powf((most * 1.01).log10().ceil()).max(low * 10.0);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 330)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, font(18))
            .margin(8)
            .margin_right(LEGEND)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(-0.3..names.len() as f64 - 0.7, (low..high).log_scale())?;
        let decades = (high / low).log10().round() as usize;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc(x_title)
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
            // Beside the lines, where none of them can run under it.
            let (x, y) = ((WIDTH - LEGEND + 12) as i32, 46 + 22 * place as i32);
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
    fn a_job_has_its_three_plots() {
        let report = sample();
        let plots = of_job(report.job("000").unwrap()).unwrap();
        let names: Vec<&str> = plots.iter().map(|plot| plot.name.as_str()).collect();
        assert_eq!(names, ["000-bandwidth", "000-latency", "000-cpu"]);
        for plot in &plots {
            assert!(plot.svg.starts_with("<svg role=\"img\""), "{}", plot.name);
            for side in Side::ALL {
                assert!(plot.svg.contains(side.name()), "{} lacks {side}", plot.name);
                let RGBColor(r, g, b) = colour(side);
                assert!(plot.svg.contains(&format!("#{r:02X}{g:02X}{b:02X}")), "{} lacks {side}", plot.name);
            }
            assert!(plot.svg.contains("MiB/s") || plot.svg.contains("percentile") || plot.svg.contains("µs"));
        }
    }

    #[test]
    fn figures_beyond_the_scale_of_the_rest_are_drawn() {
        let mut report = sample();
        let job = &mut report.jobs[0];
        job.sides[0].runs = vec![super::super::tests::run(1e-3)];
        job.sides[1].runs = vec![super::super::tests::run(1e7)];
        job.sides[1].runs[0].fio.latency_ns = vec![(50.0, 0)];
        assert_eq!(of_job(job).unwrap().len(), 3);
        assert!(overview(&report).unwrap().is_some());
    }

    #[test]
    fn without_figures_there_is_nothing_to_draw() {
        let mut report = sample();
        report.jobs.truncate(1);
        report.jobs[0].sides.remove(0);
        assert!(overview(&report).unwrap().is_none());
        for side in &mut report.jobs[0].sides {
            side.runs.iter_mut().for_each(|run| run.fio.latency_ns.clear());
        }
        assert_eq!(of_job(&report.jobs[0]).unwrap().len(), 2);
        report.jobs[0].sides.clear();
        assert!(of_job(&report.jobs[0]).unwrap().is_empty());
    }

    #[test]
    fn axes_have_short_numbers() {
        assert_eq!([0.0, 1.0, 10.0, 2000.0, 0.5].map(axis_number), ["0", "1", "10", "2,000", "0.50"]);
    }
}
