//! `papilio cat`: the bytes of files. For large files, one thread reads and verifies while another
//! writes.

use crate::context::Context;
use crate::operands::for_each_operand;
use crate::output::Output;
use crate::path::ImagePath;
use papilio::{FileKind, PathError};
use std::ffi::OsString;
use std::sync::mpsc::sync_channel;

/// The number of bytes to read at once.
const CHUNK: usize = 1 << 20;

/// The number of bytes to read at once of a chunk that cannot be read as a whole.
const PIECE: usize = 4096;

/// Write the content of files to standard output
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<OsString>,
}

impl Args {
    /// Writes the files in order.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_operands(&self.files);
        let mut output = Output::new()?;
        for_each_operand(context, &self.files, |path| cat(context, &mut output, &path))?;
        Ok(output.finish()?)
    }
}

fn cat(context: &Context, output: &mut Output, path: &ImagePath) -> anyhow::Result<()> {
    let inode = context.inode(path, true)?;
    match inode.metadata().file_type() {
        FileKind::Regular => {}
        FileKind::Directory => anyhow::bail!("{path}: {}", PathError::IsADirectory),
        _ => anyhow::bail!("{path}: {}", PathError::NotAFile),
    }
    let file = inode.open().map_err(|error| context.at(path, &error))?;
    let length = file.len();
    let read = |offset: u64, mut chunk: Vec<u8>| {
        let wanted = usize::try_from(length - offset).map_or(CHUNK, |left| left.min(CHUNK));
        chunk.resize(wanted, 0);
        let got = file.read_at(&mut chunk, offset).or_else(|error| {
            // The bytes before the fault are written.
            let mut good = 0;
            for piece in chunk.chunks_mut(PIECE) {
                match file.read_at(piece, offset + good as u64) {
                    Ok(got) => good += got,
                    Err(error) if good == 0 => return Err(error),
                    Err(_) => return Ok(good),
                }
            }
            // It could be read this time.
            if good > 0 { Ok(good) } else { Err(error) }
        })?;
        chunk.truncate(got);
        Ok::<_, papilio::Error>(chunk)
    };
    if length <= CHUNK as u64 {
        let mut offset = 0;
        while offset < length {
            let content = read(offset, Vec::new()).map_err(|error| context.at(path, &error))?;
            if content.is_empty() {
                break;
            }
            offset += content.len() as u64;
            output.bytes(&content)?;
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let (filled, chunks) = sync_channel(4);
        let (spent, spares) = std::sync::mpsc::channel::<Vec<u8>>();
        scope.spawn(move || {
            let mut offset = 0;
            while offset < length {
                let chunk = read(offset, spares.try_recv().unwrap_or_default());
                let got = chunk.as_ref().map_or(0, Vec::len) as u64;
                // The writer hangs up when it cannot write any more.
                if filled.send(chunk).is_err() || got == 0 {
                    return;
                }
                offset += got;
            }
        });
        for chunk in chunks {
            let chunk = chunk.map_err(|error| context.at(path, &error))?;
            output.bytes(&chunk)?;
            // The reader may have finished already.
            let _ = spent.send(chunk);
        }
        Ok(())
    })
}
