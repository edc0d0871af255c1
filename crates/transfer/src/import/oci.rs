//! Container images: which layers they have, and where.
//!
//! Owns [`Store`], an OCI image layout or an archive of `docker save`, and [`Verified`], a layer
//! that is compared with its digest while it is read.
//!
//! Formats: the OCI image specification (`oci-layout`, `index.json`, manifests), and Docker's
//! `manifest.json`.

use super::decompressed::whole;
use super::tar::members::{MemberKind, Members};
use papilio_engine::errors::{Error, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Limit in bytes of an index or a manifest.
const JSON_MAX: u64 = 16 << 20;
/// The most indexes between `index.json` and a manifest.
const INDEXES_MAX: usize = 4;
/// The annotations of an index that name an image.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// A directory or archive with images.
pub(super) struct Store {
    path: PathBuf,
    /// Of an archive: offset and length of each regular file.
    files: Option<HashMap<Vec<u8>, (u64, u64)>>,
}

/// A layer.
#[derive(Debug)]
pub(super) struct Blob {
    name: String,
    /// The digest in lower-case hexadecimal digits, if it is a SHA-256.
    sha256: Option<String>,
}

impl Blob {
    /// Returns the path of the layer, for messages.
    pub(super) fn shown(&self, store: &Path) -> PathBuf {
        store.join(&self.name)
    }
}

impl Store {
    /// Opens a directory, or an uncompressed archive, whose members it lists.
    ///
    /// # Errors
    /// A file that cannot be read or is no archive.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = path.to_path_buf();
        let host = |source| Error::Host { path: path.clone(), source };
        if path.metadata().map_err(host)?.is_dir() {
            return Ok(Self { path, files: None });
        }
        let mut members = Members::new(&path, Box::new(File::open(&path).map_err(host)?));
        let mut files = HashMap::new();
        while let Some(member) = members.next()? {
            if let MemberKind::File { map: None, .. } = member.kind {
                files.insert(member.path, members.place());
            }
        }
        Ok(Self { path, files: Some(files) })
    }

    /// Returns the directory or archive.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the layers of an image, the lowest first.
    ///
    /// # Errors
    /// No such image, or several without a reference; an invalid index or manifest.
    pub(super) fn layers(&self, reference: Option<&str>) -> Result<Vec<Blob>> {
        match self.has("index.json") {
            true => self.oci(reference),
            false if self.has("manifest.json") => self.docker(reference),
            false => Err(self.invalid("neither index.json of OCI nor manifest.json of Docker is in it")),
        }
    }

    /// Opens a layer.
    ///
    /// # Errors
    /// A layer that is missing or cannot be read.
    pub(super) fn read(&self, blob: &Blob) -> Result<Verified> {
        let hash = blob.sha256.as_ref().map(|wanted| (Sha256::new(), wanted.clone()));
        Ok(Verified { file: self.file(&blob.name)?, hash })
    }

    fn oci(&self, reference: Option<&str>) -> Result<Vec<Blob>> {
        let mut index = self.json("index.json")?;
        let mut reference = reference;
        for _ in 0..INDEXES_MAX {
            let images = index["manifests"].as_array().cloned().unwrap_or_default();
            let chosen = self.chosen(&images, reference)?;
            reference = None;
            let blob = self.blob(&chosen["digest"])?;
            let manifest = self.json(&blob.name)?;
            if let Some(layers) = manifest["layers"].as_array() {
                return layers.iter().map(|layer| self.blob(&layer["digest"])).collect();
            }
            index = manifest;
        }
        Err(self.invalid("indexes lead to no manifest with layers"))
    }

    /// Chooses one of the images of an index: by name, or the only one, or that for this machine.
    fn chosen(&self, images: &[Value], reference: Option<&str>) -> Result<Value> {
        let named = |image: &&Value| match reference {
            None => true,
            Some(wanted) => NAMES.iter().any(|name| {
                let name = image["annotations"][*name].as_str().unwrap_or_default();
                name == wanted || name.rsplit_once(':').is_some_and(|(_, tag)| tag == wanted)
            }),
        };
        let mut found: Vec<&Value> = images.iter().filter(named).collect();
        if found.len() > 1 {
            let fits = |image: &&Value| {
                let platform = &image["platform"];
                platform["os"] == "linux" && platform["architecture"] == architecture()
            };
            let fitting: Vec<&Value> = found.iter().copied().filter(fits).collect();
            if !fitting.is_empty() {
                found = fitting;
            }
        }
        match found[..] {
            [image] => Ok(image.clone()),
            [] => Err(self.invalid(&format!("no image {}", reference.unwrap_or("in its index")))),
            _ => {
                let names = found.iter().map(|image| {
                    let name = NAMES.iter().find_map(|name| image["annotations"][*name].as_str());
                    name.or(image["digest"].as_str()).unwrap_or("an image without a name")
                });
                let names: Vec<&str> = names.collect();
                Err(self.invalid(&format!("several images, name one of them: {}", names.join(", "))))
            }
        }
    }

    fn docker(&self, reference: Option<&str>) -> Result<Vec<Blob>> {
        let images = self.json("manifest.json")?;
        let images = images.as_array().cloned().unwrap_or_default();
        let tags = |image: &Value| -> Vec<String> {
            let tags = image["RepoTags"].as_array().cloned().unwrap_or_default();
            tags.iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect()
        };
        let named =
            |image: &&Value| reference.is_none_or(|wanted| tags(image).iter().any(|tag| tag == wanted));
        let found: Vec<&Value> = images.iter().filter(named).collect();
        let [image] = found[..] else {
            let all: Vec<String> = images.iter().flat_map(tags).collect();
            let text = format!("{} images fit, name one of them: {}", found.len(), all.join(", "));
            return Err(self.invalid(&text));
        };
        let layers = image["Layers"].as_array().ok_or_else(|| self.invalid("a manifest without layers"))?;
        let layer = |layer: &Value| {
            let name = layer.as_str().ok_or_else(|| self.invalid("a layer without a name"))?;
            // Newer versions name layers by digest.
            let sha256 = name.strip_prefix("blobs/sha256/").filter(|digits| is_sha256(digits));
            Ok(Blob { name: name.to_owned(), sha256: sha256.map(str::to_owned) })
        };
        layers.iter().map(layer).collect()
    }

    /// Returns the file of a digest.
    fn blob(&self, digest: &Value) -> Result<Blob> {
        let digest = digest.as_str().unwrap_or_default();
        let safe = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match digest.split_once(':') {
            Some((algorithm, digits)) if safe(algorithm) && safe(digits) => {
                let sha256 = (algorithm == "sha256").then(|| digits.to_owned());
                Ok(Blob { name: format!("blobs/{algorithm}/{digits}"), sha256 })
            }
            _ => Err(self.invalid(&format!("{digest:?} is no digest"))),
        }
    }

    fn has(&self, name: &str) -> bool {
        match &self.files {
            None => self.path.join(name).is_file(),
            Some(files) => files.contains_key(name.as_bytes()),
        }
    }

    fn json(&self, name: &str) -> Result<Value> {
        let shown = self.path.join(name);
        let bytes = whole(&shown, self.file(name)?, JSON_MAX)?;
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|error| Error::Invalid(format!("{}: {error}", shown.display())))
    }

    /// Opens a file of the store.
    fn file(&self, name: &str) -> Result<io::Take<File>> {
        let host = |source| Error::Host { path: self.path.join(name), source };
        let Some(files) = &self.files else {
            if name.split('/').any(|part| part == "..") || name.starts_with('/') {
                return Err(self.invalid(&format!("{name:?} leads out of the directory")));
            }
            let file = File::open(self.path.join(name)).map_err(host)?;
            return Ok(file.take(u64::MAX));
        };
        let place = files.get(name.as_bytes());
        let &(at, length) = place.ok_or_else(|| self.invalid(&format!("{name} is missing")))?;
        let mut file = File::open(&self.path).map_err(host)?;
        file.seek(SeekFrom::Start(at)).map_err(host)?;
        Ok(file.take(length))
    }

    fn invalid(&self, what: &str) -> Error {
        Error::Invalid(format!("{}: {what}", self.path.display()))
    }
}

/// A layer that is compared with its digest while it is read.
pub(super) struct Verified {
    file: io::Take<File>,
    hash: Option<(Sha256, String)>,
}

impl Verified {
    /// Reads the rest, and compares the digest.
    ///
    /// # Errors
    /// A rest that cannot be read; another digest.
    pub(super) fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink())?;
        let Some((hash, wanted)) = self.hash else { return Ok(()) };
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        match found == wanted.to_ascii_lowercase() {
            true => Ok(()),
            false => Err(io::Error::other(format!("the layer has the SHA-256 {found}"))),
        }
    }
}

impl Read for Verified {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        if let Some((hash, _)) = &mut self.hash {
            hash.update(&buffer[..length]);
        }
        Ok(length)
    }
}

fn is_sha256(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Returns the name of this machine's architecture in manifests.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
