//! `papilio stat`: the fields of stat(1), and those that only Btrfs has.

use crate::context::Context;
use crate::operands::for_each_operand;
use crate::output::{
    JsonArray, Output, disk_bytes, is_device, json_bytes, json_inode, kind_words, mode_letters,
};
use crate::path::ImagePath;
use crate::time;
use papilio::{FileKind, FileSystem, Inode};
use serde_json::json;
use std::ffi::OsString;

/// Show the metadata of files
///
/// Symbolic links are not followed without -L. Owners are shown as numbers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files; IMAGE alone means its root directory
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::FilePath)]
    paths: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// The facts that are shown of an inode.
struct Facts {
    path: ImagePath,
    inode: Inode,
    link_target: Option<Vec<u8>>,
    xattrs: Vec<papilio::Xattr>,
    extents: Option<u64>,
    flags: Vec<String>,
}

impl Args {
    /// Shows the operands.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_operands(&self.paths);
        let mut output = Output::new()?;
        let mut array = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        for_each_operand(context, &self.paths, |path| {
            let inode = context.inode(&path, self.dereference)?;
            let system = context.open(&path.image)?;
            let facts = Facts::collect(context, path, inode)?;
            match &mut array {
                Some(array) => Ok(array.push(&mut output, &facts.to_json(&system))?),
                None => facts.print(&mut output, &system),
            }
        })?;
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

impl Facts {
    fn collect(context: &Context, path: ImagePath, inode: Inode) -> anyhow::Result<Self> {
        let at = |error: papilio::Error| context.at(&path, &error);
        let kind = inode.metadata().file_type();
        let link_target = match kind {
            FileKind::Symlink => Some(inode.read_link().map_err(at)?),
            _ => None,
        };
        let extents = match kind {
            FileKind::Regular => {
                let file = inode.open().map_err(at)?;
                Some(file.fiemap(0).map_err(at)?.len() as u64)
            }
            _ => None,
        };
        let xattrs = inode.xattrs().map_err(at)?;
        let flags = inode.metadata().flags();
        let known = flags.iter_names().map(|(name, _)| name.to_ascii_lowercase());
        let unknown = flags.iter().map(|flag| flag.bits()).fold(0, |all, flag| all | flag)
            & !flags.iter_names().fold(0, |all, (_, flag)| all | flag.bits());
        let unknown = (unknown != 0).then(|| format!("{unknown:#x}"));
        let flags = known.chain(unknown).collect();
        Ok(Self { path, inode, link_target, xattrs, extents, flags })
    }

    fn to_json(&self, system: &FileSystem) -> serde_json::Value {
        let mut object = json_inode(&self.path.path, &self.inode);
        if let Some(target) = &self.link_target {
            json_bytes(&mut object, "target", target);
        }
        object.insert("file_system".into(), system.uuid().to_string().into());
        object.insert("generation".into(), self.inode.metadata().generation().0.into());
        object.insert("flags".into(), json!(self.flags));
        if let Some(extents) = self.extents {
            object.insert("extents".into(), extents.into());
        }
        let xattrs = self.xattrs.iter().map(|xattr| {
            let mut object = serde_json::Map::new();
            json_bytes(&mut object, "name", &xattr.name);
            json_bytes(&mut object, "value", &xattr.value);
            serde_json::Value::Object(object)
        });
        object.insert("xattrs".into(), xattrs.collect());
        object.into()
    }

    fn print(&self, output: &mut Output, system: &FileSystem) -> anyhow::Result<()> {
        let metadata = self.inode.metadata();
        output.bytes(b"  File: ")?;
        output.name(&self.path.to_bytes())?;
        if let Some(target) = &self.link_target {
            output.bytes(b" -> ")?;
            output.name(target)?;
        }
        output.text(format_args!(
            "\n  Size: {:<15} Blocks: {:<10} {}\n",
            metadata.size(),
            disk_bytes(&self.inode) / 512,
            kind_words(metadata.file_type())
        ))?;
        let (major, minor) = metadata.rdev();
        let device = match is_device(metadata) {
            true => format!(" Device type: {major},{minor}"),
            false => String::new(),
        };
        output.text(format_args!(
            "  Tree: {:<15} Inode: {:<11} Links: {}{device}\nAccess: ({:04o}/{})  Uid: {}   Gid: {}\n",
            self.inode.tree().0,
            self.inode.number().0,
            metadata.nlink(),
            metadata.mode() & 0o7777,
            mode_letters(metadata.file_type(), metadata.mode()),
            metadata.uid(),
            metadata.gid(),
        ))?;
        let times = [
            ("Access", metadata.atime()),
            ("Modify", metadata.mtime()),
            ("Change", metadata.ctime()),
            (" Birth", metadata.btime()),
        ];
        for (name, moment) in times {
            output.text(format_args!("{name}: {}\n", time::full(moment)))?;
        }
        let flags = if self.flags.is_empty() { "none".into() } else { self.flags.join(",") };
        output.text(format_args!(
            " Btrfs: {}, generation {}, flags {flags}",
            system.uuid(),
            metadata.generation().0
        ))?;
        if let Some(extents) = self.extents {
            output.text(format_args!(", {extents} extents"))?;
        }
        output.bytes(b"\n")?;
        for xattr in &self.xattrs {
            output.bytes(b" Xattr: ")?;
            output.name(&xattr.name)?;
            output.text(format_args!(" ({} bytes)\n", xattr.value.len()))?;
        }
        Ok(())
    }
}
