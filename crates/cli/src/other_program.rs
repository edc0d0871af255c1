//! Programs that run in the place of this one, with its arguments.
//!
//! - `papilio-store` is the same command with object stores, which bring HTTP, TLS and SlateDB.
//!   [`run_with_stores`] starts it if an argument names a URL. Without it, the command that opens
//!   the URL names the missing program.
//! - `papilio-web` is the same command with a web server, which brings TLS and XML.
//!   [`run_with_web`] starts it for `serve --http`, and for TLS of `serve --nbd`. Without it, that
//!   command names the missing program.
//! - `papilio-bench` measures, and needs libraries for plots.
//!
//! A program is looked for at the path in an environment variable, beside this one, and in
//! `../lib/papilio`.

use crate::web_front_end::web_front_end;
use papilio::device::{object_stores, url_prefix};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// A program of Papilio beside the command.
pub(crate) struct OtherProgram {
    pub(crate) name: &'static str,
    /// The environment variable that can hold its path.
    pub(crate) variable: &'static str,
}

/// The command with object stores.
pub(crate) const STORE: OtherProgram =
    OtherProgram { name: "papilio-store", variable: "PAPILIO_STORE_PROGRAM" };
/// The command with a web server.
pub(crate) const WEB: OtherProgram = OtherProgram { name: "papilio-web", variable: "PAPILIO_WEB_PROGRAM" };
/// The benchmarks.
#[cfg(target_os = "linux")]
pub(crate) const BENCH: OtherProgram =
    OtherProgram { name: "papilio-bench", variable: "PAPILIO_BENCH_PROGRAM" };

impl OtherProgram {
    /// Runs the program in the place of this one, under the name `called`. Returns only if there is
    /// none, or none that can be run.
    pub(crate) fn replace_this_one<S: AsRef<OsStr>>(&self, called: &OsStr, arguments: &[S]) {
        for program in self.candidates() {
            // It returns only if the program cannot be run; the next one may be.
            let _ = Command::new(program).arg0(called).args(arguments).exec();
        }
    }

    fn candidates(&self) -> impl Iterator<Item = PathBuf> {
        // One that is this program under another name would run itself for ever.
        let is_other = |path: &PathBuf| path.canonicalize().ok() != own_path();
        let given = std::env::var_os(self.variable).map(PathBuf::from);
        let own = std::env::current_exe().ok();
        let folder = own.as_deref().and_then(|own| own.parent());
        let beside = folder.map(|folder| folder.join(self.name));
        let library = folder.map(|folder| folder.join("../lib/papilio").join(self.name));
        [given, beside, library].into_iter().flatten().filter(|path| path.is_file()).filter(is_other)
    }
}

fn own_path() -> Option<PathBuf> {
    std::env::current_exe().ok()?.canonicalize().ok()
}

/// Runs `papilio-store` with the same arguments, and does not return, if they need it and it is
/// there.
pub(crate) fn run_with_stores(arguments: &[OsString]) {
    let Some((called, rest)) = arguments.split_first() else { return };
    if object_stores().is_err() && rest.iter().any(|argument| needs_stores(argument)) {
        STORE.replace_this_one(called, rest);
    }
}

/// Runs `papilio-web` with the same arguments, and does not return, if they serve files to web
/// clients or use TLS, and it is there.
pub(crate) fn run_with_web(arguments: &[OsString]) {
    let Some((called, rest)) = arguments.split_first() else { return };
    if web_front_end().is_none() && needs_web(rest) {
        WEB.replace_this_one(called, rest);
    }
}

/// Returns whether arguments are those of `serve --http`, or of `serve` with TLS. Others that only
/// look so cost the start of the larger program.
fn needs_web(arguments: &[OsString]) -> bool {
    let is_serve = |argument: &OsString| argument.len() > 2 && b"serve".starts_with(argument.as_bytes());
    let is_web = |argument: &OsString| argument == "--http" || argument.as_bytes().starts_with(b"--tls-");
    arguments.iter().any(is_web) && arguments.iter().any(is_serve)
}

/// Returns whether an argument is or contains a URL, or is the name of the command for stores. One
/// that only looks so costs the start of the larger program.
fn needs_stores(argument: &OsStr) -> bool {
    let bytes = argument.as_bytes();
    let starts = |part: &[u8]| url_prefix(part).is_some();
    bytes == b"store" || bytes.split(|byte| matches!(byte, b'=' | b',')).any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_files_to_browsers_needs_the_web_server() {
        let needs = |line: &str| needs_web(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in
            ["serve --http a.img", "-v serve a.img:/d --http", "ser --http a", "serve --nbd --tls-cert=c a"]
        {
            assert!(needs(line), "{line}");
        }
        for line in ["serve --nfs a.img", "ls --http", "serve --https", "se --http"] {
            assert!(!needs(line), "{line}");
        }
    }

    #[test]
    fn arguments_with_urls_need_stores() {
        for argument in
            ["s3://b/k", "--image=https://h/i", "ro,backing=gs://b/k", "slatedb+file:///d", "store"]
        {
            assert!(needs_stores(OsStr::new(argument)), "{argument}");
        }
        for argument in ["/s3://b", "nbd://h", "a:/http:", "stores", "--store", ""] {
            assert!(!needs_stores(OsStr::new(argument)), "{argument}");
        }
    }
}
