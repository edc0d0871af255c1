//! The async runtime of all requests to object stores.
//!
//! Owns [`runtime`], whose threads start with the first request.

use std::io;
use std::sync::OnceLock;
use tokio::runtime::Runtime;

/// Returns the runtime of all requests of this process.
///
/// # Errors
/// Its threads cannot be started.
pub(crate) fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    // Fails if the program has chosen another provider already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .max_blocking_threads(64)
        .thread_name("papilio-remote")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| made))
}
