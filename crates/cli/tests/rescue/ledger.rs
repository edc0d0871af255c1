//! The ledger of a long run: one JSON object per line, so that a run goes on where another ended.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

/// The results of one seed.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub shape: String,
    pub seed: u64,
    pub what: String,
    pub count: u64,
    /// Files in the image.
    pub files: u64,
    /// Whether it opened; 2 if only a scan opened it.
    pub opened: u64,
    /// Files that read right from the damaged image.
    pub salvaged: u64,
    /// Whether a repair was made.
    pub repaired: bool,
    /// Whether the check is clean afterwards.
    pub clean: bool,
    /// Files that are right afterwards.
    pub after: u64,
    /// Files right in a clone, if one was made.
    pub cloned: Option<u64>,
    /// Files right after `btrfs restore` and `btrfs check --repair`, and whether `btrfs check` is
    /// clean then.
    pub stock: Option<(u64, u64, bool)>,
    pub milliseconds: u64,
}

impl Row {
    fn to_json(&self) -> Value {
        let Self { shape, seed, what, count, files, opened, salvaged, repaired, clean, after, .. } = self;
        json!({
            "shape": shape, "seed": seed, "what": what, "count": count, "files": files,
            "opened": opened, "salvaged": salvaged, "repaired": repaired, "clean": clean,
            "after": after, "cloned": self.cloned, "stock": self.stock,
            "milliseconds": self.milliseconds,
        })
    }

    fn of(value: &Value) -> Option<Self> {
        let number = |field: &str| value[field].as_u64();
        let stock = &value["stock"];
        Some(Self {
            shape: value["shape"].as_str()?.to_owned(),
            seed: number("seed")?,
            what: value["what"].as_str()?.to_owned(),
            count: number("count")?,
            files: number("files")?,
            opened: number("opened")?,
            salvaged: number("salvaged")?,
            repaired: value["repaired"].as_bool()?,
            clean: value["clean"].as_bool()?,
            after: number("after")?,
            cloned: number("cloned"),
            stock: stock[0]
                .as_u64()
                .zip(stock[1].as_u64())
                .zip(stock[2].as_bool())
                .map(|((a, b), c)| (a, b, c)),
            milliseconds: number("milliseconds")?,
        })
    }
}

/// Reads the rows of earlier runs.
pub fn read(path: &Path) -> Vec<Row> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line of a run that was stopped may be cut short.
    text.lines().filter_map(|line| Row::of(&serde_json::from_str(line).ok()?)).collect()
}

/// Appends a row.
pub fn append(path: &Path, row: &Row) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{}\n", row.to_json()).as_bytes()).unwrap();
}

/// Prints the table that docs/rescue.md shows.
pub fn print_table(rows: &[Row]) {
    let mut groups: BTreeMap<(String, String), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.shape.clone(), row.what.clone())).or_default().push(row);
        groups.entry(("all".to_owned(), String::new())).or_default().push(row);
    }
    println!(
        "| shape | damage | images | opened | files read | repaired clean | files after | files cloned |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ((shape, what), rows) in &groups {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let files: u64 = rows.iter().map(|row| row.files).sum();
        let opened = rows.iter().filter(|row| row.opened > 0).count();
        let clean = rows.iter().filter(|row| row.clean).count();
        let clones: Vec<_> = rows.iter().filter_map(|row| Some((row.cloned?, row.files))).collect();
        let cloned = percent(clones.iter().map(|row| row.0).sum(), clones.iter().map(|row| row.1).sum());
        println!(
            "| {shape} | {what} | {} | {opened} | {:.2} % | {clean} | {:.2} % | {cloned:.2} % of {} |",
            rows.len(),
            percent(rows.iter().map(|row| row.salvaged).sum(), files),
            percent(rows.iter().map(|row| row.after).sum(), files),
            clones.len(),
        );
    }
    let both: Vec<_> = rows.iter().filter_map(|row| Some((row, row.stock?))).collect();
    if both.is_empty() {
        return;
    }
    let files: u64 = both.iter().map(|(row, _)| row.files).sum();
    let share = |counts: Vec<u64>| 100.0 * counts.iter().sum::<u64>() as f64 / files.max(1) as f64;
    println!(
        "on {} of these images: restore {:.2} %, btrfs restore {:.2} %; repair {:.2} % ({} clean), btrfs check \
         --repair {:.2} % ({} clean)",
        both.len(),
        share(both.iter().map(|(row, _)| row.salvaged).collect()),
        share(both.iter().map(|(_, stock)| stock.0).collect()),
        share(both.iter().map(|(row, _)| row.after).collect()),
        both.iter().filter(|(row, _)| row.clean).count(),
        share(both.iter().map(|(_, stock)| stock.1).collect()),
        both.iter().filter(|(_, stock)| stock.2).count(),
    );
}
