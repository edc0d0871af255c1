//! Runs a command's work on each of its operands.
//!
//! Invariant: a failure of one operand is reported and the others go on. A wrong operand, a closed
//! pipe and an unwritable standard output end the run.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::{OutputError, is_closed_pipe};
use crate::path::{ImagePath, parse_image_path};
use crate::usage_error::UsageError;
use papilio::FileSystem;
use std::ffi::{OsStr, OsString};

/// Returns whether a path names the root of the file system.
pub fn is_root(path: &ImagePath) -> bool {
    path.path.split(|byte| *byte == b'/').all(|name| matches!(name, b"" | b"." | b".."))
}

/// Like [`for_each_operand`], with each file system open for writing.
pub fn for_each_operand_to_change(
    context: &Context,
    operands: &[OsString],
    mut each: impl FnMut(ImagePath, FileSystem) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for_each_operand(context, operands, |path| {
        let system = context.change(&path.image)?;
        each(path, system)
    })
}

/// Runs `each` for every operand.
pub fn for_each_operand(
    context: &Context,
    operands: &[OsString],
    mut each: impl FnMut(ImagePath) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for_each_parsed(context, operands, parse_image_path, &mut each)
}

/// Like [`for_each_operand`], for operands that may be in a mount.
pub fn for_each_target(
    context: &Context,
    operands: &[OsString],
    parse: impl Fn(&OsStr) -> Result<Target, UsageError>,
    mut each: impl FnMut(Target) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for_each_parsed(context, operands, parse, &mut each)
}

fn for_each_parsed<T>(
    context: &Context,
    operands: &[OsString],
    parse: impl Fn(&OsStr) -> Result<T, UsageError>,
    each: &mut dyn FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for operand in operands {
        match each(parse(operand)?) {
            Ok(()) => {}
            Err(error) if is_closed_pipe(&error) || error.is::<UsageError>() => {
                return Err(error);
            }
            Err(error) if error.is::<OutputError>() => return Err(error),
            Err(error) => context.failure(&error),
        }
    }
    Ok(())
}
