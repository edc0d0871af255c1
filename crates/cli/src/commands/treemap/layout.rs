//! Where the rectangles of a treemap lie.
//!
//! Owns [`Area`] and [`squarified`], which divides a rectangle into parts of given sizes whose
//! sides differ as little as possible: Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
//!
//! **Invariant:** the parts cover the rectangle, do not overlap, and their areas are in proportion
//! to their sizes.

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// The left side.
    pub x: f64,
    /// The top.
    pub y: f64,
    /// How wide it is.
    pub width: f64,
    /// How high it is.
    pub height: f64,
}

impl Area {
    /// Returns the rectangle without a strip at the top and a border all around.
    pub fn inside(self, strip: f64, border: f64) -> Self {
        Self {
            x: self.x + border,
            y: self.y + strip,
            width: (self.width - 2.0 * border).max(0.0),
            height: (self.height - strip - border).max(0.0),
        }
    }

    fn shorter(self) -> f64 {
        self.width.min(self.height)
    }

    fn size(self) -> f64 {
        self.width * self.height
    }
}

/// Divides a rectangle. The sizes are positive, the largest first.
pub fn squarified(area: Area, sizes: &[u64]) -> Vec<Area> {
    let sum: f64 = sizes.iter().map(|size| *size as f64).sum();
    let scale = if sum > 0.0 { area.size() / sum } else { 0.0 };
    let sizes: Vec<f64> = sizes.iter().map(|size| *size as f64 * scale).collect();
    let mut parts = Vec::with_capacity(sizes.len());
    let (mut left, mut from) = (area, 0);
    while from < sizes.len() {
        // A row takes one more part as long as its worst part becomes no longer.
        let side = left.shorter();
        let mut end = from + 1;
        while end < sizes.len() && worst(&sizes[from..=end], side) <= worst(&sizes[from..end], side) {
            end += 1;
        }
        left = place_row(left, &sizes[from..end], &mut parts);
        from = end;
    }
    parts
}

/// Returns how much longer than wide the worst part of a row along a side is.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let (Some(largest), Some(smallest)) = (row.first(), row.last()) else { return f64::INFINITY };
    let square = side * side;
    if sum <= 0.0 || square <= 0.0 {
        return f64::INFINITY;
    }
    (square * largest / (sum * sum)).max(sum * sum / (square * smallest.max(f64::MIN_POSITIVE)))
}

/// Places a row along the shorter side, and returns the rest of the rectangle.
fn place_row(area: Area, row: &[f64], parts: &mut Vec<Area>) -> Area {
    let sum: f64 = row.iter().sum();
    let side = area.shorter();
    let thickness = if side > 0.0 { (sum / side).min(area.width.max(area.height)) } else { 0.0 };
    let is_column = area.width >= area.height;
    let mut at = 0.0;
    for size in row {
        let length = if sum > 0.0 { side * size / sum } else { 0.0 };
        parts.push(match is_column {
            true => Area { x: area.x, y: area.y + at, width: thickness, height: length },
            false => Area { x: area.x + at, y: area.y, width: length, height: thickness },
        });
        at += length;
    }
    match is_column {
        true => Area { x: area.x + thickness, width: (area.width - thickness).max(0.0), ..area },
        false => Area { y: area.y + thickness, height: (area.height - thickness).max(0.0), ..area },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Area = Area { x: 10.0, y: 20.0, width: 600.0, height: 400.0 };

    #[test]
    fn the_example_of_the_paper_is_divided_as_there() {
        let area = Area { x: 0.0, y: 0.0, width: 6.0, height: 4.0 };
        let parts = squarified(area, &[6, 6, 4, 3, 2, 2, 1]);
        let is = |part: Area, x: f64, y: f64, width: f64, height: f64| {
            let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
            assert!(
                near(part.x, x) && near(part.y, y) && near(part.width, width) && near(part.height, height),
                "{part:?}"
            );
        };
        is(parts[0], 0.0, 0.0, 3.0, 2.0);
        is(parts[1], 0.0, 2.0, 3.0, 2.0);
        is(parts[2], 3.0, 0.0, 12.0 / 7.0, 7.0 / 3.0);
        is(parts[3], 3.0 + 12.0 / 7.0, 0.0, 9.0 / 7.0, 7.0 / 3.0);
    }

    #[test]
    fn parts_cover_the_rectangle_without_overlap() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..50 {
            let mut sizes: Vec<u64> = (0..1 + round).map(|_| random.u64(1..1 << (1 + round / 2))).collect();
            sizes.sort_by(|one, other| other.cmp(one));
            let parts = squarified(WHOLE, &sizes);
            let sum: u64 = sizes.iter().sum();
            for (number, (part, size)) in parts.iter().zip(&sizes).enumerate() {
                let wanted = WHOLE.size() * *size as f64 / sum as f64;
                assert!((part.size() - wanted).abs() < 1e-6 * WHOLE.size(), "{part:?} {wanted}");
                assert!(part.x > 9.999 && part.x + part.width < 610.001, "{part:?}");
                assert!(part.y > 19.999 && part.y + part.height < 420.001, "{part:?}");
                for other in &parts[..number] {
                    let width = (part.x + part.width).min(other.x + other.width) - part.x.max(other.x);
                    let height = (part.y + part.height).min(other.y + other.height) - part.y.max(other.y);
                    assert!(width < 1e-6 || height < 1e-6, "{part:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_and_no_room_are_divided_too() {
        assert!(squarified(WHOLE, &[]).is_empty());
        let flat = Area { height: 0.0, ..WHOLE };
        assert!(squarified(flat, &[3, 2]).iter().all(|part| part.size() == 0.0));
        assert_eq!(squarified(WHOLE, &[0, 0]).len(), 2);
        let inside = WHOLE.inside(50.0, 5.0);
        assert_eq!(inside, Area { x: 15.0, y: 70.0, width: 590.0, height: 345.0 });
        assert_eq!(WHOLE.inside(500.0, 400.0).size(), 0.0);
    }
}
