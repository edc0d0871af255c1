//! Files that were deleted and that older states of the file system still have.
//!
//! Owns the search for `ls --deleted` and `restore --deleted`, and the listing of the first.

use crate::context::Context;
use crate::output::{JsonArray, Output, human_size, json_bytes, kind_words};
use crate::path::parse_image_path;
use papilio::{DeletedFile, OpenOptions};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Finds the deleted files of the file system on `image`, by path.
///
/// # Errors
/// The devices cannot be opened, or have no file system.
pub fn find(context: &Context, image: &Path, options: &OpenOptions) -> anyhow::Result<Vec<DeletedFile>> {
    let devices = context.devices(image)?;
    let scan = context.scan(&devices)?;
    Ok(papilio::find_deleted(&devices, options, &scan)?)
}

/// Lists the deleted files below the operands.
///
/// # Errors
/// As [`find`].
pub fn list(context: &Context, operands: &[OsString], json: bool, human: bool) -> anyhow::Result<()> {
    let mut output = Output::new()?;
    let mut array = match json {
        true => Some(JsonArray::begin(&mut output)?),
        false => None,
    };
    for operand in operands {
        let place = parse_image_path(operand)?;
        let files = find(context, &place.image, &context.options_for(&place.image))?;
        let below = place.path.strip_prefix(b"/").unwrap_or(&place.path);
        let below = below.strip_suffix(b"/").unwrap_or(below);
        for file in files.iter().filter(|file| is_below(&file.path, below)) {
            if let Some(array) = &mut array {
                array.push(&mut output, &Value::Object(json_of(file)))?;
                continue;
            }
            let size = if human { human_size(file.size) } else { file.size.to_string() };
            let DeletedFile { generation, tree_root, inode, .. } = file;
            output.text(format_args!("{generation:>8} {tree_root:>12} {inode:>8} {size:>12} "))?;
            output.name(&[b"/", &file.path[..]].concat())?;
            output.bytes(b"\n")?;
        }
    }
    if let Some(array) = array {
        array.end(&mut output)?;
    }
    Ok(output.finish()?)
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

fn json_of(file: &DeletedFile) -> Map<String, Value> {
    let mut object = Map::new();
    json_bytes(&mut object, "path", &[b"/", &file.path[..]].concat());
    let facts = json!({
        "kind": kind_words(file.kind),
        "size": file.size,
        "inode": file.inode.0,
        "subvolume": file.tree.0,
        "mtime": { "seconds": file.mtime.seconds, "nanoseconds": file.mtime.nanoseconds },
        "generation": file.generation.0,
        "tree_root": file.tree_root.0,
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    object
}

/// Returns the directory below `base` and the name under which a deleted file is restored. Of
/// several files that had the same path, older ones get their generation as a suffix.
pub fn place_of(base: &Path, file: &DeletedFile, taken: &mut BTreeSet<Vec<u8>>) -> (PathBuf, Vec<u8>) {
    let path = Path::new(OsStr::from_bytes(&file.path));
    let parent = path.parent().map_or_else(|| base.to_owned(), |parent| base.join(parent));
    let mut name = path.file_name().unwrap_or_default().as_bytes().to_vec();
    if !taken.insert(file.path.clone()) {
        name.extend(format!(".{}", file.generation).bytes());
    }
    (parent, name)
}
