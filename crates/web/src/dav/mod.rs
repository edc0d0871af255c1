//! WebDAV, classes 1 and 2 (RFC 4918).
//!
//! - `request`: depth, destination, conditions and locks of a request
//! - `if_header`, `xml`: headers and bodies of clients; `locks`: the locks they hold
//! - `properties`, `propfind`, `proppatch`, `locking`, `change`: the methods

pub(crate) mod change;
pub(crate) mod if_header;
pub(crate) mod locking;
pub(crate) mod locks;
pub(crate) mod properties;
pub(crate) mod propfind;
pub(crate) mod proppatch;
pub(crate) mod request;
pub(crate) mod xml;
