//! The overview: bandwidth relative to the kernel's Btrfs, with the bars grouped by job.
//!
//! Drawn in pixels rather than with a chart, for groups of bars with one label each.

use super::plot::{GRID, INK, Plot, axis_number, colour, font};
use super::statistics::number;
use super::{JobReport, Report};
use crate::side::Side;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The sides shown, with their legends. The slow switch has a column of its own in the tables.
const SIDES: [(Side, &str); 4] = [
    (Side::Papilio, "Papilio in fio's process"),
    (Side::Mount, "Papilio's FUSE mount"),
    (Side::MountRing, "Papilio's FUSE mount over io_uring"),
    (Side::Raw, "the backing without a file system"),
];
/// Width of the plot in pixels.
const WIDTH: i32 = 760;
/// Left edge of the bars; the job names are left of it.
const LEFT: i32 = 160;
/// Right edge of the axis.
const RIGHT: i32 = WIDTH - 24;
/// Top edge of the first group, below the title and the legend.
const TOP: i32 = 118;
/// Height of a bar.
const BAR: i32 = 13;
/// Distance from one bar to the next in its group.
const PITCH: i32 = 15;
/// Space between two groups.
const GAP: i32 = 14;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A logarithmic axis from `LEFT` to `RIGHT`.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn x(&self, value: f64) -> i32 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        LEFT + (share * f64::from(RIGHT - LEFT)).round() as i32
    }

    /// Values 1, 2 and 5 of each decade within the axis.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(decade)));
        all.filter(|tick| (self.low..=self.high).contains(tick))
    }
}

/// Draws the bandwidth of every job as a multiple of the kernel's; `None` without kernel results.
///
/// # Errors
/// The drawing library fails.
pub fn overview(report: &Report) -> anyhow::Result<Option<Plot>> {
    let ratios = |job: &JobReport| -> Vec<(Side, f64)> {
        let ratio = |(side, _)| Some((side, job.ratio(side, Side::Kernel)?));
        SIDES.into_iter().filter_map(ratio).collect()
    };
    let mut groups: Vec<(&str, Vec<(Side, f64)>)> =
        report.jobs.iter().map(|job| (job.id.as_str(), ratios(job))).collect();
    groups.retain(|(_, bars)| !bars.is_empty());
    if groups.is_empty() {
        return Ok(None);
    }
    let values = || groups.iter().flat_map(|(_, bars)| bars.iter().map(|(_, ratio)| *ratio));
    let axis = Axis {
        low: (values().fold(1.0, f64::min) / 1.25).clamp(1e-3, 0.7),
        // Leaves space for the number after the longest bar.
        high: values().fold(2.0, f64::max) * 1.6,
    };
    let bars: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let bottom = TOP + bars as i32 * PITCH + groups.len() as i32 * GAP;
    let title = "Bandwidth relative to the kernel's Btrfs (kernel = 1.0)".to_owned();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, bottom as u32 + 58)).into_drawing_area();
        root.fill(&WHITE)?;
        draw_frame(&root, &title, &axis, bottom)?;
        draw_legend(&root)?;
        let mut y = TOP + GAP / 2;
        for (job, bars) in &groups {
            let middle = y + (bars.len() as i32 * PITCH - (PITCH - BAR)) / 2;
            text(&root, job, (LEFT - 10, middle), 15, HPos::Right)?;
            for (side, ratio) in bars {
                let (from, to) = (axis.x(ratio.min(1.0)), axis.x(ratio.max(1.0)));
                root.draw(&Rectangle::new([(from, y), (to, y + BAR)], colour(*side).filled()))?;
                text(&root, &number(*ratio), (to + 6, y + BAR / 2), 13, HPos::Left)?;
                y += PITCH;
            }
            y += GAP;
        }
        // Over the bars, so that those below 1 end at a visible line.
        let one = axis.x(1.0);
        root.draw(&PathElement::new([(one, TOP - 6), (one, bottom)], INK.stroke_width(2)))?;
        root.present()?;
    }
    Ok(Some(Plot::new("overview".into(), title, &svg)))
}

/// Draws title, grid, axis and axis labels.
fn draw_frame(root: &Canvas<'_>, title: &str, axis: &Axis, bottom: i32) -> anyhow::Result<()> {
    text(root, title, (WIDTH / 2, 18), 20, HPos::Center)?;
    for tick in axis.ticks() {
        let x = axis.x(tick);
        root.draw(&PathElement::new([(x, TOP), (x, bottom)], GRID))?;
        text(root, &axis_number(tick), (x, bottom + 12), 14, HPos::Center)?;
    }
    root.draw(&PathElement::new([(LEFT, bottom), (RIGHT, bottom)], INK))?;
    text(root, "job", (LEFT - 10, TOP - 14), 14, HPos::Right)?;
    text(root, "kernel = 1.0", (axis.x(1.0), TOP - 14), 14, HPos::Center)?;
    let unit = "median bandwidth as a multiple of the kernel's Btrfs (logarithmic scale)";
    text(root, unit, (i32::midpoint(LEFT, RIGHT), bottom + 38), 14, HPos::Center)
}

/// Draws the legend in two columns under the title.
fn draw_legend(root: &Canvas<'_>) -> anyhow::Result<()> {
    for (place, (side, words)) in SIDES.into_iter().enumerate() {
        let (x, y) = (LEFT + (place as i32 / 2) * 270, 48 + (place as i32 % 2) * 22);
        root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour(side).filled()))?;
        text(root, words, (x + 20, y), 14, HPos::Left)?;
    }
    Ok(())
}

fn text(root: &Canvas<'_>, words: &str, at: (i32, i32), size: u32, anchor: HPos) -> anyhow::Result<()> {
    let style = font(size).pos(Pos::new(anchor, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run, sample};
    use super::*;

    #[test]
    fn bars_are_grouped_by_job() {
        let plot = overview(&sample()).unwrap().unwrap();
        // One label for each job with kernel results, one legend entry for each side.
        for job in sample().jobs.iter().filter(|job| job.side(Side::Kernel).is_some()) {
            assert_eq!(plot.svg.matches(&format!("\n{}\n", job.id)).count(), 1, "{}", job.id);
        }
        for (_, words) in SIDES {
            assert_eq!(plot.svg.matches(&format!("\n{}\n", escaped(words))).count(), 1, "{words}");
        }
        assert!(plot.svg.starts_with("<svg role=\"img\""));
    }

    /// The text as the drawing library escapes it.
    fn escaped(words: &str) -> String {
        super::super::escape::html(words).replace("&#39;", "&apos;")
    }

    #[test]
    fn extreme_ratios_are_drawn() {
        let mut report = sample();
        report.jobs[0].sides[0].runs = vec![run(1e-3)];
        report.jobs[0].sides[1].runs = vec![run(1e7)];
        report.jobs[1].sides[0].runs = vec![run(1e7)];
        assert!(overview(&report).unwrap().is_some());
    }

    #[test]
    fn without_kernel_results_there_is_no_overview() {
        let mut report = sample();
        report.jobs.truncate(1);
        report.jobs[0].sides.remove(0);
        assert!(overview(&report).unwrap().is_none());
    }

    #[test]
    fn ticks_lie_on_the_axis() {
        let axis = Axis { low: 0.6, high: 30.0 };
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!((axis.x(0.6), axis.x(30.0)), (LEFT, RIGHT));
    }
}
