//! `Object`: one object of a store, whose ranges can be read.
//!
//! It owns the client, the object's size and its ETag, and turns the client's errors into those of
//! the device. Every error names the object.
//!
//! **Invariant**: a range comes from the state of the object that [`Object::open`] found, or is an
//! error. A strong ETag goes into each request as `If-Match`. The ETag and the size of each answer
//! are compared too, for servers that ignore the header, and for weak ETags, which no server
//! matches.

use crate::sealed::SealFault;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
};
use papilio_device::{OpenErrorKind, RemoteOptions};
use std::error::Error;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// An object of a store.
#[derive(Debug)]
pub(super) struct Object {
    /// The URL without its query, which may be a secret.
    pub(super) name: String,
    /// Names the place of the object for the cache: the store's address and the URL.
    place: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    pub(super) size: u64,
    tag: Option<String>,
    modified: i64,
}

/// The parts of a URL.
pub(crate) struct Location<'a> {
    pub(crate) scheme: String,
    /// The host with its port, or the bucket or container.
    pub(crate) authority: &'a str,
    pub(crate) path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Location<'a> {
    pub(crate) fn parse(url: &'a str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it is no URL")?;
        if rest.contains('#') {
            return Err("a URL of an image has no fragment; write %23 for a number sign".to_owned());
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("a name and password in a URL are not supported".to_owned());
        }
        if authority.is_empty() || path.is_empty() {
            return Err("the URL names no object: SCHEME://HOST-OR-BUCKET/PATH is needed".to_owned());
        }
        let scheme = scheme.to_ascii_lowercase();
        if query.is_some() && !matches!(scheme.as_str(), "http" | "https") {
            return Err(format!("{scheme}:// URLs have no query; write %3F for a question mark"));
        }
        Ok(Self { scheme, authority, path, query })
    }
}

fn client(options: &RemoteOptions) -> (ClientOptions, RetryConfig) {
    let client = ClientOptions::new()
        .with_timeout(options.timeout)
        .with_connect_timeout(CONNECT.min(options.timeout))
        .with_allow_http(true);
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: options.retries,
        retry_timeout: options.timeout * 3,
    };
    (client, retry)
}

/// Makes the client of a store. Returns it with the store's address, where that is not in the URL.
fn store(
    location: &Location<'_>,
    options: &RemoteOptions,
) -> object_store::Result<(Arc<dyn ObjectStore>, String)> {
    let (client, retry) = client(options);
    let name = location.authority;
    Ok(match location.scheme.as_str() {
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(name);
            let address = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
            let store = builder.with_client_options(client).with_retry(retry).build()?;
            (Arc::new(store), address)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(name);
            let address = builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
            (Arc::new(builder.with_client_options(client).with_retry(retry).build()?), address)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(name);
            let value = |key| builder.get_config_value(&key).unwrap_or_default();
            let address =
                format!("{} {}", value(AzureConfigKey::Endpoint), value(AzureConfigKey::AccountName));
            (Arc::new(builder.with_client_options(client).with_retry(retry).build()?), address)
        }
        scheme => {
            let query = location.query.map_or_else(String::new, |query| format!("?{query}"));
            let url = format!("{scheme}://{name}/{query}");
            let builder = HttpBuilder::new().with_url(url).with_client_options(client).with_retry(retry);
            (Arc::new(builder.build()?), String::new())
        }
    })
}

/// Makes the client of the store that a URL names.
pub(crate) fn object_store(
    location: &Location<'_>,
    options: &RemoteOptions,
) -> Result<Arc<dyn ObjectStore>, OpenErrorKind> {
    // The runtime's start chooses the provider of TLS, which a client needs.
    super::runtime::runtime().map_err(OpenErrorKind::Io)?;
    let made = store(location, options).map_err(|error| {
        let (kind, reason) = describe(&error, &location.scheme);
        OpenErrorKind::Io(io::Error::new(kind, reason))
    });
    made.map(|(store, _)| store)
}

impl Object {
    /// Finds the object that a URL names, and reads its first `first` bytes, or fewer if it is
    /// shorter.
    pub(super) async fn open(
        url: &str,
        options: &RemoteOptions,
        first: u64,
    ) -> Result<(Self, Vec<u8>), OpenErrorKind> {
        let location = Location::parse(url).map_err(OpenErrorKind::Remote)?;
        let name = url.split('?').next().unwrap_or(url).to_owned();
        let failed = |error: object_store::Error| match error {
            object_store::Error::NotFound { .. } => OpenErrorKind::NotFound,
            error => {
                let (kind, reason) = describe(&error, &location.scheme);
                OpenErrorKind::Io(io::Error::new(kind, reason))
            }
        };
        let path = Path::from_url_path(location.path)
            .map_err(|error| OpenErrorKind::Remote(format!("its path is not valid: {error}")))?;
        let (store, address) = store(&location, options).map_err(failed)?;
        let get = GetOptions { range: Some(GetRange::Bounded(0..first)), ..GetOptions::default() };
        let answer = store.get_opts(&path, get).await.map_err(failed)?;
        let ObjectMeta { size, ref e_tag, last_modified, .. } = answer.meta;
        let (tag, modified) = (e_tag.clone(), last_modified.timestamp());
        let place = format!("{address} {name}");
        let start = answer.bytes().await.map_err(failed)?;
        if start.len() as u64 != size.min(first) {
            return Err(OpenErrorKind::Remote(short(start.len(), size.min(first))));
        }
        Ok((Self { name, place, store, path, size, tag, modified }, start.to_vec()))
    }

    /// Names this state of the object for the cache on disk. `None` if nothing tells it from
    /// another one for certain.
    pub(super) fn cache_key(&self) -> Option<String> {
        let tag = self.strong_tag()?;
        Some(format!("{}\n{tag}\n{}", self.place, self.size))
    }

    fn strong_tag(&self) -> Option<&String> {
        self.tag.as_ref().filter(|tag| !tag.starts_with("W/"))
    }

    /// Reads a range, which lies within the object.
    pub(super) async fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let scheme = self.name.split("://").next().unwrap_or_default();
        let failed = |error: object_store::Error| {
            let (kind, reason) = describe(&error, scheme);
            self.error(kind, &reason, &range)
        };
        let get = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: self.strong_tag().cloned(),
            ..GetOptions::default()
        };
        let answer = self.store.get_opts(&self.path, get).await.map_err(failed)?;
        let meta = &answer.meta;
        if meta.size != self.size || meta.e_tag != self.tag || meta.last_modified.timestamp() != self.modified
        {
            return Err(self.error(io::ErrorKind::StaleNetworkFileHandle, CHANGED, &range));
        }
        let bytes = answer.bytes().await.map_err(failed)?;
        let wanted = range.end - range.start;
        if bytes.len() as u64 != wanted {
            return Err(self.error(io::ErrorKind::InvalidData, &short(bytes.len(), wanted), &range));
        }
        Ok(bytes.to_vec())
    }

    fn error(&self, kind: io::ErrorKind, reason: &str, range: &Range<u64>) -> io::Error {
        let (name, start, length) = (&self.name, range.start, range.end - range.start);
        io::Error::new(kind, format!("{name}: {length} bytes at {start}: {reason}"))
    }
}

const CHANGED: &str = "the object has changed since it was opened";

fn short(found: usize, wanted: u64) -> String {
    format!("the server sent {found} bytes where {wanted} were asked for")
}

/// Returns the kind of a client's error and its reason, without the object's name.
pub(crate) fn describe(error: &object_store::Error, scheme: &str) -> (io::ErrorKind, String) {
    use object_store::Error as E;
    if let Some(fault) = SealFault::find(error) {
        return (io::ErrorKind::InvalidData, fault.reason().to_owned());
    }
    match error {
        E::NotFound { .. } => (io::ErrorKind::NotFound, "the object is gone".to_owned()),
        E::Precondition { .. } | E::NotModified { .. } => {
            (io::ErrorKind::StaleNetworkFileHandle, CHANGED.to_owned())
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => (
            io::ErrorKind::PermissionDenied,
            format!("the store denies access{}; it says: {}", hint(scheme), innermost(error)),
        ),
        E::NotSupported { .. } => (
            io::ErrorKind::Unsupported,
            "the server sends only whole objects and no ranges; download the image instead".to_owned(),
        ),
        _ => {
            let reason = innermost(error);
            let lower = reason.to_ascii_lowercase();
            let instance = lower.contains("169.254.169.254") || lower.contains("/latest/api/token");
            let hint = if lower.contains("credential") || instance { hint(scheme) } else { "" };
            let kind = if lower.contains("timed out") || lower.contains("timeout") {
                io::ErrorKind::TimedOut
            } else {
                io::ErrorKind::Other
            };
            (kind, format!("{reason}{hint}"))
        }
    }
}

/// Says where the credentials of a store come from.
fn hint(scheme: &str) -> &'static str {
    match scheme {
        "s3" => {
            " (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket)"
        }
        "gs" => " (set GOOGLE_SERVICE_ACCOUNT to the file of a key, or GOOGLE_SKIP_SIGNATURE=true)",
        "az" => " (set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)",
        _ => "",
    }
}

/// Returns the messages of an error and of its causes, each once, in one line. Query strings are
/// left out, since a signature may be in them.
pub(crate) fn innermost(error: &dyn Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = without_queries(&error.to_string());
        // An outer message often ends with the inner one.
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    let text = parts.join(": ").split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(600).collect()
}

fn without_queries(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut skipping = false;
    for character in text.chars() {
        let ends = character.is_whitespace() || matches!(character, '"' | '\'' | ')' | '>' | ',');
        match character {
            _ if skipping && !ends => continue,
            '?' => skipping = true,
            _ => {
                skipping = false;
                out.push(character);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_an_object_are_refused() {
        let parse = |url| Location::parse(url).map(|location| location.path.to_owned());
        assert_eq!(parse("s3://bucket/a/b.img").unwrap(), "a/b.img");
        assert_eq!(parse("http://host:80/a?b=c").unwrap(), "a");
        for url in ["s3://", "s3:///a", "s3://bucket", "s3://bucket/", "s3://b/k?v", "http://u:p@h/a"] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn messages_have_no_queries() {
        assert_eq!(
            without_queries("error for url (http://h/a?sig=secret): timed out"),
            "error for url (http://h/a): timed out"
        );
    }
}
