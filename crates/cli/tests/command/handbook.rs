//! The recipes of the handbook (handbook/src/recipes) are true: each is carried out.
//!
//! A page is Markdown. Its blocks run from the first to the last in one bash (`-eu -o pipefail`),
//! in a folder of its own, with `papilio` in PATH:
//!
//! - `sh`: commands, which must succeed;
//! - `console`: commands after `$ ` (continued after `> `), each with all its output below it,
//!   where `[..]` stands for any part of a line and `...` for any lines. A last line
//!   `[exit status N]` tells of a failure;
//! - `LANGUAGE file=NAME`: a file, which is written;
//! - `text` and `yaml`: not run.
//!
//! A comment `<!-- needs: fuse python ... -->` names what the page needs of the machine. Without it
//! the recipe is skipped, or fails with `PAPILIO_REQUIRE_ALL=1`. A recipe takes at most
//! [`MOST_MIB`] of disk and [`MOST_SECONDS`] of processor time.

use crate::common::{binary, papilio, succeed, succeed_text, text};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, require};
use regex::Regex;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The most that a recipe's folder may hold at its end.
const MOST_MIB: u64 = 300;
/// The most that bash and its children may take of the processors, in a debug build and beside
/// other work. Recipes take up to 3 seconds.
const MOST_SECONDS: f64 = 20.0;
/// Recipes that hang are killed. The machine may be busy.
const MOST_WALL_SECONDS: &str = "120";

/// A command or a block of them, and all that it should print.
#[derive(Debug, PartialEq)]
struct Step {
    script: String,
    /// `None` if any output will do.
    output: Option<Vec<String>>,
    status: i32,
}

/// A page that was parsed.
#[derive(Debug, Default, PartialEq)]
struct Recipe {
    needs: Vec<String>,
    files: Vec<(String, String)>,
    steps: Vec<Step>,
}

impl Recipe {
    fn parse(page: &str) -> Self {
        let mut recipe = Self::default();
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("<!-- needs:") {
                let words = rest.trim_end_matches("-->").split_whitespace();
                recipe.needs.extend(words.map(str::to_owned));
            }
            let indent = line.len() - line.trim_start().len();
            let Some(info) = line.trim_start().strip_prefix("```") else { continue };
            let block: Vec<&str> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            recipe.add_block(info, &block);
        }
        recipe
    }

    fn add_block(&mut self, info: &str, block: &[&str]) {
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        if let Some(name) = rest.trim().strip_prefix("file=") {
            self.files.push((name.to_owned(), block.join("\n") + "\n"));
            return;
        }
        match language {
            "sh" => self.steps.push(Step { script: block.join("\n"), output: None, status: 0 }),
            "console" => self.add_session(block),
            "text" | "yaml" => {}
            _ => panic!("a block of {language:?}: say sh, console, text, yaml or file=NAME"),
        }
    }

    fn add_session(&mut self, block: &[&str]) {
        for line in block {
            if let Some(command) = line.strip_prefix("$ ") {
                let step = Step { script: command.to_owned(), output: Some(Vec::new()), status: 0 };
                self.steps.push(step);
                continue;
            }
            let step = self.steps.last_mut().expect("a session begins with a command");
            let output = step.output.as_mut().expect("a session begins with a command");
            if let (Some(more), true) = (line.strip_prefix("> "), output.is_empty()) {
                step.script += "\n";
                step.script += more;
            } else if let Some(rest) = line.strip_prefix("[exit status ") {
                step.status = rest.trim_end_matches(']').parse().expect("a number");
            } else {
                output.push((*line).to_owned());
            }
        }
    }

    /// Returns one script. Step `n` leaves its output in `log/n.out`, and its status in
    /// `log/n.status`.
    fn script(&self, log: &Path) -> String {
        let mut script = "set -eu -o pipefail\n".to_owned();
        for (number, step) in self.steps.iter().enumerate() {
            let (out, status) = (log.join(format!("{number}.out")), log.join(format!("{number}.status")));
            let (out, status) = (out.display(), status.display());
            // In a session a failure may be what the page shows.
            let (before, after) = if step.output.is_some() { ("set +e", "set -e") } else { (":", ":") };
            let body = &step.script;
            let _ =
                writeln!(script, "{before}\n{{ :\n{body}\n}} > '{out}' 2>&1\necho $? > '{status}'\n{after}");
        }
        script + "times\n"
    }
}

/// Returns whether `output` is what a page shows.
fn matches(shown: &[String], output: &str) -> bool {
    let mut pattern = String::from("^");
    for line in shown {
        if line == "..." {
            pattern += "(?:.*\n)*?";
        } else {
            let parts: Vec<String> = line.split("[..]").map(regex::escape).collect();
            pattern += &format!("{} *\n", parts.join(".*"));
        }
    }
    let ends = output.is_empty() || output.ends_with('\n');
    let output = if ends { output.to_owned() } else { format!("{output}\n") };
    Regex::new(&(pattern + "$")).unwrap().is_match(&output)
}

/// Returns what a word of a page's needs means.
fn need(word: &str) -> Need {
    match word {
        "fuse" => Need::Fuse,
        "cryptsetup" => Need::Command("cryptsetup"),
        "sfdisk" => Need::Command("sfdisk"),
        "qemu" => Need::Command("qemu-img"),
        "nbd" => Need::Command("nbdinfo"),
        "nfs" => Need::Command("nfs-cp"),
        "python" => Need::Command("python3"),
        "cc" => Need::Command("cc"),
        "xfs" => Need::Command("mkfs.xfs"),
        _ => panic!("a page needs {word:?}, which this test does not know"),
    }
}

/// Whether a part of the workspace that a page needs was built along with the tests, and its name.
/// `None` if the word names no such part.
fn built(word: &str) -> Option<(bool, &'static str)> {
    match word {
        "store" => Some((binary().with_file_name("papilio-store").exists(), "the program papilio-store")),
        "python-module" => Some((python_module().exists(), "the Python module")),
        "c-library" => Some((c_archive().is_some(), "the C library")),
        _ => None,
    }
}

/// The Python module that cargo has built.
fn python_module() -> PathBuf {
    binary().with_file_name("deps").join("libpapilio_python.so")
}

/// The newest C library that cargo has built.
fn c_archive() -> Option<PathBuf> {
    let entries = fs::read_dir(binary().with_file_name("deps")).ok()?.flatten();
    let is_archive = |name: &str| name.starts_with("libpapilio_capi-") && name.ends_with(".a");
    let archives = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_archive));
    archives
        .max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok())
        .map(|entry| entry.path())
}

/// Installs the Python package in a folder, as the wheel does.
fn install_python(folder: &Path) {
    let package = folder.join("papilio");
    fs::create_dir_all(&package).unwrap();
    for entry in fs::read_dir(source().join("crates/python/python/papilio")).unwrap().flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    std::os::unix::fs::symlink(python_module(), package.join("_papilio.abi3.so")).unwrap();
}

/// Writes a pkg-config file for the C library, as `make lib` does.
fn install_c(folder: &Path) {
    let archive = c_archive().expect("it was looked for");
    let include = source().join("crates/capi/include");
    let file = format!(
        "Name: papilio\nDescription: Btrfs in user space\nVersion: 0\nCflags: -I{}\nLibs: {} -lpthread -ldl -lm\n",
        include.display(),
        archive.display()
    );
    fs::write(folder.join("papilio.pc"), file).unwrap();
}

/// The root of the sources.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn recipes() -> PathBuf {
    source().join("handbook/src/recipes")
}

/// Ends what a recipe that failed left behind: mounts and processes in its folder.
struct Folder(tempfile::TempDir);

impl Drop for Folder {
    fn drop(&mut self) {
        let folder = self.0.path();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for mount in mounts.lines().rev().filter_map(|line| line.split(' ').nth(4)) {
            if Path::new(mount).starts_with(folder) {
                let _ = Command::new("umount").args(["-l", mount]).status();
            }
        }
    }
}

/// Carries a recipe out.
fn carry_out(name: &str) {
    let path = recipes().join(format!("{}.md", name.replace('_', "-")));
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let recipe = Recipe::parse(&page);
    assert!(!recipe.steps.is_empty(), "{name} has nothing to run");
    let (others, machine): (Vec<_>, Vec<_>) = recipe.needs.iter().partition(|word| built(word).is_some());
    let machine: Vec<Need> = machine.into_iter().map(|word| need(word)).collect();
    let Some(_met) = require(&machine) else { return };
    for (is_built, part) in others.iter().filter_map(|word| built(word)) {
        let all = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|all| all == "1");
        assert!(is_built || !all, "PAPILIO_REQUIRE_ALL=1, but {name} needs {part}, which is not built");
        if !is_built {
            let _ = writeln!(std::io::stderr(), "skipped: {name}: needs {part}, which is not built");
            return;
        }
    }
    let folder = Folder(tempfile::tempdir().unwrap());
    let [bin, log, home, work] = ["bin", "log", "home", "work"].map(|part| folder.0.path().join(part));
    for part in [&bin, &log, &home, &work] {
        fs::create_dir(part).unwrap();
    }
    for program in ["papilio", "papilio-store"] {
        std::os::unix::fs::symlink(binary().with_file_name(program), bin.join(program)).unwrap();
    }
    let site = folder.0.path().join("site");
    fs::create_dir(&site).unwrap();
    if others.iter().any(|word| *word == "python-module") {
        install_python(&site);
    }
    if others.iter().any(|word| *word == "c-library") {
        install_c(&site);
    }
    for (file, content) in &recipe.files {
        fs::write(work.join(file), content).unwrap();
    }
    let mut search = bin.clone().into_os_string();
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap_or_default());
    search.push(":/usr/sbin:/sbin");
    let timeout = find_command("timeout").expect("coreutils");
    let mut command = Command::new(timeout);
    command.args(["--kill-after=5", MOST_WALL_SECONDS, "bash", "-c", &recipe.script(&log)]);
    command.current_dir(&work).stdin(Stdio::null());
    command.env("PATH", search).env("TZ", "UTC").env("LC_ALL", "C.UTF-8").env("COLUMNS", "100");
    command
        .env("HOME", &home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CACHE_HOME", home.join("cache"));
    command.env("PYTHONPATH", &site).env("PKG_CONFIG_PATH", &site).env("PAPILIO_SOURCE", source());
    let output = command.output().unwrap();
    for (number, step) in recipe.steps.iter().enumerate() {
        let read = |kind: &str| fs::read(log.join(format!("{number}.{kind}"))).ok();
        let out = text(&read("out").unwrap_or_default());
        let status = read("status").map(|bytes| text(&bytes).trim().to_owned()).unwrap_or_default();
        let script = &step.script;
        assert_eq!(status, step.status.to_string(), "{name}: the status of\n{script}\n{out}");
        if let Some(shown) = &step.output {
            let expected = shown.join("\n");
            assert!(
                matches(shown, &out),
                "{name}: the page shows\n{expected}\nfor\n{script}\nand not\n{out}"
            );
        }
    }
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    let mib = disk_use(&work) >> 20;
    assert!(mib <= MOST_MIB, "{name} takes {mib} MiB");
    let seconds = processor_seconds(&text(&output.stdout));
    println!("{name}: {seconds:.1} s of the processors, {mib} MiB");
    assert!(seconds <= MOST_SECONDS, "{name} takes {seconds} s of the processors");
}

/// Returns the bytes that the files of a folder have on disk.
fn disk_use(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_use(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Returns the sum of what bash's `times` prints: `0m0.010s 0m0.000s` for itself and its children.
fn processor_seconds(times: &str) -> f64 {
    let seconds = |word: &str| {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    times.split_whitespace().filter_map(seconds).sum()
}

/// A test for each page.
macro_rules! recipes {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            carry_out(stringify!($name));
        })*

        /// The names of all tests above.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

recipes! {
    back_up_a_whole_disk
    compress_existing_data
    defragment_with_snapshots
    degraded_raid1
    deleted_file
    deleted_subvolume
    disk_does_not_mount
    encrypted_disk
    failing_disk
    file_system_in_a_bucket
    from_one_disk_to_raid1
    full_and_read_only
    grow_or_shrink_an_image
    image_from_a_container
    image_in_github_actions
    incremental_backup
    limit_a_user
    look_into_a_stream
    mount_without_root
    nas_with_xfs
    nightly_backup
    open_a_nas_disk
    partition_table_gone
    read_from_c
    read_from_python
    remove_duplicates
    report_a_bug
    reproducible_image
    restore_file_of_last_week
    resume_a_broken_send
    rotate_snapshots
    serve_without_fuse
    superblock_gone
    untrusted_disk
    update_an_image
    verify_my_data
    virtual_machine_image
    what_changed
    which_directory_grows
    which_snapshot_fills_my_disk
}

#[test]
fn each_page_is_a_test_and_a_chapter() {
    let mut pages: Vec<String> = fs::read_dir(recipes())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.trim_end_matches(".md").replace('-', "_"))
        .collect();
    pages.sort();
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    assert_eq!(pages, names);
    let summary = fs::read_to_string(recipes().join("../SUMMARY.md")).unwrap();
    for name in NAMES {
        let link = format!("(recipes/{}.md)", name.replace('_', "-"));
        assert!(summary.contains(&link), "SUMMARY.md has no {link}");
    }
}

#[test]
fn the_reference_has_each_command() {
    let folder = tempfile::tempdir().unwrap();
    succeed([OsStr::new("man"), OsStr::new("--markdown"), folder.path().as_os_str()]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let index = read("index.md");
    let help = succeed_text(["--help"]);
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
    let mut count = 0;
    let is_command = |name: &str| !name.is_empty() && name.chars().all(char::is_alphanumeric);
    for (name, _) in commands.filter(|(name, _)| is_command(name)) {
        assert!(index.contains(&format!("- [papilio {name}](papilio-{name}.md): ")), "{name}");
        assert!(read(&format!("papilio-{name}.md")).starts_with(&format!("# papilio {name}\n\n")), "{name}");
        count += 1;
    }
    assert!(count > 50, "{count} commands in {help}");
    let scrub = read("papilio-scrub.md");
    assert!(scrub.contains("\n## papilio scrub start\n") && !scrub.contains("--sandbox"), "{scrub}");
    assert!(read("papilio.md").contains("- `--sandbox <"), "{}", read("papilio.md"));
    assert!(read("papilio-mkfs.md").contains("`-r`, `--rootdir <"), "{}", read("papilio-mkfs.md"));
    assert_eq!(papilio(["man", "--markdown"]).status.code(), Some(2), "it needs a folder");
}

/// A page that is not true fails: otherwise the tests above would prove nothing.
#[test]
fn a_page_is_parsed_and_compared() {
    let page = "<!-- needs: fuse python -->\n\n1. Do:\n\n   ```console\n   $ one \\\n   > two\n   a [..] b\n   ...\n   \
                [exit status 3]\n   $ three\n   ```\n\n```python file=x.py\nprint()\n```\n\n```text\nno\n```\n";
    let recipe = Recipe::parse(page);
    let step = |script: &str, output: &[&str], status| Step {
        script: script.to_owned(),
        output: Some(output.iter().map(|line| (*line).to_owned()).collect()),
        status,
    };
    assert_eq!(recipe.needs, ["fuse", "python"]);
    assert_eq!(recipe.files, [("x.py".to_owned(), "print()\n".to_owned())]);
    assert_eq!(recipe.steps, [step("one \\\ntwo", &["a [..] b", "..."], 3), step("three", &[], 0)]);
    let shown: Vec<String> = ["a [..] b", "...", "end"].map(str::to_owned).to_vec();
    assert!(matches(&shown, "a 12 b\nx\ny\nend\n") && matches(&shown, "a  b\nend"));
    for wrong in ["", "a 12 b\n", "a 12 b\nend\nmore\n", "a 12 c\nend\n", "x\na 12 b\nend\n"] {
        assert!(!matches(&shown, wrong), "{wrong:?}");
    }
    assert!(matches(&[], "") && !matches(&[], "something\n"));
    assert!((processor_seconds("0m0.5s 0m1.0s\n1m0.0s 0m0.0s\n") - 61.5).abs() < 1e-9);
}
