//! The chosen part of an image, and the layers over it.
//!
//! Owns [`choose`]. Without installed layers, an encrypted disk or partition is refused by name,
//! and other layers have no Btrfs superblock.

use super::choice::{ImagePart, PartitionChoice};
use super::disk::{OpenedImage, is_btrfs, partition_device};
use super::format;
use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::layers::{LayerChoice, LayerRequest, layers};
use crate::partition::PartitionDevice;
use papilio_format::PhysicalAddress;
use std::sync::Arc;

/// Returns whether an installed layer lies on a device.
pub(super) fn is_layer(device: &dyn Device) -> bool {
    layers().is_some_and(|layers| layers.is_layer(device))
}

/// Returns whether the program installed layers.
pub(super) fn are_installed() -> bool {
    layers().is_some()
}

/// Returns whether a layer lies on a disk or one of its partitions.
pub(super) fn is_on(image: &OpenedImage) -> bool {
    let partitions = image.table.iter().flat_map(|table| &table.partitions);
    let mut devices = partitions.filter_map(|part| partition_device(Arc::clone(&image.disk), part).ok());
    is_layer(&*image.disk) || devices.any(|device| is_layer(&*device))
}

/// Returns a part of an image as it is, to be overwritten.
pub(super) fn part_itself(image: OpenedImage, part: &ImagePart) -> Result<Arc<dyn Device>, OpenErrorKind> {
    match part {
        ImagePart::Offset(offset) => rest(&image, *offset),
        ImagePart::Number(number) => match image.partition(&PartitionChoice::Number(*number))? {
            Some(partition) => partition_device(Arc::clone(&image.disk), partition),
            None => Ok(image.disk),
        },
        ImagePart::Volume(_) | ImagePart::Top => Err(OpenErrorKind::NoLayers),
    }
}

/// Opens the chosen part of an image, or the device with Btrfs over it.
pub(super) fn choose(
    image: OpenedImage,
    part: Option<ImagePart>,
    request: &LayerRequest<'_>,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let choice = match part {
        None => request.image.partition.clone(),
        Some(ImagePart::Number(number)) => PartitionChoice::Number(number),
        Some(ImagePart::Offset(offset)) => return over(rest(&image, offset)?, request),
        Some(ImagePart::Volume(name)) => {
            return open(image.disk, &LayerRequest { choice: LayerChoice::Volume(&name), ..request.clone() });
        }
        Some(ImagePart::Top) => {
            return open(image.disk, &LayerRequest { choice: LayerChoice::Top, ..request.clone() });
        }
    };
    match (choice, layers()) {
        (PartitionChoice::Whole, _) => Ok(image.disk),
        // A partition that has Btrfs and no layer is taken, as without layers.
        (PartitionChoice::Found, Some(_)) => match image.partition(&PartitionChoice::Found) {
            Ok(Some(partition)) => over(partition_device(Arc::clone(&image.disk), partition)?, request),
            Ok(None) | Err(OpenErrorKind::Encrypted) => over(image.disk, request),
            Err(OpenErrorKind::ChoosePartition(_)) if is_on(&image) => open(image.disk, request),
            Err(error) => Err(error),
        },
        (choice, installed) => {
            let partition = match installed {
                Some(_) => image.any_partition(&choice)?,
                None => image.partition(&choice)?,
            };
            match partition {
                None => Ok(image.disk),
                Some(partition) => over(partition_device(Arc::clone(&image.disk), partition)?, request),
            }
        }
    }
}

/// Returns the device over `base` that is wanted, or `base` itself if no layer lies on it.
fn over(base: Arc<dyn Device>, request: &LayerRequest<'_>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    if is_layer(&*base) {
        return open(base, request);
    }
    match format::is_encrypted(&*base) && !is_btrfs(&*base, PhysicalAddress(0)) {
        true => Err(OpenErrorKind::Encrypted),
        false => Ok(base),
    }
}

fn open(base: Arc<dyn Device>, request: &LayerRequest<'_>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    layers().ok_or(OpenErrorKind::NoLayers)?.open(base, request)
}

/// Returns the bytes of a disk from an offset on.
fn rest(image: &OpenedImage, offset: u64) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let disk = &image.disk;
    let length = disk.size().checked_sub(offset).filter(|length| *length > 0);
    let length = length.ok_or(OpenErrorKind::OffsetPastEnd { offset, size: disk.size() })?;
    let name = format!("{}@+{offset}", disk.name());
    let device = PartitionDevice::new(Arc::clone(disk), name, PhysicalAddress(offset), length);
    Ok(Arc::new(device.map_err(OpenErrorKind::Io)?))
}
