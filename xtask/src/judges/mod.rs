//! `cargo xtask judges`: the tests beside the kernel's Btrfs, under other kernels than the host's.
//!
//! Builds the test program of `crates/papilio/tests/kernel` once and runs it in a guest for each
//! kernel. All that it does on the host it does there: each writes and the other reads, checks,
//! changes, moves and scrubs, for all presets and profiles.
//!
//! - A kernel that lacks a feature skips its presets, and the report says so.
//! - A guest that panics, hangs or ends without a result fails, with the end of its console.
//! - Without any guest kernel, nothing is judged. That is an error if `PAPILIO_REQUIRE_ALL=1`.

mod guest;
mod report;

use crate::nested_cargo::nested_cargo;
use anyhow::{Context, bail};
use guest::{Guest, Kernel, Outcome};
use report::{Report, Verdict};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The arguments.
pub const USAGE: &str = "
       cargo xtask judges [--short] [--kernel NAME=FOLDER]... [--only NAME] [FILTER]...

  judges          run the tests beside the kernel's Btrfs under other kernels (root). Debian's
                  package user-mode-linux is one, scripts/guest-kernels.sh downloads
                  others, and --kernel adds an unpacked package. --short
                  leaves out most presets, --only the other kernels. FILTERs choose tests by their names";

/// The kernels that scripts/guest-kernels.sh downloads.
const KERNELS: &str = "target/judges/kernels";
/// The presets of a short run.
const SHORT: &str = "default,zstd,without-no-holes,v1-cache";
/// Seconds after which a short run counts as hanging: some five times what it takes on an idle
/// machine, since CI's may be slow.
const SHORT_LIMIT: u64 = 1200;
/// Memory of a guest in MiB. It is sparse on the host.
const MEMORY: u32 = 5120;

/// The arguments, parsed.
struct JudgeOptions {
    kernels: Vec<Kernel>,
    short: bool,
    filters: Vec<String>,
}

/// Runs the command; `Ok(true)` if every kernel agrees.
///
/// # Errors
/// Wrong arguments; the tests do not build; a guest cannot be started.
pub fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<bool> {
    let options = parse(root, arguments)?;
    if options.kernels.is_empty() {
        let why = "no guest kernel: install Debian's package user-mode-linux, or use --kernel";
        if std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|all| all == "1") {
            bail!("PAPILIO_REQUIRE_ALL=1, but {why}");
        }
        println!("skipped: judges: {why}");
        return Ok(true);
    }
    let program = build(root)?;
    let mut report = Report::default();
    for kernel in &options.kernels {
        let verdict = judge(root, kernel, &program, &options)?;
        print!("{}", verdict.text());
        report.add(verdict);
    }
    let path = root.join("target/judges/report.md");
    std::fs::write(&path, report.markdown())?;
    println!("judges: {}", path.display());
    Ok(report.is_good())
}

fn parse(root: &Path, arguments: &[&str]) -> anyhow::Result<JudgeOptions> {
    let mut options = JudgeOptions { kernels: Vec::new(), short: false, filters: Vec::new() };
    options.kernels.extend(Kernel::of_debian());
    options.kernels.extend(Kernel::downloaded(&root.join(KERNELS))?);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--short" => options.short = true,
            "--only" => {
                let name = words.next().context("--only: needs the name of a kernel")?;
                options.kernels.retain(|kernel| kernel.name == *name);
                anyhow::ensure!(!options.kernels.is_empty(), "--only {name}: there is no such kernel");
            }
            "--kernel" => {
                options.kernels.push(Kernel::parse(words.next().context("--kernel: needs NAME=FOLDER")?)?)
            }
            option if option.starts_with('-') => bail!("{option}: no such option of judges"),
            filter => options.filters.push(filter.to_owned()),
        }
    }
    Ok(options)
}

/// Builds the test program and returns its path.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let output = nested_cargo()
        .current_dir(root)
        // As `make test`, and with the C library's test, so that nothing is built twice: without it
        // other packages have other features.
        .args(["test", "--workspace", "--locked", "--no-run", "--test", "kernel", "--test", "c"])
        .arg("--message-format=json")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo test")?;
    if !output.status.success() {
        bail!("cargo test --no-run: {}", output.status);
    }
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let mut programs = messages.filter_map(|line| {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        let source = message["target"]["src_path"].as_str()?;
        let executable = message["executable"].as_str()?;
        source.ends_with("crates/papilio/tests/kernel/main.rs").then(|| PathBuf::from(executable))
    });
    programs.next_back().context("cargo names no test program of crates/papilio/tests/kernel")
}

/// Runs the tests under one kernel.
fn judge(root: &Path, kernel: &Kernel, program: &Path, options: &JudgeOptions) -> anyhow::Result<Verdict> {
    let job = root.join("target/judges").join(&kernel.name);
    if job.exists() {
        std::fs::remove_dir_all(&job)?;
    }
    std::fs::create_dir_all(&job)?;
    let presets = match options.short {
        true => format!(
            "export PAPILIO_ORACLE_PRESETS={SHORT} PAPILIO_ORACLE_PROFILES=raid1,raid5 \
             PAPILIO_ARCHIVE_SHAPES=default\n"
        ),
        false => String::new(),
    };
    let filters = options.filters.iter().map(|filter| quoted(filter)).collect::<Vec<_>>().join(" ");
    let script = format!(
        "uname -r > {job}/release\n\
         {presets}export PAPILIO_REQUIRE_ALL=1\n\
         cd {crate_} && exec {program} --test-threads 1 {filters}\n",
        job = quoted(&job.display().to_string()),
        crate_ = quoted(&root.join("crates/papilio").display().to_string()),
        program = quoted(&program.display().to_string()),
    );
    println!("judges: {} runs {}", kernel.name, program.display());
    let begun = Instant::now();
    let guest = Guest {
        kernel,
        root,
        init: &root.join("scripts/guest-init.sh"),
        job: &job,
        memory: MEMORY,
        limit: Duration::from_secs(if options.short { SHORT_LIMIT } else { 3600 }),
    };
    let outcome = guest.run(&script)?;
    let read =
        |name: &str| String::from_utf8_lossy(&std::fs::read(job.join(name)).unwrap_or_default()).into_owned();
    let failure = match outcome {
        Outcome::Ended(0) => None,
        Outcome::Ended(code) => Some(format!("the tests ended with {code}")),
        Outcome::Late => Some(format!("no result after {} s", guest.limit.as_secs())),
        Outcome::Died(console) => Some(format!("the guest ended without a result:\n{console}")),
    };
    let output = read("stdout") + &read("stderr");
    Ok(Verdict::new(&kernel.name, read("release").trim(), &output, failure, begun.elapsed()))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
