//! The other build in a comparison of two builds (`--against`).
//!
//! Owns [`Against`]: another build's fio engine, its papilio program, or both. A name that ends in
//! `.so` is an engine.

use crate::side::Side;
use std::path::{Path, PathBuf};

/// The parts of another build that run in turn with those of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Against {
    /// The fio engine, for [`Side::PapilioOther`].
    pub engine: Option<PathBuf>,
    /// The papilio program, for [`Side::MountOther`].
    pub papilio: Option<PathBuf>,
}

impl Against {
    /// Sorts the paths that the user gave.
    ///
    /// # Errors
    /// Two paths name the same part: returns the second.
    pub fn of(paths: &[PathBuf]) -> Result<Self, &Path> {
        let mut against = Self::default();
        for path in paths {
            let is_engine = path.extension().is_some_and(|extension| extension == "so");
            let part = if is_engine { &mut against.engine } else { &mut against.papilio };
            if part.is_some() {
                return Err(path);
            }
            *part = Some(path.clone());
        }
        Ok(against)
    }

    /// Returns the sides that the other build can run.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        let engine = self.engine.as_ref().map(|_| Side::PapilioOther);
        engine.into_iter().chain(self.papilio.as_ref().map(|_| Side::MountOther))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_sorted_by_their_names() {
        let paths = ["old/papilio".into(), "old/libpapilio_fio.so".into()];
        let both = Against::of(&paths).unwrap();
        assert_eq!((both.papilio.as_ref(), both.engine.as_ref()), (Some(&paths[0]), Some(&paths[1])));
        assert_eq!(both.sides().collect::<Vec<_>>(), [Side::PapilioOther, Side::MountOther]);
        assert_eq!(Against::of(&[]).unwrap().sides().count(), 0);
        let twice = ["a".into(), "b".into()];
        assert_eq!(Against::of(&twice), Err(Path::new("b")));
    }
}
