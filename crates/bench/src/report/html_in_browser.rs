//! Loads the HTML report in a real browser.
//!
//! Checks that every plot has a size, no text overlaps another or leaves its plot, the page is not
//! wider than the window, and the console stays empty.

use super::html;
use super::tests::sample;
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, require};
use serde::Deserialize;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measurements that the page makes of itself once it is loaded.
#[derive(Debug, Deserialize)]
struct Probe {
    errors: Vec<String>,
    /// Width and height of each plot, in pixels.
    plots: Vec<(f64, f64)>,
    /// Pairs of texts in one plot that overlap, and texts that leave their plot.
    collisions: Vec<String>,
    /// Pixels by which the page is wider than the window.
    overflow: f64,
    tables: usize,
}

const CATCH: &str =
    "<script>window.found = []; window.onerror = m => { window.found.push(String(m)); };</script>";
const PROBE: &str = r#"<script>
window.addEventListener('load', () => {
  const plots = [], collisions = [];
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    plots.push([frame.width, frame.height]);
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
    const name = svg.closest('figure').id;
    boxes.forEach(([text, a], i) => {
      if (a.width == 0 || a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
          || a.bottom > frame.bottom + 1) collisions.push(name + ': ' + text + ' leaves its plot');
      for (const [other, b] of boxes.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 2) collisions.push(name + ': ' + text + ' / ' + other);
      }
    });
  }
  const overflow = document.documentElement.scrollWidth - window.innerWidth;
  const tables = document.querySelectorAll('table').length;
  JSON.parse(document.getElementById('report').textContent);
  const pre = document.createElement('pre');
  pre.id = 'probe';
  pre.textContent = JSON.stringify({ errors: window.found, plots, collisions, overflow, tables });
  document.body.append(pre);
});
</script>"#;

/// Loads a page; returns its document and the lines of its console.
fn load(page: &Path, profile: &Path, size: &str) -> (String, Vec<String>) {
    let (out, log) = (profile.join("dom.html"), profile.join("log"));
    let mut browser = Command::new(find_command("chromium").unwrap())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--window-size={size}"))
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = browser.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(120) {
            let _ = browser.kill();
            let _ = browser.wait();
            panic!("chromium did not exit");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    let log = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    (fs::read_to_string(&out).unwrap(), console)
}

#[test]
fn every_plot_is_visible() {
    let Some(_met) = require(&[Need::Command("chromium")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let text = html::page(&sample()).unwrap();
    let probed = text.replacen("</head>", &format!("{CATCH}</head>"), 1);
    let probed = probed.replacen("</body>", &format!("{PROBE}</body>"), 1);
    fs::write(&page, probed).unwrap();
    for size in ["1280,2000", "500,2000"] {
        let profile = folder.path().join(format!("profile-{size}"));
        fs::create_dir(&profile).unwrap();
        let (document, console) = load(&page, &profile, size);
        assert_eq!(console, Vec::<String>::new(), "{size}");
        let start = document.find("<pre id=\"probe\">").expect("the probe should have run")
            + "<pre id=\"probe\">".len();
        let json =
            document[start..].split("</pre>").next().unwrap().replace("&lt;", "<").replace("&amp;", "&");
        let probe: Probe = serde_json::from_str(&json).unwrap();
        assert_eq!(probe.errors, Vec::<String>::new(), "{size}");
        assert_eq!(probe.collisions, Vec::<String>::new(), "{size}");
        assert_eq!(probe.plots.len(), 8 * 3 + 3, "{size}");
        for (width, height) in probe.plots {
            assert!(width > 300.0 && height > 80.0, "{size}: a plot of {width} x {height}");
        }
        assert!(probe.overflow <= 0.0, "{size}: {} pixels too wide", probe.overflow);
        // The jobs, a sweep and a profile.
        assert_eq!(probe.tables, 8 + 1 + 1);
    }
}
