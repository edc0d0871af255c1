//! Views of the whole file system: use of space, heatmap, check.
//!
//! Owns [`Views`]. The pictures come from a [`Pictures`], which the program gives: it has the
//! drawings of the commands.
//!
//! **Invariants**
//! - One picture is made at a time, and kept for [`KEPT`]: their cost is that of a walk of trees.
//! - One check runs at a time, in a thread of its own, only after a POST asked for it.
//! - Only requests with the rights of root see the views: they tell of all files.
//!
//! **Locks**: `pictures` is held while a picture is made, `check` for moments. Neither is held
//! while an answer is written. The locks of the file system are acquired below `pictures`.

use crate::export::Export;
use crate::html::Page;
use crate::reply::{Content, Refusal, Reply};
use crate::text::escaped;
use papilio::{CheckOptions, CheckProgress, CheckReport, CheckStage, FileSystem};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a picture is kept.
const KEPT: Duration = Duration::from_secs(30);
/// The most findings of a check that a page shows.
const FINDINGS_MOST: usize = 1000;

/// A drawing, and the same in words.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Picture {
    /// An SVG document.
    pub svg: String,
    /// One sentence on the whole.
    pub title: String,
    /// The heads of the columns of `rows`.
    pub columns: Vec<String>,
    /// The contents of the picture, as a table.
    pub rows: Vec<Vec<String>>,
}

impl Picture {
    /// Makes a picture of an SVG document and a sentence.
    pub fn new(svg: String, title: String) -> Self {
        Self { svg, title, ..Self::default() }
    }

    /// Adds the contents as a table.
    #[must_use]
    pub fn table(mut self, columns: &[&str], rows: Vec<Vec<String>>) -> Self {
        self.columns = columns.iter().map(|&column| column.to_owned()).collect();
        self.rows = rows;
        self
    }
}

/// Draws a file system.
pub trait Pictures: Send + Sync {
    /// Draws which directories take how much space.
    ///
    /// # Errors
    /// Why it cannot be drawn.
    fn usage(&self, fs: &FileSystem) -> Result<Picture, String>;

    /// Draws where data, metadata and free space lie.
    ///
    /// # Errors
    /// Why it cannot be drawn.
    fn heatmap(&self, fs: &FileSystem) -> Result<Picture, String>;
}

/// The state of the check.
#[derive(Default)]
enum Check {
    #[default]
    Never,
    Running(CheckProgress, Instant),
    Started(Instant),
    Done(Result<Arc<CheckReport>, String>, Instant),
}

/// The views.
#[derive(Default)]
pub(crate) struct Views {
    source: Option<Box<dyn Pictures>>,
    pictures: Mutex<HashMap<&'static str, (Instant, Arc<Picture>)>>,
    check: Arc<Mutex<Check>>,
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Views")
    }
}

/// Refuses users who may not see all files.
fn must_be_root(export: &Export) -> Result<(), Refusal> {
    match export.caller.is_root() {
        true => Ok(()),
        false => Err(Refusal::new(403, "this view tells of all files, which only root may see")),
    }
}

impl Views {
    pub(crate) fn new(source: Option<Box<dyn Pictures>>) -> Self {
        Self { source, ..Self::default() }
    }

    fn picture(&self, export: &Export, name: &'static str) -> Result<Arc<Picture>, Refusal> {
        must_be_root(export)?;
        let Some(source) = &self.source else {
            return Err(Refusal::new(501, "this server has no pictures"));
        };
        let mut pictures = self.pictures.lock();
        if let Some((made, picture)) = pictures.get(name)
            && made.elapsed() < KEPT
        {
            return Ok(Arc::clone(picture));
        }
        let drawn = match name {
            "usage" => source.usage(&export.fs),
            _ => source.heatmap(&export.fs),
        };
        let picture = Arc::new(drawn.map_err(|reason| Refusal::new(500, reason))?);
        pictures.insert(name, (Instant::now(), Arc::clone(&picture)));
        Ok(picture)
    }

    /// Returns a picture as an SVG document.
    pub(crate) fn svg(&self, export: &Export, name: &'static str) -> Result<Reply<'static>, Refusal> {
        let picture = self.picture(export, name)?;
        Ok(Reply::foreign(200, "image/svg+xml", Content::Bytes(picture.svg.clone().into_bytes())))
    }

    /// Returns the page around a picture.
    pub(crate) fn page(&self, export: &Export, name: &'static str) -> Result<Reply<'static>, Refusal> {
        let picture = self.picture(export, name)?;
        let heading = if name == "usage" { "Use of space" } else { "Heatmap" };
        let page =
            Page { title: &export.title, names: &[], at: None, heading: heading.to_owned(), refresh: None };
        let title = escaped(&picture.title);
        let mut html = page.begin();
        html.push_str(&format!(
            "<figure>\n<img src=\"/?view={name}.svg\" alt=\"{title}. The table below says the same.\">\n\
             <figcaption>{title}</figcaption>\n</figure>\n"
        ));
        if !picture.rows.is_empty() {
            html.push_str(
                "<div class=\"scroll\">\n<table>\n<caption>The picture as a table</caption>\n<thead>\n<tr>",
            );
            for column in &picture.columns {
                html.push_str(&format!("<th scope=\"col\">{}</th>", escaped(column)));
            }
            html.push_str("</tr>\n</thead>\n<tbody>\n");
            for row in &picture.rows {
                html.push_str("<tr>");
                for (number, cell) in row.iter().enumerate() {
                    let cell = escaped(cell);
                    html.push_str(&match number {
                        0 => format!("<th scope=\"row\">{cell}</th>"),
                        _ => format!("<td>{cell}</td>"),
                    });
                }
                html.push_str("</tr>\n");
            }
            html.push_str("</tbody>\n</table>\n</div>\n");
        }
        html.push_str(Page::end());
        Ok(Reply::page(200, Content::Bytes(html.into_bytes())))
    }

    /// Starts a check, unless one is running.
    pub(crate) fn start_check(&self, export: &Export) -> Result<Reply<'static>, Refusal> {
        must_be_root(export)?;
        let mut check = self.check.lock();
        if !matches!(*check, Check::Running(..) | Check::Started(_)) {
            *check = Check::Started(Instant::now());
            let (fs, shared) = (export.fs.clone(), Arc::clone(&self.check));
            let work = move || run_check(&fs, &shared);
            let started = std::thread::Builder::new().name("papilio-web-check".to_owned()).spawn(work);
            if let Err(error) = started {
                *check = Check::Never;
                return Err(Refusal::new(503, format!("the check cannot be started: {error}")));
            }
        }
        Ok(Reply::new(303).header("Location", "/?view=check"))
    }

    /// Returns the page of the check.
    pub(crate) fn check_page(&self, export: &Export) -> Result<Reply<'static>, Refusal> {
        must_be_root(export)?;
        let (words, report, is_running) = {
            let check = self.check.lock();
            match &*check {
                Check::Never => ("No check has run yet.".to_owned(), None, false),
                Check::Started(since) => (progress_text(None, *since), None, true),
                Check::Running(progress, since) => (progress_text(Some(*progress), *since), None, true),
                Check::Done(Err(reason), _) => (format!("The check failed: {reason}"), None, false),
                Check::Done(Ok(report), ended) => {
                    let ago = ended.elapsed().as_secs();
                    let (errors, warnings) = (report.errors(), report.warnings());
                    let verdict = match (errors, warnings) {
                        (0, 0) => "No error found.".to_owned(),
                        _ => format!("{errors} errors, {warnings} warnings."),
                    };
                    (format!("{verdict} The check ended {ago} seconds ago."), Some(Arc::clone(report)), false)
                }
            }
        };
        let page = Page {
            title: &export.title,
            names: &[],
            at: None,
            heading: "Check".to_owned(),
            refresh: is_running.then_some(3),
        };
        let mut html = page.begin();
        html.push_str(&format!("<p role=\"status\">{}</p>\n", escaped(&words)));
        if is_running {
            html.push_str("<p><a href=\"/?view=check\">Look again</a></p>\n");
        } else {
            html.push_str(
                "<form method=\"post\" action=\"/?view=check\" enctype=\"multipart/form-data\">\n<p>The check reads all trees \
                 and all data, in the background, and changes nothing.</p>\n\
                 <button type=\"submit\">Check the file system</button>\n</form>\n",
            );
        }
        if let Some(report) = report {
            html.push_str(&report_text(&report));
        }
        html.push_str(Page::end());
        Ok(Reply::page(200, Content::Bytes(html.into_bytes())))
    }
}

fn run_check(fs: &FileSystem, shared: &Arc<Mutex<Check>>) {
    let (since, progress) = (Instant::now(), Arc::clone(shared));
    let options = CheckOptions::new()
        .data_csum(true)
        .max_findings(FINDINGS_MOST)
        .progress(move |now| *progress.lock() = Check::Running(now, since));
    let report = fs.check(&options).map(Arc::new).map_err(|error| error.to_string());
    *shared.lock() = Check::Done(report, Instant::now());
}

fn progress_text(progress: Option<CheckProgress>, since: Instant) -> String {
    let done = match progress {
        None => "starting".to_owned(),
        Some(progress) => match (progress.stage, progress.total) {
            (CheckStage::Trees, _) => format!("{} tree blocks", progress.done),
            (CheckStage::Space, _) => "references, extents, free space".to_owned(),
            (CheckStage::Data, Some(total)) => {
                let (done, total) = (crate::text::size(progress.done), crate::text::size(total));
                format!("{done} of {total} of data")
            }
            (CheckStage::Data, None) => format!("{} of data", crate::text::size(progress.done)),
        },
    };
    format!("The check has run for {} seconds: {done}.", since.elapsed().as_secs())
}

fn report_text(report: &CheckReport) -> String {
    let mut html = String::from("<section aria-labelledby=\"report\">\n<h2 id=\"report\">Report</h2>\n<pre>");
    for finding in &report.findings {
        html.push_str(&escaped(&finding.to_string()));
        html.push('\n');
    }
    if report.dropped() > 0 {
        html.push_str(&format!("{} further findings are not shown\n", report.dropped()));
    }
    for note in &report.notes {
        html.push_str(&escaped(&format!("note: {note}")));
        html.push('\n');
    }
    let seen = &report.statistics;
    html.push_str(&format!(
        "{} trees, {} blocks ({} bytes), {} data extents ({} bytes), {} subvolumes, {} inodes, {} files\n\
         {} bytes of data read\n</pre>\n</section>\n",
        seen.trees,
        seen.blocks,
        seen.metadata_bytes,
        seen.data_extents,
        seen.data_bytes,
        seen.subvolumes,
        seen.inodes,
        seen.files,
        seen.data_bytes_read
    ));
    html
}
