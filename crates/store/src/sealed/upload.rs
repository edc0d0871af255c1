//! Encrypted objects that are sent in parts.

use super::chunks::{CHUNK, ObjectSealer};
use super::fault::SealFault;
use async_trait::async_trait;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

/// Bytes that wait before a part is sent. Stores take no part of less than 5 MiB but the last.
const PART: u64 = 6 << 20;

/// An upload in parts, each of whole chunks.
#[derive(Debug)]
pub(super) struct SealedUpload {
    inner: Box<dyn MultipartUpload>,
    path: Path,
    /// `None` once the object is complete.
    sealer: Option<ObjectSealer>,
}

impl SealedUpload {
    pub(super) fn new(inner: Box<dyn MultipartUpload>, path: Path, sealer: ObjectSealer) -> Self {
        Self { inner, path, sealer: Some(sealer) }
    }

    fn failed(&self, error: &std::io::Error) -> object_store::Error {
        SealFault::new(&self.path, error.to_string()).into()
    }
}

#[async_trait]
impl MultipartUpload for SealedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let sealed = match &mut self.sealer {
            Some(sealer) => {
                sealer.push(data);
                if sealer.pending() < PART + CHUNK {
                    return Box::pin(std::future::ready(Ok(())));
                }
                sealer.seal_whole()
            }
            None => Err(std::io::Error::other("a part after the end of the object")),
        };
        match sealed {
            Ok(sealed) => self.inner.put_part(sealed.into()),
            Err(error) => Box::pin(std::future::ready(Err(self.failed(&error)))),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        // A caller that repeats the call has sent the last part already.
        if let Some(sealer) = self.sealer.take() {
            let last = sealer.finish().map_err(|error| self.failed(&error))?;
            self.inner.put_part(last.into()).await?;
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
