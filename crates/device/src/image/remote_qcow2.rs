//! `RemoteImage`: the disk in a qcow2 image that is itself a device, by the crate imago.
//!
//! It owns the driver of the format, for reading. Before a batch of reads it asks the driver for
//! the places of all of them and tells the device below, so that many requests are in flight
//! although the driver reads one cluster after another.
//!
//! **Invariants**
//! - The driver opens nothing itself. A backing file is opened by the function that the caller
//!   gives, under a relative name without `..`, and for reading only.
//! - A chain has at most [`MAX_FILES`] files, so a loop ends.

use crate::device::{Access, Advice, Device, ReadRequest, check_read, read_only};
use crate::error::OpenErrorKind;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::storage::drivers::CommonStorageHelper;
use imago::{DenyImplicitOpenGate, FormatAccess, Mapping, Storage};
use papilio_format::PhysicalAddress;
use std::fmt;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

/// The most files of a chain of backing files.
const MAX_FILES: usize = 32;

/// Opens the file of a name beside another device.
pub(super) type OpenSibling<'a> = dyn Fn(&dyn Device, &str) -> Result<Arc<dyn Device>, OpenErrorKind> + 'a;

type Disk = Arc<FormatAccess<DeviceStorage>>;

/// A device as the driver's storage.
#[derive(Debug)]
struct DeviceStorage {
    device: Arc<dyn Device>,
    helper: CommonStorageHelper,
}

impl DeviceStorage {
    fn new(device: Arc<dyn Device>) -> Self {
        Self { device, helper: CommonStorageHelper::default() }
    }
}

impl fmt::Display for DeviceStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.name())
    }
}

impl Storage for DeviceStorage {
    fn size(&self) -> io::Result<u64> {
        Ok(self.device.size())
    }

    unsafe fn pure_readv(&self, mut vector: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let length = usize::try_from(vector.len()).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        // Past the end there are zeros.
        let inside = self.device.size().saturating_sub(offset).min(length as u64) as usize;
        self.device.read_at(&mut bytes[..inside], PhysicalAddress(offset))?;
        vector.copy_from_slice(&bytes);
        Ok(())
    }

    unsafe fn pure_writev(&self, _: IoVector<'_>, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }
}

/// The disk in an image.
#[derive(Debug)]
pub(super) struct RemoteImage {
    name: String,
    size: u64,
    disk: FormatAccess<DeviceStorage>,
}

fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: "qcow2", reason: reason.into() }
}

/// Opens a qcow2 image in a device.
pub(super) fn open(device: Arc<dyn Device>, sibling: &OpenSibling<'_>) -> Result<RemoteImage, OpenErrorKind> {
    let name = device.name().to_owned();
    let disk = FormatAccess::new(driver(device, sibling, 1)?);
    Ok(RemoteImage { name, size: disk.size(), disk })
}

fn driver(
    device: Arc<dyn Device>,
    sibling: &OpenSibling<'_>,
    files: usize,
) -> Result<Qcow2<DeviceStorage, Disk>, OpenErrorKind> {
    if files > MAX_FILES {
        return Err(fault(format!("its chain has more than {MAX_FILES} files, or is a loop")));
    }
    let name = device.name().to_owned();
    let failed = |error: io::Error| fault(format!("{name}: {error}"));
    let storage = DeviceStorage::new(Arc::clone(&device));
    let mut image = Qcow2::<DeviceStorage, Disk>::open_image(storage, false).map_err(failed)?;
    if image.requires_external_data_file() {
        return Err(fault("it has a data file of its own, which is not supported for an image at a URL"));
    }
    image.set_data_file(None);
    let backing = match image.implicit_backing_file().cloned() {
        None => None,
        Some(named) => {
            check_name(&named)?;
            let below = sibling(&*device, &named)
                .map_err(|kind| fault(format!("it needs {named:?} beside it: {kind}")))?;
            let is_qcow2 = match image.implicit_backing_format().map(String::as_str) {
                Some("qcow2") => true,
                Some("raw" | "file") => false,
                Some(other) => return Err(fault(format!("its backing file has the format {other:?}"))),
                // Images of QEMU before 6.1 need not say.
                None => {
                    let mut magic = [0; 4];
                    below.size() >= 4
                        && below
                            .read_at(&mut magic, PhysicalAddress(0))
                            .map_err(OpenErrorKind::Io)
                            .map(|()| &magic == b"QFI\xfb")?
                }
            };
            Some(Arc::new(if is_qcow2 {
                FormatAccess::new(driver(below, sibling, files + 1)?)
            } else {
                let raw = Raw::open_image(DeviceStorage::new(below), false);
                FormatAccess::new(raw.map_err(OpenErrorKind::Io)?)
            }))
        }
    };
    image.set_backing(backing);
    // Opens nothing that was not set above.
    image.open_implicit_dependencies_gated(DenyImplicitOpenGate::default()).map_err(failed)?;
    Ok(image)
}

/// Refuses names that lead out of the directory of the image. No option lifts this: the name would
/// mean another server, or a file of this host.
fn check_name(name: &str) -> Result<(), OpenErrorKind> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !inside || name.contains([':', '?', '#', '%']) {
        return Err(fault(format!("it names {name:?}, which is not a file beside it")));
    }
    Ok(())
}

impl RemoteImage {
    /// Tells the device below which of its ranges a read will need.
    fn announce(&self, offset: u64, length: u64) {
        let mut at = offset;
        let end = offset + length;
        while at < end {
            // A failure is reported by the read itself.
            let Ok((mapping, length)) = self.disk.get_mapping(at, end - at) else { return };
            if length == 0 {
                return;
            }
            if let Mapping::Raw { storage, offset, .. } = mapping {
                storage.device.advise(PhysicalAddress(offset), length, Advice::WillNeed);
            }
            at += length;
        }
    }
}

impl Device for RemoteImage {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        self.announce(offset.get(), buffer.len() as u64);
        self.disk.read(buffer, offset.get())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        /// Bytes that are announced before they are read.
        const AT_ONCE: usize = 8 << 20;
        let mut rest = requests;
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|request| {
                bytes += request.buffer.len();
                bytes <= AT_ONCE
            });
            let count = count.count().max(1);
            let (batch, after) = rest.split_at_mut(count);
            for request in &*batch {
                if check_read(self.size, request.offset, request.buffer.len()).is_ok() {
                    self.announce(request.offset.get(), request.buffer.len() as u64);
                }
            }
            for request in batch {
                request.result = self.read_at(request.buffer, request.offset);
            }
            rest = after;
        }
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        if advice == Advice::WillNeed && offset.get() < self.size {
            let length = if length == 0 { self.size } else { length };
            self.announce(offset.get(), length.min(self.size - offset.get()));
        }
    }
}
