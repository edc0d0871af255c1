//! The jobs of a campaign.
//!
//! Owns [`Job`] and the table of all jobs. A job is a seeded test or a fuzz target. It runs in
//! *slices*: a slice has a first seed and an amount, takes a minute or a few, and passes or fails
//! as a whole.
//!
//! Invariant: a slice's seeds are its own. The next slice of the job begins `stride` seeds later.

/// How a job runs.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A test that reads its amount, and perhaps its first seed, from environment variables.
    Test {
        package: &'static str,
        /// The integration test, a file or directory in the package's `tests`.
        test: &'static str,
        /// The full name of the test function, or of a module, with `::` at its end.
        function: &'static str,
        amount: &'static str,
        /// `None` if the amount alone decides what the test does.
        seed: Option<&'static str>,
    },
    /// A target of cargo-fuzz, which runs for as many seconds as a slice's amount.
    Fuzz { target: &'static str },
}

/// One kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub name: &'static str,
    /// The things that its amounts count.
    pub unit: &'static str,
    pub kind: Kind,
    /// Amount of a slice.
    pub slice: u64,
    /// Seeds that a slice may use, at most.
    pub stride: u64,
    /// Share of the time, relative to other jobs.
    pub weight: u64,
    /// Whether the kernel judges: `btrfs check` looks at all loop devices, so that only one such
    /// job runs at a time. It needs root.
    pub kernel: bool,
}

const fn test(
    name: &'static str,
    unit: &'static str,
    place: (&'static str, &'static str, &'static str),
    amount: (&'static str, u64),
    seed: Option<&'static str>,
) -> Job {
    let (package, test, function) = place;
    let kind = Kind::Test { package, test, function, amount: amount.0, seed };
    Job { name, unit, kind, slice: amount.1, stride: 1000, weight: 2, kernel: false }
}

const fn judged(job: Job) -> Job {
    Job { kernel: true, ..job }
}

const fn fuzz(target: &'static str) -> Job {
    let kind = Kind::Fuzz { target };
    Job { name: target, unit: "executions", kind, slice: 60, stride: 1, weight: 1, kernel: false }
}

/// Each seed of the job is a run of its own, so that slices use exactly as many seeds.
const fn seed_each(job: Job) -> Job {
    Job { stride: job.slice, ..job }
}

const SIMULATOR: &str = "papilio-simulator";
const LIBRARY: &str = "papilio";
const SEED: Option<&str> = Some("PAPILIO_SEED");

/// All jobs.
pub const JOBS: &[Job] = &[
    test(
        "crash-states",
        "states after a power loss",
        (SIMULATOR, "simulator", "crash_states::power_loss_keeps_synced_state"),
        ("PAPILIO_CRASH_STATES", 5000),
        SEED,
    ),
    test(
        "fsync-states",
        "states after a power loss with fsyncs",
        (SIMULATOR, "simulator", "fsync_states::power_loss_keeps_acknowledged_fsyncs"),
        ("PAPILIO_FSYNC_STATES", 5000),
        SEED,
    ),
    test(
        "moved-states",
        "states after a power loss in a balance, a change of devices or a resize, of each kind",
        (LIBRARY, "library", "moved_crashes::"),
        ("PAPILIO_MOVED_STATES", 200),
        None,
    ),
    judged(test(
        "kernel-crash-states",
        "states after a power loss that the kernel judged",
        (SIMULATOR, "simulator", "kernel::kernel_mounts_state_after_power_loss"),
        ("PAPILIO_KERNEL_STATES", 2000),
        SEED,
    )),
    judged(test(
        "kernel-fsync-states",
        "states with fsyncs whose log the kernel replayed",
        (SIMULATOR, "simulator", "fsync_kernel::kernel_replays_acknowledged_fsyncs"),
        ("PAPILIO_KERNEL_STATES", 2000),
        SEED,
    )),
    judged(test(
        "kernel-turns",
        "rounds of 500 operations by the kernel and Papilio in turn, in each of four shapes",
        (SIMULATOR, "simulator", "kernel::kernel_and_papilio_take_turns"),
        ("PAPILIO_ROUNDS", 20),
        SEED,
    )),
    judged(seed_each(test(
        "kernel-replays",
        "random histories whose log the kernel and Papilio replayed",
        (LIBRARY, "library", "replay::random::random_histories_replay_as_the_kernel_would"),
        ("PAPILIO_REPLAY_ROUNDS", 12),
        Some("PAPILIO_REPLAY_SEED"),
    ))),
    judged(test(
        "quota-operations",
        "operations with qgroup numbers compared with the kernel's rescan",
        (LIBRARY, "library", "quotas::random::numbers_equal_the_kernels_rescan_after_random_operations"),
        ("PAPILIO_QUOTA_OPERATIONS", 20_000),
        Some("PAPILIO_QUOTA_SEED"),
    )),
    judged(test(
        "quota-crash-states",
        "states after a power loss with qgroup numbers compared with the kernel's rescan",
        (LIBRARY, "library", "quotas::crashes::numbers_after_a_crash_equal_the_kernels_rescan"),
        ("PAPILIO_QUOTA_CRASHES", 60),
        Some("PAPILIO_QUOTA_SEED"),
    )),
    judged(seed_each(test(
        "system-calls",
        "histories of 300 system calls on the mount and on the kernel's Btrfs, in each of three modes",
        ("papilio-fuse", "mount", "calls::random_calls"),
        ("PAPILIO_CALLS", 40),
        Some("PAPILIO_CALLS_SEED"),
    ))),
    judged(seed_each(test(
        "process-calls",
        "histories of 300 system calls of two to eight processes on the mount and on the kernel's Btrfs",
        ("papilio-fuse", "mount", "calls::random_calls_of_processes"),
        ("PAPILIO_CALLS", 40),
        Some("PAPILIO_CALLS_SEED"),
    ))),
    test(
        "faults",
        "failed device calls",
        (SIMULATOR, "simulator", "faults::failed_device_call_returns_an_error"),
        ("PAPILIO_FAULTS", 3000),
        SEED,
    ),
    test(
        "lies",
        "writes and flushes that a device reported as done and did not do",
        (SIMULATOR, "simulator", "lying_devices::no_lie_of_a_device_is_believed"),
        ("PAPILIO_LIES", 20_000),
        SEED,
    ),
    test(
        "set-lies",
        "lies of one device in a set, half of them to mirrors",
        (SIMULATOR, "simulator", "lying_devices::no_lie_of_one_device_in_a_set_is_believed"),
        ("PAPILIO_LIES", 6000),
        SEED,
    ),
    test(
        "operations",
        "operations compared with the model, in each shape",
        (SIMULATOR, "simulator", "random_operations::every_shape_matches_the_model"),
        ("PAPILIO_OPERATIONS", 10_000),
        SEED,
    ),
    test(
        "thread-operations",
        "operations of threads compared with their models, in each shape",
        (SIMULATOR, "simulator", "random_operations::threads_match_their_models"),
        ("PAPILIO_THREAD_OPERATIONS", 20_000),
        SEED,
    ),
    seed_each(test(
        "mutations",
        "mutated images mounted, walked and checked",
        (SIMULATOR, "simulator", "mutations::mutated_bytes_give_errors_not_panics"),
        ("PAPILIO_MUTATIONS", 2000),
        Some("PAPILIO_MUTATIONS_FROM"),
    )),
    seed_each(test(
        "changed-mutations",
        "mutated images mounted, changed, committed and mounted again",
        (SIMULATOR, "simulator", "mutations::changes_of_mutated_images_give_errors_not_panics"),
        ("PAPILIO_CHANGED_MUTATIONS", 20_000),
        Some("PAPILIO_MUTATIONS_FROM"),
    )),
    seed_each(test(
        "hostile-streams",
        "mutated send streams received",
        (SIMULATOR, "simulator", "hostile_streams::hostile_streams_leave_nothing_that_looks_whole"),
        ("PAPILIO_STREAMS", 50_000),
        Some("PAPILIO_STREAMS_FROM"),
    )),
    seed_each(test(
        "completions",
        "runs with late, reordered and failing completions, and with power losses, of each kind",
        (LIBRARY, "library", "requests_in_flight::"),
        ("PAPILIO_SHUFFLED_RUNS", 500),
        SEED,
    )),
    fuzz("superblock"),
    fuzz("node"),
    fuzz("item"),
    fuzz("send_stream"),
    fuzz("nfs_record"),
    fuzz("web_request"),
    fuzz("web_xml"),
    fuzz("receive"),
    fuzz("fuse_message"),
    fuzz("fuse_serve"),
    fuzz("mount_walk"),
    fuzz("mount_change"),
    fuzz("log_replay"),
    fuzz("log_tree"),
    fuzz("xarray"),
    fuzz("image_dump"),
    fuzz("convert_source"),
    fuzz("backup_repository"),
];

/// Finds a job by its name.
pub fn find(name: &str) -> Option<&'static Job> {
    JOBS.iter().find(|job| job.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Returns the sources of an integration test.
    fn sources(root: &Path, package: &str, test: &str) -> String {
        let folder = root.join("crates").join(package.strip_prefix("papilio-").unwrap_or(package));
        let file = folder.join("tests").join(format!("{test}.rs"));
        if let Ok(text) = std::fs::read_to_string(&file) {
            return text;
        }
        all_below(&folder.join("tests").join(test))
    }

    fn all_below(folder: &Path) -> String {
        let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let text = |path: std::path::PathBuf| match path.is_dir() {
            true => all_below(&path),
            false => std::fs::read_to_string(path).unwrap_or_default(),
        };
        files.map(|file| text(file.unwrap().path())).collect()
    }

    #[test]
    fn each_job_names_a_test_or_a_target_that_exists() {
        let root = crate::workspace_root();
        for job in JOBS {
            match job.kind {
                Kind::Test { package, test, function, amount, seed } => {
                    let text = sources(&root, package, test);
                    let wanted = match function.strip_suffix("::") {
                        Some(module) => format!("mod {module};"),
                        None => format!("fn {}", function.rsplit("::").next().unwrap_or_default()),
                    };
                    assert!(text.contains(&wanted), "{}: {wanted}", job.name);
                    assert!(text.contains(amount), "{}: {amount}", job.name);
                    assert!(seed.is_none_or(|seed| text.contains(seed)), "{}: {seed:?}", job.name);
                }
                Kind::Fuzz { target } => {
                    let file = root.join("fuzz/fuzz_targets").join(format!("{target}.rs"));
                    assert!(file.is_file(), "{}", file.display());
                }
            }
            assert!(job.slice > 0 && job.stride > 0 && job.weight > 0, "{}", job.name);
            let same = JOBS.iter().filter(|other| other.name == job.name).count();
            assert_eq!(same, 1, "{}: two jobs have the name", job.name);
        }
    }

    #[test]
    fn each_fuzz_target_is_a_job() {
        for file in std::fs::read_dir(crate::workspace_root().join("fuzz/fuzz_targets")).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(matches!(find(name).unwrap().kind, Kind::Fuzz { target } if target == name), "{name}");
        }
    }
}
