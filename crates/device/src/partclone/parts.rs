//! Images of partclone as Clonezilla keeps them: compressed, and split into parts.
//!
//! Owns [`open_parts`].

use super::layout::MAGIC;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes that are read of a file at once.
const BUFFER: usize = 1 << 20;
/// The most bytes of a window that a decompressor keeps, as a power of two.
const WINDOW_LOG: u32 = 27;
#[cfg(feature = "images")]
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// Files one after another.
struct Parts {
    current: BufReader<File>,
    /// The path of the next part, if this one is numbered.
    next: Option<PathBuf>,
}

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.current.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(path) = self.next.take() else { return Ok(0) };
            match File::open(&path) {
                Ok(file) => self.current = BufReader::with_capacity(BUFFER, file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                Err(error) => return Err(error),
            }
            self.next = after(&path);
        }
    }
}

/// Returns the path of the part after one, as split(1) names them: `.aa`, `.ab`, ... `.zz`.
fn after(path: &Path) -> Option<PathBuf> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    let length = name.len();
    let [dot, first, second] = name.get_mut(length.checked_sub(3)?..)? else { return None };
    if *dot != b'.' || !first.is_ascii_lowercase() || !second.is_ascii_lowercase() {
        return None;
    }
    match (*first, *second) {
        (b'z', b'z') => return None,
        (_, b'z') => (*first, *second) = (*first + 1, b'a'),
        _ => *second += 1,
    }
    Some(PathBuf::from(OsString::from_vec(name)))
}

/// Opens an image of partclone, compressed or not, with the parts after it if its name ends in
/// `.aa`. Returns `None` for any other file.
///
/// # Errors
/// The host's.
pub fn open_parts(path: &Path) -> io::Result<Option<Box<dyn Read + Send>>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let is_first = path.as_os_str().as_bytes().ends_with(b".aa");
    let next = if is_first { after(path) } else { None };
    let mut parts = Parts { current: BufReader::with_capacity(BUFFER, file), next };
    let start = start_of(&mut parts, 6)?;
    let parts: Box<dyn Read + Send> = Box::new(io::Cursor::new(start.clone()).chain(parts));
    let mut plain: Box<dyn Read + Send> = match start[..] {
        #[cfg(feature = "images")]
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(parts)),
        #[cfg(feature = "images")]
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(parts, true, XZ_MEMORY_KIB))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::new(parts)?;
            decoder.window_log_max(WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => parts,
    };
    // A file that only looks compressed is none of partclone's.
    let Ok(start) = start_of(&mut plain, MAGIC.len()) else { return Ok(None) };
    if start != MAGIC {
        return Ok(None);
    }
    Ok(Some(Box::new(io::Cursor::new(start).chain(plain))))
}

fn start_of(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(length);
    input.take(length as u64).read_to_end(&mut start)?;
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_of_split() {
        let next = |name: &str| after(Path::new(name)).map(|path| path.display().to_string());
        assert_eq!(next("x.aa").as_deref(), Some("x.ab"));
        assert_eq!(next("x.az").as_deref(), Some("x.ba"));
        assert_eq!(next("x.zz"), None);
        assert_eq!(next("x.a1"), None);
        assert_eq!(next("aa"), None);
    }

    #[test]
    fn parts_are_one_image() {
        let folder = tempfile::tempdir().unwrap();
        let plain: Vec<u8> = MAGIC.iter().copied().chain((0..100_000).map(|at| at as u8)).collect();
        let packed = zstd::bulk::compress(&plain, 1).unwrap();
        for (name, bytes) in [("plain", &plain), ("packed", &packed)] {
            for (part, bytes) in bytes.chunks(bytes.len() / 3 + 1).enumerate() {
                let letter = (b'a' + part as u8) as char;
                std::fs::write(folder.path().join(format!("{name}.a{letter}")), bytes).unwrap();
            }
            let opened = open_parts(&folder.path().join(format!("{name}.aa"))).unwrap();
            let mut read = Vec::new();
            opened.unwrap().read_to_end(&mut read).unwrap();
            assert!(read == plain, "{name}");
            assert!(open_parts(&folder.path().join(format!("{name}.ab"))).unwrap().is_none());
        }
    }
}
