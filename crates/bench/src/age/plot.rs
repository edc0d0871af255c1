//! Plots of a file system's age.

use super::kind::Workload;
use super::point::AgePoint;
use crate::report::plot::{COLOURS, GRID, Plot, axis_number, font, short_count};
use anyhow::anyhow;
use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 360);

/// A label and the value of a point.
type Series = (&'static str, fn(&AgePoint) -> f64);

/// One quantity against age.
struct Quantity {
    name: &'static str,
    title: &'static str,
    /// Series with their labels.
    series: Vec<Series>,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn quantities() -> [Quantity; 4] {
    [
        Quantity {
            name: "time",
            title: "Time of a unit of work, µs",
            series: vec![("time", |point| point.nanoseconds / 1000.0)],
        },
        Quantity {
            name: "space",
            title: "Space, MiB",
            series: vec![
                ("data", |point| mib(point.data)),
                ("metadata", |point| mib(point.metadata)),
                ("allocated", |point| mib(point.allocated)),
            ],
        },
        Quantity {
            name: "extents",
            title: "Extents of a file, mean",
            series: vec![("extents", |point| point.extents)],
        },
        Quantity {
            name: "memory",
            title: "Memory of the process, MiB",
            series: vec![("memory", |point| mib(point.memory))],
        },
    ]
}

/// Draws each quantity against age.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn all(workload: Workload, points: &[AgePoint]) -> anyhow::Result<Vec<Plot>> {
    let shown = quantities().into_iter().filter(|quantity| {
        // Workloads without sampled files have no extents to show.
        quantity.series.iter().any(|(_, value)| points.iter().any(|point| value(point) > 0.0))
    });
    shown.map(|quantity| draw(workload, &quantity, points)).collect()
}

fn draw(workload: Workload, quantity: &Quantity, points: &[AgePoint]) -> anyhow::Result<Plot> {
    let title = format!("{}: {}", workload.name(), quantity.title);
    let last = points.last().map_or(1, |point| point.age).max(1);
    let values = || quantity.series.iter().flat_map(|(_, value)| points.iter().map(value));
    let most = values().fold(0.0, f64::max).max(1e-9) * 1.1;
    let mut svg = String::new();
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot draw {title}: {error}");
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| failed(&error))?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&title, font(16))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0..last, 0.0..most)
            .map_err(|error| failed(&error))?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .x_desc(workload.unit())
            .x_label_formatter(&|age| short_count(*age))
            .y_label_formatter(&|value| axis_number(*value))
            .label_style(font(12))
            .draw()
            .map_err(|error| failed(&error))?;
        for ((label, value), colour) in quantity.series.iter().zip(COLOURS) {
            let line = points.iter().map(|point| (point.age, value(point)));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)))
                .map_err(|error| failed(&error))?
                .label(*label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        if quantity.series.len() > 1 {
            chart
                .configure_series_labels()
                .label_font(font(12))
                .background_style(WHITE)
                .border_style(GRID)
                .draw()
                .map_err(|error| failed(&error))?;
        }
        area.present().map_err(|error| failed(&error))?;
    }
    Ok(Plot::new(format!("age-{}-{}", workload.name(), quantity.name), title, &svg))
}
