//! `LayerOptions`: how the user wants layers opened, and where a key comes from.
//!
//! **Invariants**
//! - A secret is read once and kept in memory that is wiped when it is dropped. It is in no message
//!   and no argument.
//! - The terminal echoes again when a passphrase was read, also after an error.

use crate::error::{LayerError, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// The most bytes of a key file, as of cryptsetup's.
const LONGEST_KEY: u64 = 8 << 20;
/// The most bytes of a passphrase.
const LONGEST_PASSPHRASE: u64 = 512;

/// Where a key comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// The terminal of the process asks for a passphrase.
    #[default]
    Terminal,
    /// All bytes of a file, of a descriptor as `/dev/fd/N`, or of standard input as `-`.
    File(PathBuf),
    /// The output of a command of the shell, without a newline at its end.
    Command(OsString),
    /// There is none: encrypted volumes stay locked.
    Nowhere,
}

/// How layers are opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerOptions {
    /// Further devices that may be members of arrays or groups.
    pub members: Vec<PathBuf>,
    /// Where the key of encrypted volumes comes from.
    pub key: KeySource,
    /// The key slot to open; `None` for any.
    pub key_slot: Option<u32>,
    /// A LUKS header that is not on its device.
    pub header: Option<PathBuf>,
    /// Whether a Btrfs file system counts although the device is a member of something else.
    pub ignore_signatures: bool,
}

/// A secret, and its kind for messages.
pub(crate) struct Secret {
    pub(crate) bytes: Zeroizing<Vec<u8>>,
    pub(crate) kind: &'static str,
}

impl KeySource {
    /// Reads a secret that is no volume's: the terminal asks for the passphrase of `name`.
    ///
    /// # Errors
    /// There is no terminal; the file cannot be read or is empty.
    pub fn read_secret(&self, name: &str) -> Result<Zeroizing<Vec<u8>>> {
        self.read(name).map(|secret| secret.bytes)
    }

    /// Reads the key for a device.
    pub(crate) fn read(&self, device: &str) -> Result<Secret> {
        match self {
            Self::Nowhere => Err(LayerError::NoKey(device.to_owned())),
            Self::File(path) => {
                let failed = |source| LayerError::KeySource { path: path.clone(), source };
                let bytes = read_key_file(path).map_err(failed)?;
                Ok(Secret { bytes, kind: "key file" })
            }
            Self::Command(command) => {
                let failed =
                    |source| LayerError::KeyCommand { command: command.display().to_string(), source };
                let bytes = run(command).map_err(failed)?;
                Ok(Secret { bytes, kind: "key command" })
            }
            Self::Terminal => {
                let path = Path::new("/dev/tty");
                let kept = TERMINAL.get().map(File::try_clone);
                let terminal = kept.unwrap_or_else(open_terminal);
                let terminal = terminal.map_err(|_| LayerError::NoKey(device.to_owned()))?;
                let failed = |source| LayerError::KeySource { path: path.to_owned(), source };
                let bytes = ask(terminal, device).map_err(failed)?;
                Ok(Secret { bytes, kind: "passphrase" })
            }
        }
    }
}

/// The terminal of a process that cannot open it any more.
static TERMINAL: OnceLock<File> = OnceLock::new();

/// Opens the terminal now, for a process that gives up the right to open files for writing. Without
/// a terminal nothing happens.
pub fn keep_terminal() {
    if let Ok(terminal) = open_terminal() {
        // A second call keeps the first terminal.
        let _ = TERMINAL.set(terminal);
    }
}

fn open_terminal() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

/// Runs a command that prints a key.
fn run(command: &OsStr) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut child =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    let read = read_all(output);
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("it failed: {status}")));
    }
    let mut bytes = read?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    not_empty(bytes)
}

fn read_key_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let bytes = match path.as_os_str() == "-" {
        true => read_all(io::stdin().lock()),
        false => read_all(File::open(path)?),
    };
    not_empty(bytes?)
}

fn not_empty(bytes: Zeroizing<Vec<u8>>) -> io::Result<Zeroizing<Vec<u8>>> {
    if bytes.is_empty() { Err(io::Error::other("the key is empty")) } else { Ok(bytes) }
}

fn read_all(mut file: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // Growing would leave copies of the key behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(64 << 10));
    let mut piece = Zeroizing::new([0; 4096]);
    loop {
        let count = file.read(&mut piece[..])?;
        if count == 0 {
            break;
        }
        if (bytes.len() + count) as u64 > LONGEST_KEY {
            return Err(io::Error::other("a key file has 8 MiB at most"));
        }
        if bytes.len() + count > bytes.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(bytes.capacity() * 2));
            larger.extend_from_slice(&bytes);
            bytes = larger;
        }
        bytes.extend_from_slice(&piece[..count]);
    }
    Ok(bytes)
}

/// A terminal that does not echo until it is dropped.
struct Silent<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Silent<'a> {
    fn new(terminal: &'a File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

fn ask(mut terminal: File, device: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    write!(terminal, "Passphrase for {device}: ")?;
    let silent = Silent::new(&terminal)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_PASSPHRASE as usize + 1));
    let mut byte = Zeroizing::new([0]);
    let mut input = silent.terminal;
    while input.read(&mut byte[..])? == 1 && byte[0] != b'\n' {
        if bytes.len() as u64 == LONGEST_PASSPHRASE {
            return Err(io::Error::other("a passphrase has 512 bytes at most"));
        }
        bytes.push(byte[0]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_a_key() {
        let read = |text: &str| KeySource::Command(text.into()).read_secret("device");
        assert_eq!(&read("printf 'a key\\n\\n'").unwrap()[..], b"a key\n");
        assert_eq!(&read("printf key").unwrap()[..], b"key");
        for (command, reason) in [("exit 3", "exit status: 3"), ("true", "empty"), ("echo", "empty")] {
            let error = read(command).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(command), "{error}");
        }
    }
}
