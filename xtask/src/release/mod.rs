//! `cargo xtask sbom` and `cargo xtask notices`: two files that go with a release.
//!
//! Owns the list of crates that a release is built of. Both files follow from Cargo.lock and from
//! the packages in cargo's cache alone, so that two machines write the same bytes.

mod notices;
mod sbom;

use crate::metadata::Metadata;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The crates of the workspace whose programs and libraries are in a release.
const SHIPPED: &[&str] =
    &["papilio-bench", "papilio-capi", "papilio-cli", "papilio-cli-store", "papilio-fio", "papilio-python"];

/// Writes the software bill of materials: CycloneDX, as JSON.
///
/// # Errors
/// Cargo fails, `SOURCE_DATE_EPOCH` is no number, or the file cannot be written.
pub fn write_sbom(root: &Path, file: &Path) -> Result<()> {
    let metadata = Metadata::load(root)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
    let text = sbom::text(&metadata, SHIPPED, &lock, epoch.as_deref())?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// Writes the licence texts of all packages of other people.
///
/// # Errors
/// Cargo fails, or a file cannot be read or written.
pub fn write_notices(root: &Path, file: &Path) -> Result<()> {
    let text = notices::text(&Metadata::load(root)?, SHIPPED)?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs a part of `scripts/release-lib.sh`.
    fn shell(script: &str, folder: &Path) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let script = format!("set -eu; . '{}/scripts/release-lib.sh'; {script}", root.display());
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(folder).env("SOURCE_DATE_EPOCH", "1700000000");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn archives_depend_on_their_content_alone() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, mask: &str, date: &str, order: &str| {
            let script = format!(
                "umask {mask}; mkdir -p {name}/usr/bin {name}/usr/share; \
                 for file in {order}; do echo $file > {name}/usr/share/$file; done; \
                 echo program > {name}/usr/bin/p; chmod u+x {name}/usr/bin/p; \
                 find {name} -exec touch -h -d {date} {{}} +; \
                 pack {name} papilio-1 {name}.tar.gz ./usr/bin ./usr/share; installed_size {name}"
            );
            (shell(&script, folder.path()), fs::read(folder.path().join(format!("{name}.tar.gz"))).unwrap())
        };
        let first = make("a", "022", "2001-01-01", "one two three");
        let second = make("longer-name", "077", "2020-02-02", "three one two");
        assert!(first == second);
        let listed = shell("tar tvzf a.tar.gz", folder.path());
        assert!(listed.contains("-rwxr-xr-x 0/0"), "{listed}");
        assert!(listed.contains(" papilio-1/share/one\n"), "{listed}");
    }

    #[test]
    fn sums_are_signed_with_a_key_that_is_given() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        for file in ["b", "a"] {
            fs::write(folder.path().join("out").join(file), file).unwrap();
        }
        let script = "sums out; (cd out; sha256sum -c --quiet SHA256SUMS); cut -d ' ' -f 3 out/SHA256SUMS; \
                      ! sign paper key out/SHA256SUMS 2> /dev/null";
        assert_eq!(shell(script, folder.path()), "a\nb\n");
        if Command::new("ssh-keygen").arg("-V").output().is_err() {
            return;
        }
        let script = "ssh-keygen -q -t ed25519 -N '' -f key; sign ssh key out/SHA256SUMS; \
                      (printf 'papilio '; cat key.pub) > allowed; ssh-keygen -Y verify -f allowed -I papilio \
                      -n papilio-release -s out/SHA256SUMS.sig < out/SHA256SUMS";
        assert!(shell(script, folder.path()).contains("Good"));
    }
}
