//! The disk in one sparse VMDK file.

use super::super::sparse::{Growing, SparseDevice, Units};
use super::content::fault;
use super::grains::GrainTables;
use super::header::{SECTOR, SparseHeader, ZERO_GRAIN};
use super::stream::StreamDevice;
use crate::device::Device;
use crate::error::OpenErrorKind;
use std::sync::Arc;

/// Opens a sparse image for reading.
pub(in super::super) fn open(file: Arc<dyn Device>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let header = SparseHeader::open(&*file)?;
    let grains = header.grains(&*file)?.places;
    match header.compressed() {
        true => Ok(Arc::new(StreamDevice::new(file, &header, grains))),
        false => Ok(Arc::new(SparseDevice::reader(file, units(&header, grains)))),
    }
}

/// Opens a sparse image for reading and writing.
pub(in super::super) fn open_writable(file: Arc<dyn Growing>) -> Result<SparseDevice, OpenErrorKind> {
    let header = SparseHeader::open(&*file)?;
    if header.compressed() || header.at_end {
        return Err(OpenErrorKind::UnsupportedFormat(
            "vmdk",
            "a compressed one can only be opened for reading",
        ));
    }
    let grains = header.grains(&*file)?;
    let tables = GrainTables::new(&*file, &header, grains.tables)?;
    let reserved = [(0, header.overhead * SECTOR)];
    SparseDevice::writer(file, units(&header, grains.places), &reserved, Box::new(tables)).map_err(fault)
}

fn units(header: &SparseHeader, grains: Vec<u32>) -> Units {
    // A grain that the image calls zero is as good as absent.
    let places = grains.into_iter().map(|grain| if grain == ZERO_GRAIN { 0 } else { grain });
    Units { size: header.size, unit: header.grain, granule: SECTOR, places: places.collect() }
}
