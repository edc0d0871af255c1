//! The progress bar of a scrub.

use indicatif::{ProgressBar, ProgressStyle};

pub(super) fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
