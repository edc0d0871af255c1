//! Which subvolumes share which bytes.
//!
//! Owns [`SpaceSharing`] and [`SubvolumeSpace`].

use crate::paths::decode;
use papilio::{Estimate, TreeId};
use pyo3::prelude::*;

/// The bytes of one subvolume, as they lie on disk, without copies.
#[pyclass(name = "SubvolumeSpace", module = "papilio", frozen, get_all)]
pub struct SubvolumeSpace {
    /// The subvolume's id.
    id: u64,
    /// Its path from the top level; None if it has none.
    path: Option<Py<PyAny>>,
    /// Bytes that it holds, alone or with others.
    referenced: u64,
    /// Of these, bytes of data.
    referenced_data: u64,
    /// Bytes that only it holds.
    exclusive: u64,
    /// Of these, bytes of data.
    exclusive_data: u64,
}

/// Which subvolumes share which bytes, as of when it was made.
#[pyclass(name = "SpaceSharing", module = "papilio", frozen)]
pub struct SpaceSharing(pub papilio::SpaceSharing);

fn ids(ids: Vec<u64>) -> Vec<TreeId> {
    ids.into_iter().map(TreeId).collect()
}

#[pymethods]
impl SpaceSharing {
    /// The space of every subvolume, in the order of creation.
    #[getter]
    fn subvolumes(&self, py: Python<'_>) -> PyResult<Vec<SubvolumeSpace>> {
        let total = |estimate: &Estimate| (estimate.bytes.total(), estimate.bytes.data);
        self.0
            .by_subvolume()
            .iter()
            .map(|space| {
                let path = space.subvolume.path.as_ref();
                let path = path.map(|path| decode(py, &[b"/", &path[..]].concat())).transpose()?;
                let (referenced, referenced_data) = total(&space.referenced);
                let (exclusive, exclusive_data) = total(&space.exclusive);
                Ok(SubvolumeSpace {
                    id: space.subvolume.id.0,
                    path: path.map(Bound::unbind),
                    referenced,
                    referenced_data,
                    exclusive,
                    exclusive_data,
                })
            })
            .collect()
    }

    /// Bytes of all subvolumes together.
    #[getter]
    fn total(&self) -> u64 {
        self.0.total().bytes.total()
    }

    /// The number of tree blocks that could not be read; nothing below them is counted.
    #[getter]
    fn bad_blocks(&self) -> u64 {
        self.0.bad_blocks()
    }

    /// Returns the bytes that deleting these subvolumes, and no others, frees.
    fn freed_by(&self, subvolumes: Vec<u64>) -> u64 {
        self.0.freed_by(&ids(subvolumes)).bytes.total()
    }

    /// Chooses subvolumes whose deletion frees at least `wanted` bytes, the first of `candidates`
    /// first; None if all of them free less.
    fn choose(&self, wanted: u64, candidates: Vec<u64>) -> Option<Vec<u64>> {
        let chosen = self.0.choose(wanted, &ids(candidates))?;
        Some(chosen.into_iter().map(|id| id.0).collect())
    }
}
