//! The end of a server: it serves until a signal arrives.

use anyhow::Context as _;
use papilio_fuse::signals::Signals;
use std::io::Write;

/// Prints the URI of the server, and waits for a signal. A second one ends the process.
pub fn wait_for_signal(uri: &str, signals: Signals) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    // A reader that has gone away does not need the server to end.
    let _ = writeln!(output, "{uri}").and_then(|()| output.flush());
    drop(output);
    signals.wait().context("cannot wait for signals")?;
    end_on_second_signal(signals);
    Ok(())
}

/// Ends the process at a second signal, for the user who does not want to wait for clients.
fn end_on_second_signal(signals: Signals) {
    let wait = move || {
        if signals.wait().is_ok() {
            std::process::exit(1);
        }
    };
    // Without the thread, the wait is bounded by the server alone.
    let _ = std::thread::Builder::new().name("papilio-signals".to_owned()).spawn(wait);
}
