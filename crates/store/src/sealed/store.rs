//! `SealedStore`: a store whose objects are encrypted, as the content of these objects.
//!
//! It owns no state. Lengths and ranges are those of the content. The objects that hold keys are
//! none of its own: they are listed, and neither read nor written through it.
//!
//! **Invariant**: an object is reported as empty by name only after that was verified. SlateDB
//! takes an empty part of its log as one without content.

use super::chunks::{Name, ObjectSealer, Sealing, content_length};
use super::fault::SealFault;
use super::keys::is_key_object;
use super::reading::{open_answer, stored_range};
use super::upload::SealedUpload;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;

/// A store whose objects are encrypted.
#[derive(Debug)]
pub(crate) struct SealedStore {
    inner: Arc<dyn ObjectStore>,
    sealing: Arc<Sealing>,
}

impl fmt::Display for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Gives a listed object the length of its content. One with a length that no encrypted object has
/// keeps it, so that nobody takes it for empty; reading it is an error.
fn with_content_length(meta: ObjectMeta) -> ObjectMeta {
    if is_key_object(&meta.location) {
        return meta;
    }
    ObjectMeta { size: content_length(meta.size).unwrap_or(meta.size.max(1)), ..meta }
}

impl SealedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, sealing: Arc<Sealing>) -> Self {
        Self { inner, sealing }
    }

    fn name(&self, path: &Path) -> Result<Name> {
        let name = self.sealing.name(path).filter(|_| !is_key_object(path));
        name.ok_or_else(|| {
            SealFault::new(path, "the object is of another device, whose key is not known").into()
        })
    }

    fn sealer(&self, path: &Path) -> Result<ObjectSealer> {
        let sealer = ObjectSealer::new(Arc::clone(&self.sealing), self.name(path)?);
        Ok(sealer.map_err(|error| SealFault::random(path, &error))?)
    }

    /// Returns the length of an object's content, and nothing else.
    async fn head(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let answer = self.inner.get_opts(path, options).await?;
        let stored = answer.meta.size;
        let length = content_length(stored).ok_or_else(|| SealFault::length(path, stored))?;
        if length == 0 {
            let whole = self.get_opts(path, GetOptions::default()).await?;
            whole.bytes().await?;
        }
        let payload = GetResultPayload::Stream(futures_util::stream::empty().boxed());
        Ok(GetResult {
            payload,
            meta: ObjectMeta { size: length, ..answer.meta },
            range: 0..length,
            attributes: answer.attributes,
            extensions: answer.extensions,
        })
    }
}

#[async_trait]
impl ObjectStore for SealedStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let mut sealer = self.sealer(path)?;
        sealer.push(payload);
        let sealed = sealer.finish().map_err(|error| SealFault::new(path, error.to_string()))?;
        self.inner.put_opts(path, sealed.into(), options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let sealer = self.sealer(path)?;
        let inner = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(SealedUpload::new(inner, path.clone(), sealer)))
    }

    async fn get_opts(&self, path: &Path, mut options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.head(path, options).await;
        }
        let name = self.name(path)?;
        let wanted = options.range.take();
        if let Some(range) = &wanted {
            range.is_valid().map_err(|error| SealFault::new(path, error.to_string()))?;
            options.range = Some(stored_range(range));
        }
        let answer = self.inner.get_opts(path, options).await?;
        open_answer(Arc::clone(&self.sealing), name, path, wanted.as_ref(), answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix).map(|meta| meta.map(with_content_length)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset).map(|meta| meta.map(with_content_length)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await?;
        Ok(ListResult { objects: listed.objects.into_iter().map(with_content_length).collect(), ..listed })
    }

    /// Encrypts the object anew, since its name is authenticated.
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let content = self.get(from).await?.bytes().await?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.put_opts(to, content.into(), PutOptions { mode, ..PutOptions::default() }).await.map(drop)
    }
}
