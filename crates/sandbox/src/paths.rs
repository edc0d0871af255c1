//! The paths and ports that a process can still reach: a Landlock domain.
//!
//! Owns [`confine`]. The domain has every right that the kernel knows, so that all are refused
//! unless a rule gives them back. It also separates the process from others: no signals to them, no
//! abstract sockets of theirs.
//!
//! Landlock does not know the attributes of files: `chmod`, `chown`, `utimensat` and `setxattr`.
//! The filter of system calls refuses these to all jobs but those that write files.

use crate::places::Places;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictSelfAttr,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest rights that Papilio knows. The library leaves out what the kernel does not have.
const NEWEST: ABI = ABI::V10;

/// Leaves the calling thread, and where the kernel can do that all others, with `places` only.
pub(crate) fn confine(places: &Places) -> Result<String, String> {
    restricted(places).map_err(|error| error.to_string())?
}

fn restricted(places: &Places) -> Result<Result<String, String>, RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .all_threads(true)?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // Files are made, filled and removed; none is executed, and no device below is opened for more.
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::Execute | AccessFs::IoctlDev);
    let remove = BitFlags::from(AccessFs::RemoveFile);
    for (paths, access) in [(&places.read, read), (&places.write, write), (&places.remove, remove)] {
        for path in paths {
            // One that is not there needs no rule.
            let Ok(descriptor) = PathFd::new(path) else { continue };
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
            ruleset = ruleset.add_rule(PathBeneath::new(descriptor, access))?;
        }
    }
    let status = ruleset.restrict_self()?;
    let threads = if status.all_threads { "all threads" } else { "this thread and later ones" };
    match status.ruleset {
        RulesetStatus::NotEnforced => Ok(Err(version_text(status.landlock))),
        _ => Ok(Ok(format!("{}, for {threads}", version_text(status.landlock)))),
    }
}

/// Returns the kernel's version of Landlock, or why there is none. A thread that ends at once
/// confines itself to find out.
pub(crate) fn version() -> Result<String, String> {
    let probe = || -> Result<LandlockStatus, RulesetError> {
        let ruleset = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?.create()?;
        Ok(ruleset.restrict_self()?.landlock)
    };
    let ended = std::thread::Builder::new().spawn(probe).map_err(|error| error.to_string())?.join();
    let status = ended.map_err(|_| "the test ended early".to_owned())?.map_err(|error| error.to_string())?;
    match status {
        LandlockStatus::Available { .. } => Ok(version_text(status)),
        _ => Err(version_text(status)),
    }
}

fn version_text(status: LandlockStatus) -> String {
    match status {
        LandlockStatus::Available { effective_abi, .. } => format!("version {}", effective_abi as i32),
        LandlockStatus::NotEnabled => "off: lsm= on the kernel's command line lacks landlock".to_owned(),
        LandlockStatus::NotImplemented => "not in this kernel".to_owned(),
    }
}
