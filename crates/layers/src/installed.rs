//! The layers that `papilio_device` asks.
//!
//! Owns [`install`] and the options of this process.

use crate::content::Content;
use crate::error::LayerError;
use crate::keys::{KeyFault, Keys, UnlockedKey};
use crate::options::{KeySource, LayerOptions};
use crate::search::Search;
use papilio_device::{Access, Device, LayerRequest, Layers, OpenErrorKind};
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

static INSTALLED: OnceLock<Installed> = OnceLock::new();

#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) options: LayerOptions,
    pub(crate) keys: Keys,
}

/// Lets this process open the layers over images and devices. The options of the first call stay;
/// later calls have no effect.
pub fn install(options: LayerOptions) {
    let installed = INSTALLED.get_or_init(|| Installed { options, keys: Keys::default() });
    papilio_device::install_layers(installed);
}

/// Wipes the passphrases and keys that this process keeps for volumes that it may open again. Open
/// volumes stay open.
pub fn forget_keys() {
    if let Some(installed) = INSTALLED.get() {
        installed.keys.forget();
    }
}

/// Returns the secret that opened the last encrypted volume, for a process that this one starts.
pub fn known_secret() -> Option<Zeroizing<Vec<u8>>> {
    INSTALLED.get()?.keys.secret()
}

/// Keeps a secret that was read for a device that this process opens next.
pub fn keep_secret(secret: Zeroizing<Vec<u8>>, source: &KeySource) {
    if let Some(installed) = INSTALLED.get() {
        let kind = match source {
            KeySource::Terminal | KeySource::Nowhere => "passphrase",
            KeySource::File(_) => "key file",
            KeySource::Command(_) => "key command",
        };
        installed.keys.keep_secret(secret, kind);
    }
}

/// Runs the command that prints the key now, for a process that gives up the right to start
/// programs. Without such a command nothing happens.
pub fn keep_command_secret() {
    if let Some(installed) = INSTALLED.get() {
        installed.keys.run_command(&installed.options.key);
    }
}

/// Opens the key of something that is no volume, with the secret of this process: the terminal asks
/// for the passphrase of `name`. `open` returns `None` for a wrong secret. The key is kept under
/// `id`, and not opened again.
///
/// # Errors
/// There is no secret, or a wrong one; it cannot be read. Without [`install`] there is none.
pub fn unlock(
    id: &str,
    name: &str,
    open: &mut dyn FnMut(&[u8]) -> Option<UnlockedKey>,
) -> Result<UnlockedKey, KeyFault> {
    let installed = INSTALLED.get().ok_or(KeyFault::Missing)?;
    installed.keys.unlock_other(id, name, &installed.options.key, open)
}

impl Layers for Installed {
    fn is_layer(&self, device: &dyn Device) -> bool {
        match Content::of(device, self.options.ignore_signatures) {
            Content::Unknown | Content::Other(_) => self.options.header.is_some(),
            content => content.is_layer(),
        }
    }

    fn open(
        &self,
        base: Arc<dyn Device>,
        request: &LayerRequest<'_>,
    ) -> Result<Arc<dyn Device>, OpenErrorKind> {
        let failed = |error: LayerError| OpenErrorKind::Layer(Box::new(error));
        let wants_write = base.access() == Access::ReadWrite;
        let mut search = Search::new(&self.options, &self.keys, request.path, request.open, request.image);
        let mut found = search.add_base(Arc::clone(&base));
        found = found.and_then(|()| search.run(request.choice));
        let at = match found.and_then(|()| search.choose(request.choice)) {
            // A member that shows a file system of its own: the caller warns of the signature, or
            // refuses to write.
            Err(_) if matches!(Content::of(&*base, true), Content::Btrfs(_)) => return Ok(base),
            found => found.map_err(failed)?,
        };
        let device = Arc::clone(&search.nodes[at].device);
        match search.read_only(at).filter(|_| wants_write) {
            Some(error) => Err(failed(error)),
            None => Ok(device),
        }
    }
}
