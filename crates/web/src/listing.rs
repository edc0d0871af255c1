//! The page of a folder: its entries, its snapshots, and forms where it can be changed.
//!
//! **Invariant**: a page shows at most [`ENTRIES_AT_ONCE`] entries, sorted by name, so its memory
//! is bounded. A larger folder has several pages, in the order of the directory.

use crate::export::Export;
use crate::html::{Page, at_query, kind, mode, query, time};
use crate::reply::{Content, Refusal, Reply};
use crate::text::{href, percent, shown, size};
use papilio::{FileKind, Inode, Permissions};

/// The most entries of a page.
const ENTRIES_AT_ONCE: usize = 5000;
/// The most snapshots that the page of a folder lists.
const SNAPSHOTS_MOST: usize = 200;

/// A folder that a page shows.
pub(crate) struct Listing<'l> {
    pub(crate) export: &'l Export,
    pub(crate) names: &'l [Vec<u8>],
    pub(crate) directory: Inode,
    pub(crate) at: Option<u64>,
    /// The index of the first entry.
    pub(crate) from: u64,
}

/// An entry, for sorting.
struct Row {
    name: Vec<u8>,
    inode: Inode,
}

impl Listing<'_> {
    /// Returns the page.
    pub(crate) fn page(&self) -> Result<Reply<'static>, Refusal> {
        self.export.must_have(&self.directory, Permissions::READ)?;
        let heading =
            self.names.last().map_or_else(|| crate::text::escaped(&self.export.title), |name| shown(name));
        let page = Page { title: &self.export.title, names: self.names, at: self.at, heading, refresh: None };
        let mut html = page.begin();
        if let Some(id) = self.at {
            let name = self.export.fs.subvolume(papilio::format::TreeId(id))?;
            let path = name
                .path
                .as_deref()
                .map_or_else(|| format!("subvolume {id}"), |path| format!("/{}", shown(path)));
            let now = href(self.names, true);
            html.push_str(&format!(
                "<p class=\"note\">The past: as in {path}, created {}. <a href=\"{now}\">Go to the present</a></p>\n",
                time(name.creation_time)
            ));
        }
        let (rows, next) = self.rows()?;
        let (folder, query) = (href(self.names, true), at_query(self.at));
        let tar = self::query(&[("download", "tar")], self.at);
        html.push_str(&format!("<p><a href=\"{folder}{tar}\">Download this folder as tar</a></p>\n"));
        self.add_rows(&rows, &mut html);
        if let Some(next) = next {
            let next = self::query(&[("from", &next.to_string())], self.at);
            html.push_str(&format!("<p>There are more. <a href=\"{folder}{next}\">Next entries</a></p>\n"));
        }
        if self.export.is_writable && self.at.is_none() {
            html.push_str(&forms(&folder));
        }
        self.add_snapshots(&query, &mut html)?;
        html.push_str(Page::end());
        Ok(Reply::page(200, Content::Bytes(html.into_bytes())))
    }

    /// Returns entries by name, and the index of the first one that does not fit.
    fn rows(&self) -> Result<(Vec<Row>, Option<u64>), Refusal> {
        let searches = self.directory.grants(&self.export.caller, Permissions::EXECUTE)?;
        let mut rows = Vec::new();
        for entry in self.directory.read_dir()?.starting_at(self.from).with_inodes() {
            let entry = entry?;
            if rows.len() == ENTRIES_AT_ONCE {
                rows.sort_by(|one: &Row, other| one.name.cmp(&other.name));
                return Ok((rows, Some(entry.index())));
            }
            // One that was removed meanwhile, or that the user may not reach, is left out.
            if let (true, Ok(inode)) = (searches, entry.inode()) {
                rows.push(Row { name: entry.file_name().to_vec(), inode });
            }
        }
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((rows, None))
    }

    fn add_rows(&self, rows: &[Row], html: &mut String) {
        let count = rows.len();
        let words = if count == 1 { "entry" } else { "entries" };
        html.push_str(&format!(
            "<section aria-labelledby=\"files\">\n<h2 id=\"files\">Files</h2>\n<div class=\"scroll\">\n<table>\n\
             <caption>{count} {words}</caption>\n<thead>\n<tr><th scope=\"col\">Name</th>\
             <th scope=\"col\">Kind</th><th scope=\"col\" class=\"number\">Size</th>\
             <th scope=\"col\">Modified</th><th scope=\"col\">Mode</th><th scope=\"col\">Owner</th>\
             <th scope=\"col\">More</th></tr>\n</thead>\n<tbody>\n"
        ));
        for row in rows {
            self.add_row(row, html);
        }
        html.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    }

    fn add_row(&self, row: &Row, html: &mut String) {
        let metadata = row.inode.metadata();
        let what = metadata.file_type();
        let is_directory = what == FileKind::Directory;
        let names = [self.names, std::slice::from_ref(&row.name)].concat();
        let link = href(&names, is_directory);
        let (name, slash) = (shown(&row.name), if is_directory { "/" } else { "" });
        let mut first = match what {
            FileKind::Directory | FileKind::Regular => {
                format!("<a href=\"{link}{}\">{name}{slash}</a>", at_query(self.at))
            }
            // Links into the past are not followed.
            FileKind::Symlink if self.at.is_none() => format!("<a href=\"{link}\">{name}</a>"),
            _ => name.clone(),
        };
        if what == FileKind::Symlink
            && let Ok(target) = row.inode.read_link()
        {
            first.push_str(&format!(" → {}", shown(&target)));
        }
        let bytes = match what {
            FileKind::Regular => size(metadata.size()),
            _ => String::from("–"),
        };
        let more = match what {
            FileKind::Regular => {
                let versions = query(&[("view", "versions")], None);
                let download = query(&[("download", "file")], self.at);
                format!(
                    "<a href=\"{link}{versions}\" aria-label=\"Versions of {name}\">versions</a> \
                     <a href=\"{link}{download}\" aria-label=\"Download {name}\">download</a>"
                )
            }
            FileKind::Directory => {
                let tar = query(&[("download", "tar")], self.at);
                format!("<a href=\"{link}{tar}\" aria-label=\"Download {name} as tar\">tar</a>")
            }
            _ => String::new(),
        };
        let kind = if row.inode.is_subvolume_root() { "subvolume" } else { kind(what) };
        html.push_str(&format!(
            "<tr><th scope=\"row\">{first}</th><td>{kind}</td><td class=\"number\">{bytes}</td><td>{}</td>\
             <td class=\"mode\">{}</td><td>{}:{}</td><td>{more}</td></tr>\n",
            time(metadata.mtime()),
            mode(metadata),
            metadata.uid(),
            metadata.gid()
        ));
    }

    fn add_snapshots(&self, current: &str, html: &mut String) -> Result<(), Refusal> {
        let snapshots = self.export.snapshots(self.names)?;
        html.push_str(
            "<section aria-labelledby=\"snapshots\">\n<h2 id=\"snapshots\">Snapshots of this folder</h2>\n",
        );
        if snapshots.len() < 2 {
            html.push_str("<p>No snapshot has this folder.</p>\n</section>\n");
            return Ok(());
        }
        html.push_str(&format!(
            "<div class=\"scroll\">\n<table>\n<caption>{} subvolumes have this folder</caption>\n<thead>\n\
             <tr><th scope=\"col\">Subvolume</th><th scope=\"col\">Created</th>\
             <th scope=\"col\">Folder modified</th><th scope=\"col\">Access</th>\
             <th scope=\"col\">More</th></tr>\n</thead>\n<tbody>\n",
            snapshots.len()
        ));
        let folder = href(self.names, true);
        for found in snapshots.iter().take(SNAPSHOTS_MOST) {
            let id = found.subvolume.id.0;
            let name = match &found.subvolume.path {
                Some(path) => format!("/{}", shown(path)),
                None => format!("subvolume {id}"),
            };
            let link = at_query(Some(id));
            let here = if link == current { " aria-current=\"true\"" } else { "" };
            let access = if found.subvolume.is_read_only() { "read-only" } else { "writable" };
            let tar = query(&[("download", "tar")], Some(id));
            html.push_str(&format!(
                "<tr><th scope=\"row\"><a href=\"{folder}{link}\"{here}>{name}</a></th><td>{}</td><td>{}</td>\
                 <td>{access}</td><td><a href=\"{folder}{tar}\" aria-label=\"Download as in {name}\">tar</a></td></tr>\n",
                time(found.subvolume.creation_time),
                time(found.inode.metadata().mtime())
            ));
        }
        html.push_str("</tbody>\n</table>\n</div>\n");
        if let Some(rest) = snapshots.len().checked_sub(SNAPSHOTS_MOST).filter(|rest| *rest > 0) {
            html.push_str(&format!("<p>{rest} older ones are not listed.</p>\n"));
        }
        html.push_str("</section>\n");
        Ok(())
    }
}

/// Returns the forms by which a folder is changed.
fn forms(folder: &str) -> String {
    let (upload, make) = (query(&[("do", "upload")], None), query(&[("do", "folder")], None));
    format!(
        "<section aria-labelledby=\"change\">\n<h2 id=\"change\">Add to this folder</h2>\n\
         <form method=\"post\" action=\"{folder}{upload}\" enctype=\"multipart/form-data\">\n\
         <label for=\"upload\">Files</label>\n\
         <input id=\"upload\" type=\"file\" name=\"file\" multiple required>\n\
         <button type=\"submit\">Upload</button>\n</form>\n\
         <form method=\"post\" action=\"{folder}{make}\" enctype=\"multipart/form-data\">\n\
         <label for=\"folder\">New folder</label>\n\
         <input id=\"folder\" type=\"text\" name=\"name\" maxlength=\"255\" required>\n\
         <button type=\"submit\">Create</button>\n</form>\n</section>\n"
    )
}

/// Returns the page with the versions of a file.
pub(crate) fn versions(export: &Export, names: &[Vec<u8>]) -> Result<Reply<'static>, Refusal> {
    let Some(name) = names.last() else { return Err(Refusal::new(404, "a folder has no versions")) };
    let heading = format!("Versions of {}", shown(name));
    let page = Page { title: &export.title, names, at: None, heading, refresh: None };
    let versions = export.versions(names)?;
    let mut html = page.begin();
    html.push_str(&format!(
        "<div class=\"scroll\">\n<table>\n<caption>{} different versions, the newest first</caption>\n<thead>\n\
         <tr><th scope=\"col\">Modified</th><th scope=\"col\" class=\"number\">Size</th>\
         <th scope=\"col\">Mode</th><th scope=\"col\">Owner</th><th scope=\"col\">Kept by</th>\
         <th scope=\"col\">More</th></tr>\n</thead>\n<tbody>\n",
        versions.len()
    ));
    for one in &versions {
        let metadata = &one.version.metadata;
        let mut holders = String::from("<ul>\n");
        for holder in &one.holders {
            let subvolume = match &holder.subvolume_path {
                Some(path) => format!("/{}", shown(path)),
                None => format!("subvolume {}", holder.tree.0),
            };
            let link = href(&holder.names, false) + &at_query(Some(holder.tree.0));
            let other = if holder.names == names {
                String::new()
            } else {
                let parts: Vec<String> = holder.names.iter().map(|name| shown(name)).collect();
                format!(" as {}", parts.join("/"))
            };
            holders.push_str(&format!("<li><a href=\"{link}\">{subvolume}</a>{other}</li>\n"));
        }
        if one.hidden > 0 {
            holders.push_str(&format!("<li>{} places outside of this export</li>\n", one.hidden));
        }
        holders.push_str("</ul>\n");
        let download = one.holders.last().map_or_else(String::new, |holder| {
            let link = href(&holder.names, false) + &query(&[("download", "file")], Some(holder.tree.0));
            let when = crate::dates::shown(metadata.mtime());
            format!("<a href=\"{link}\" aria-label=\"Download the version of {when}\">download</a>")
        });
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"mode\">{}</td>\
             <td>{}:{}</td><td>{holders}</td><td>{download}</td></tr>\n",
            time(metadata.mtime()),
            size(metadata.size()),
            mode(metadata),
            metadata.uid(),
            metadata.gid()
        ));
    }
    let now = href(names, false);
    html.push_str(&format!(
        "</tbody>\n</table>\n</div>\n<p><a href=\"{now}\">{}, as it is now</a></p>\n",
        percent_shown(name)
    ));
    html.push_str(Page::end());
    Ok(Reply::page(200, Content::Bytes(html.into_bytes())))
}

/// Returns a name for a sentence; one of blanks only is shown by its bytes.
fn percent_shown(name: &[u8]) -> String {
    if name.iter().all(u8::is_ascii_whitespace) { percent(name) } else { shown(name) }
}
