//! `papilio verity`: files whose data is fixed and verified by a Merkle tree.

use super::getfattr::{from_hex, hex};
use crate::context::Context;
use crate::mounted::Target;
use crate::operands::for_each_target;
use crate::output::Output;
use anyhow::{Context as _, bail};
use papilio::{FileKind, FsverityAlgorithm, FsverityOptions};
use std::ffi::OsString;
use std::io::Read;

/// Fix the content of files, and verify it (fs-verity)
///
/// A file with fs-verity can be read, renamed and deleted, but its data never changes again. Every
/// read is verified by a Merkle tree, whose digest stands for the whole content. Kernels before
/// 5.15 mount a file system with such files read-only.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Enable(Enable),
    Measure(Measure),
    Verify(Verify),
}

/// Build the Merkle trees of files, and turn on fs-verity
#[derive(Debug, clap::Args)]
struct Enable {
    /// The files, in images or in mounts
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// The hash algorithm: sha256 or sha512
    #[arg(long, value_name = "ALGORITHM", default_value = "sha256")]
    hash_alg: FsverityAlgorithm,
    /// The size of the blocks that are hashed, in bytes: a power of two from 1024 to the sector
    /// size
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block_size: u32,
    /// A salt of at most 32 bytes, in hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = parse_salt)]
    salt: Option<Salt>,
    /// A file with the signature of the digest, in PKCS#7's DER
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    signature: Option<std::path::PathBuf>,
}

/// Print the digests of files with fs-verity, in the format of fsverity(1)
#[derive(Debug, clap::Args)]
struct Measure {
    /// The files, in images or in mounts
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
}

/// Read files with fs-verity in full, which verifies them
#[derive(Debug, clap::Args)]
struct Verify {
    /// The files, in images or in mounts
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
}

/// A salt.
#[derive(Clone, Debug)]
struct Salt(Vec<u8>);

fn parse_salt(text: &str) -> Result<Salt, &'static str> {
    from_hex(text.as_bytes()).map(Salt).ok_or("a salt is an even number of hexadecimal digits")
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Enable(enable) => enable.run(context),
            Subcommand::Measure(measure) => measure.run(context),
            Subcommand::Verify(verify) => verify.run(context),
        }
    }
}

impl Enable {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut options = FsverityOptions::new().algorithm(self.hash_alg).block_size(self.block_size);
        if let Some(Salt(salt)) = self.salt {
            options = options.salt(salt);
        }
        if let Some(path) = &self.signature {
            options = options.signature(std::fs::read(path).with_context(|| path.display().to_string())?);
        }
        for_each_target(context, &self.paths, Target::parse, |target| match target {
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                let enable = || fs.open_file(&path.path)?.enable_verity(&options, |_| true);
                enable().map_err(|error| context.at(&path, &error))
            }
            Target::Mounted(mounted) => {
                mounted.open()?.enable_verity(&options).map_err(|error| mounted.at(&error))
            }
        })
    }
}

impl Measure {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        for_each_target(context, &self.paths, Target::parse, |target| {
            let (algorithm, digest, name) = match &target {
                Target::Image(path) => {
                    let inode = context.inode(path, true)?;
                    let info = match inode.file_type() {
                        FileKind::Regular => inode.open().and_then(|file| file.verity()),
                        _ => Ok(None),
                    };
                    let info = info.map_err(|error| context.at(path, &error))?;
                    let Some(info) = info else { bail!("{path}: has no fs-verity") };
                    (info.algorithm, info.digest, path.to_bytes())
                }
                Target::Mounted(mounted) => {
                    let measured = mounted.open()?.measure_verity().map_err(|error| mounted.at(&error))?;
                    let Some((algorithm, digest)) = measured else { bail!("{mounted}: has no fs-verity") };
                    (algorithm, digest, mounted.path.as_os_str().as_encoded_bytes().to_vec())
                }
            };
            output.text(format_args!("{algorithm}:{} ", hex(&digest)))?;
            output.name(&name)?;
            Ok(output.bytes(b"\n")?)
        })?;
        Ok(output.finish()?)
    }
}

impl Verify {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        for_each_target(context, &self.paths, Target::parse, |target| match target {
            Target::Image(path) => {
                let inode = context.inode(&path, true)?;
                let file = inode.open().map_err(|error| context.at(&path, &error))?;
                let mut read = || -> papilio::Result<bool> {
                    if file.verity()?.is_none() {
                        return Ok(false);
                    }
                    let mut at = 0;
                    loop {
                        match file.read_at(&mut buffer, at)? {
                            0 => return Ok(true),
                            read => at += read as u64,
                        }
                    }
                };
                match read().map_err(|error| context.at(&path, &error))? {
                    true => Ok(()),
                    false => bail!("{path}: has no fs-verity"),
                }
            }
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                if mount.measure_verity().map_err(|error| mounted.at(&error))?.is_none() {
                    bail!("{mounted}: has no fs-verity");
                }
                let mut file = mount.file();
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => return Ok(()),
                        Ok(_) => {}
                        Err(error) => return Err(mounted.at(&error)),
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_are_hexadecimal() {
        assert_eq!(parse_salt("0aFf").unwrap().0, [0x0a, 0xff]);
        assert!(parse_salt("").unwrap().0.is_empty());
        assert!(parse_salt("0").is_err() && parse_salt("0g").is_err() && parse_salt("é").is_err());
        assert_eq!(hex(&[0x0a, 0xff]), "0aff");
    }
}
