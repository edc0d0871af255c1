//! `papilio chown`.

use crate::context::Context;
use crate::tree::{Recursion, for_each_inode};
use anyhow::Context as _;
use papilio::{FileKind, SetAttributes};
use std::ffi::OsString;

/// Change owners and groups
///
/// Names are looked up in the user database of the host, which need not be that of the image.
/// Numbers are unambiguous.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// USER, USER:GROUP, USER: (with the user's login group) or :GROUP, by name or number
    #[arg(value_name = "OWNER")]
    owner: String,
    /// The files and directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Change directories with everything below them, and symbolic links themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves
    #[arg(long)]
    no_dereference: bool,
}

/// The new owner and group; `None` keeps the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Args {
    /// Changes the owners.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let owner = parse(&self.owner, &read("/etc/passwd"), &read("/etc/group"))?;
        let follow = !self.no_dereference && !self.recursive;
        let how = Recursion { one_subvolume: false, recursive: self.recursive, follow };
        for_each_inode(context, &self.paths, how, |inode| {
            // The kernel clears set-id bits of files only, so those of a directory are kept.
            let keep = (inode.file_type() == FileKind::Directory).then(|| inode.metadata().permissions());
            inode.set_attributes(&SetAttributes {
                uid: owner.uid,
                gid: owner.gid,
                mode: keep,
                ..SetAttributes::default()
            })
        })
    }
}

fn parse(text: &str, users: &str, groups: &str) -> anyhow::Result<Owner> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let line = |lines: &str, name: &str| -> Option<Vec<String>> {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        lines.lines().map(fields).find(|fields| fields[0] == name)
    };
    let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let record = line(users, user);
    let field = |at: usize| record.as_ref().and_then(|fields| number(fields.get(at)?));
    let uid = match user {
        "" => None,
        user => Some(field(2).or_else(|| number(user)).with_context(|| format!("{user}: no such user"))?),
    };
    let gid = match group {
        None => None,
        Some("") if uid.is_none() => None,
        Some("") => Some(field(3).with_context(|| format!("{user}: no such user, so the group is unknown"))?),
        Some(group) => {
            let known = line(groups, group).and_then(|fields| number(fields.get(2)?));
            Some(known.or_else(|| number(group)).with_context(|| format!("{group}: no such group"))?)
        }
    };
    Ok(Owner { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_parsed() {
        let users = "root:x:0:0:root:/root:/bin/sh\nlisa:x:1000:100::/:\n7:x:8:9::/:\n";
        let groups = "users:x:100:\nstaff:x:50:lisa\n";
        let parsed = |text: &str| parse(text, users, groups).map(|owner| (owner.uid, owner.gid)).ok();
        assert_eq!(parsed("lisa"), Some((Some(1000), None)));
        assert_eq!(parsed("lisa:staff"), Some((Some(1000), Some(50))));
        assert_eq!(parsed("lisa:"), Some((Some(1000), Some(100))));
        assert_eq!(parsed(":77"), Some((None, Some(77))));
        assert_eq!(parsed("5:6"), Some((Some(5), Some(6))));
        assert_eq!(parsed("7"), Some((Some(8), None)), "names precede numbers");
        for wrong in ["nobody here", "lisa:nobody", "5:", "4294967295", "-1"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
