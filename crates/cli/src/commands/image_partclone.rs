//! `papilio image restore` of images of partclone, also as Clonezilla keeps them.

use super::image_target::{RestoreArgs, add_target, advance, bar, finish};
use crate::context::Context;
use crate::output::Output;
use crate::usage_error::UsageError;
use anyhow::{Context as _, bail};
use papilio::ImageTargets;
use papilio::partclone::{PartcloneReader, open_parts, restore_partclone};
use std::io::Read;
use std::path::Path;

/// The bytes of an image, decompressed and joined.
type Input = Box<dyn Read + Send>;

/// Opens an image of partclone; `None` for any other file.
pub fn recognise(path: &Path) -> anyhow::Result<Option<Input>> {
    if path == Path::new("-") {
        return Ok(None);
    }
    open_parts(path).with_context(|| format!("{}: cannot open", path.display()))
}

/// Restores an image.
pub fn restore(context: &Context, arguments: &RestoreArgs, input: Input) -> anyhow::Result<()> {
    let name = arguments.dump.display().to_string();
    if !arguments.parent.is_empty() {
        return Err(UsageError::new("--parent is for archives").into());
    }
    let [image] = &arguments.images[..] else {
        bail!("{name}: an image of partclone has one device, {} were given", arguments.images.len());
    };
    if arguments.size.len() > 1 {
        return Err(UsageError::new("--size is needed once").into());
    }
    let mut reader =
        PartcloneReader::new(input, &name).map_err(|error| anyhow::Error::msg(error.to_string()))?;
    let size = reader.layout().device_size();
    let mut targets = ImageTargets::new();
    let wanted = arguments.size.first().copied().unwrap_or(size);
    add_target(&mut targets, image, wanted, arguments.force)?;
    let bar = bar(context);
    let written = restore_partclone(&mut reader, &targets.devices()[0], &std::env::temp_dir(), |done| {
        advance(bar.as_ref(), done, size)
    });
    finish(context, bar);
    let written = written.map_err(crate::holder::explain)?;
    targets.keep();
    context.changed_devices.note(&arguments.images);
    context.note(format_args!(
        "partclone saves one copy of metadata: `papilio scrub start {}` writes a second one that \
         is missing",
        image.display()
    ));
    if context.verbosity > 0 {
        let mut output = Output::new()?;
        output.text(format_args!("{written} bytes restored\n"))?;
        output.finish()?;
    }
    Ok(())
}
