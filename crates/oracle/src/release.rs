//! The release of the running kernel, and the presets that it lacks.
//!
//! Tests beside the kernel run under several kernels (`cargo xtask judges`).

use std::io::Write;

/// Presets with a feature that came after the oldest kernel that judges, and its release.
const NEWER: &[(&str, (u32, u32))] = &[("simple-quota", (6, 7))];

/// Returns the running kernel's major and minor number; (0, 0) if it has another form of name.
pub fn kernel_release() -> (u32, u32) {
    parse(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn parse(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

/// Returns whether the running kernel has all features of a preset. Says so if it has not.
pub fn kernel_has(preset: &str) -> bool {
    let running = kernel_release();
    if let Some((_, needed)) = NEWER.iter().find(|(name, needed)| *name == preset && *needed > running) {
        // As in `require`: not captured by the test's harness, and harmless if it is closed.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {preset}: needs kernel {}.{}, this is {}.{}",
            needed.0,
            needed.1,
            running.0,
            running.1
        );
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        assert_eq!(parse("6.1.176"), (6, 1));
        assert_eq!(parse("6.12.113-deb13-um"), (6, 12));
        assert_eq!(parse("7.2"), (7, 2));
        assert_eq!(parse("next"), (0, 0));
        assert!(kernel_release() > (2, 6));
        assert!(kernel_has("default"));
    }
}
