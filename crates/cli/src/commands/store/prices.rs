//! The cost of a device in a store, by the user's table of prices.

use crate::units::Units;
use anyhow::Context as _;
use papilio::device::{RequestCounts, StoreInfo};
use serde_json::Value;
use std::path::Path;

const GIB: f64 = (1_u64 << 30) as f64;

/// The prices of a store. Those that a table lacks are 0.
#[derive(Debug, Default)]
pub(super) struct Prices {
    currency: String,
    /// Of a GiB that is stored for a month.
    storage_gib_month: f64,
    /// Of 1,000 requests of each kind.
    put_1000: f64,
    get_1000: f64,
    list_1000: f64,
    delete_1000: f64,
    /// Of a GiB that is sent to the store, or received from it.
    sent_gib: f64,
    received_gib: f64,
}

/// The cost of a device.
#[derive(Debug, PartialEq)]
pub(super) struct Cost {
    currency: String,
    bytes: u64,
    storage_per_month: f64,
    requests: f64,
    transfer: f64,
}

impl Prices {
    /// Reads a table: a JSON object.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut prices = Self::default();
        for (name, value) in serde_json::from_str::<serde_json::Map<String, Value>>(text)? {
            let price = match &name[..] {
                "currency" => {
                    let currency = value.as_str().context("the currency is no text")?;
                    prices.currency = currency.chars().filter(|letter| !letter.is_control()).collect();
                    continue;
                }
                "storage_gib_month" => &mut prices.storage_gib_month,
                "put_1000" => &mut prices.put_1000,
                "get_1000" => &mut prices.get_1000,
                "list_1000" => &mut prices.list_1000,
                "delete_1000" => &mut prices.delete_1000,
                "sent_gib" => &mut prices.sent_gib,
                "received_gib" => &mut prices.received_gib,
                _ => anyhow::bail!("{name:?} is no price"),
            };
            let number = value.as_f64().filter(|number| *number >= 0.0);
            *price = number.with_context(|| format!("{name} is no number from 0 on"))?;
        }
        Ok(prices)
    }

    /// Returns what a device costs: its objects in a month, and the requests of writers so far.
    pub(super) fn cost(&self, info: &StoreInfo) -> Cost {
        let bytes = info.segment_bytes + info.database_bytes;
        let both = [info.requests.segments, info.requests.database];
        let sum = |of: fn(&RequestCounts) -> u64| both.iter().map(of).sum::<u64>() as f64;
        let requests = sum(|counts| counts.puts) * self.put_1000
            + sum(|counts| counts.gets) * self.get_1000
            + sum(|counts| counts.lists) * self.list_1000
            + sum(|counts| counts.deletes) * self.delete_1000;
        let transfer = sum(|counts| counts.bytes_sent) * self.sent_gib
            + sum(|counts| counts.bytes_received) * self.received_gib;
        Cost {
            currency: self.currency.clone(),
            bytes,
            storage_per_month: bytes as f64 / GIB * self.storage_gib_month,
            requests: requests / 1000.0,
            transfer: transfer / GIB,
        }
    }
}

impl Cost {
    pub(super) fn to_json(&self) -> Value {
        serde_json::json!({
            "currency": self.currency,
            "storage_per_month": self.storage_per_month,
            "requests": self.requests,
            "transfer": self.transfer,
        })
    }

    pub(super) fn print(&self, output: &mut impl std::io::Write) -> std::io::Result<()> {
        let unit = if self.currency.is_empty() { String::new() } else { format!(" {}", self.currency) };
        writeln!(output, "Estimate by the table of prices")?;
        let (bytes, storage) = (Units::HUMAN.text(self.bytes), self.storage_per_month);
        writeln!(output, "  storage:    {storage:.4}{unit} a month for {bytes}")?;
        writeln!(output, "  requests:   {:.4}{unit} for those of writers so far", self.requests)?;
        writeln!(output, "  transfer:   {:.4}{unit} for that of writers so far", self.transfer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::device::StoreRequests;

    #[test]
    fn costs_follow_from_prices() {
        let text = r#"{"currency": "EUR", "storage_gib_month": 0.02, "put_1000": 0.005, "get_1000": 0.0004,
            "list_1000": 0.005, "received_gib": 0.09}"#;
        let segments =
            RequestCounts { puts: 1000, gets: 10_000, bytes_received: 2 << 30, ..Default::default() };
        let database =
            RequestCounts { puts: 1000, lists: 2000, deletes: 5, bytes_sent: 7, ..Default::default() };
        let info = StoreInfo {
            segment_bytes: 9 << 30,
            database_bytes: 1 << 30,
            requests: StoreRequests { segments, database },
            ..StoreInfo::default()
        };
        let cost = Prices::parse(text).unwrap().cost(&info);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(cost.storage_per_month, 0.2);
        near(cost.requests, 2.0 * 0.005 + 10.0 * 0.0004 + 2.0 * 0.005);
        near(cost.transfer, 0.18);
        let mut shown = Vec::new();
        cost.print(&mut shown).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("storage:    0.2000 EUR a month for 10.00GiB"), "{shown}");
        for wrong in ["", "{\"put_1000\": -1}", "{\"puts\": 1}", "[]"] {
            assert!(Prices::parse(wrong).is_err(), "{wrong}");
        }
    }
}
