//! `Guard`: the secret, the host and the origin that a request must have.
//!
//! - A client proves that it knows the secret: a token in the URL, which becomes a cookie, or any
//!   user name with the secret as password (RFC 7617).
//! - `Host` must name the server. A page elsewhere whose name leads here (DNS rebinding) has a
//!   `Host` of its own.
//! - A request that changes something must not come from a page elsewhere (`Origin`,
//!   `Sec-Fetch-Site`). Cookies and passwords are sent with such requests, too.
//!
//! **Invariant**: secrets are compared in constant time, and are in no message.

use crate::head::{Head, HeadFault};
use crate::random;
use crate::reply::Refusal;
use crate::text::is_same_secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The most bytes of credentials.
const CREDENTIALS_MOST: usize = 4096;

/// The secret of a server.
#[derive(Clone)]
pub struct Secret {
    value: Vec<u8>,
    is_token: bool,
}

impl Secret {
    /// A new random token, for the URL that the server prints.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let value = random::digits::<24>()?;
        Ok(Self { value: value.into_bytes(), is_token: true })
    }

    /// A password that people chose. `None` if it is empty.
    pub fn password(value: &[u8]) -> Option<Self> {
        (!value.is_empty()).then(|| Self { value: value.to_vec(), is_token: false })
    }

    /// Returns the token, if the secret is one.
    pub fn token(&self) -> Option<&str> {
        std::str::from_utf8(&self.value).ok().filter(|_| self.is_token)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The result of looking at the credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Given,
    /// The token in the URL is right: a cookie takes its place.
    TokenInUrl,
    Missing,
    Wrong,
}

#[derive(Debug)]
pub(crate) struct Guard {
    secret: Secret,
    address: SocketAddr,
    is_tls: bool,
    /// Further names by which clients reach the server.
    hosts: Vec<String>,
}

impl Guard {
    pub(crate) fn new(secret: Secret, address: SocketAddr, is_tls: bool, hosts: Vec<String>) -> Self {
        Self { secret, address, is_tls, hosts }
    }

    fn cookie_name(&self) -> String {
        // Browsers send the cookies of one port to all ports of a host.
        format!("papilio-{}", self.address.port())
    }

    /// Returns the header that gives the client the cookie.
    pub(crate) fn cookie(&self) -> String {
        let secure = if self.is_tls { "; Secure" } else { "" };
        let value = String::from_utf8_lossy(&self.secret.value);
        format!("{}={value}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie_name())
    }

    /// Returns whether the request proves that its sender knows the secret.
    pub(crate) fn proof(&self, head: &Head) -> Result<Proof, HeadFault> {
        let is_right = |given: &[u8]| is_same_secret(given, &self.secret.value);
        if let Some(credentials) = head.one("authorization")? {
            return Ok(match password(credentials) {
                Some(given) if is_right(&given) => Proof::Given,
                _ => Proof::Wrong,
            });
        }
        if self.secret.is_token {
            if let Some(token) = head.target.parameter("token") {
                return Ok(if is_right(token.as_bytes()) { Proof::TokenInUrl } else { Proof::Wrong });
            }
            let name = self.cookie_name();
            let cookies = head.all("cookie").flat_map(|value| value.split(';'));
            let mut own = cookies
                .filter_map(|cookie| cookie.trim().split_once('='))
                .filter(|(found, _)| *found == name);
            if own.any(|(_, value)| is_right(value.as_bytes())) {
                return Ok(Proof::Given);
            }
        }
        Ok(Proof::Missing)
    }

    /// Refuses a request for another server.
    pub(crate) fn check_host(&self, head: &Head) -> Result<(), Refusal> {
        let host = head.one("host")?.unwrap_or_default();
        let is_known =
            self.is_own(host) && head.target.authority.as_deref().is_none_or(|name| self.is_own(name));
        match is_known {
            true => Ok(()),
            false => Err(Refusal::new(421, "the Host of the request is not this server; see --host")),
        }
    }

    /// Returns whether host and port are those of this server.
    pub(crate) fn is_own(&self, authority: &str) -> bool {
        let default = if self.is_tls { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                let Some(port) = port.parse().ok().filter(|_: &u16| is_number) else { return false };
                (host, port)
            }
            _ => (authority, default),
        };
        let host = host.to_ascii_lowercase();
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(&host)) {
            // A proxy may listen on another port.
            return true;
        }
        if port != self.address.port() {
            return false;
        }
        let is_local = self.address.ip().is_loopback() || self.address.ip().is_unspecified();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        match bare.parse::<IpAddr>() {
            // No name of somebody else is a number.
            Ok(ip) => {
                ip == self.address.ip()
                    || is_local && ip.is_loopback()
                    || self.address.ip().is_unspecified() && host.starts_with('[') == ip.is_ipv6()
            }
            Err(_) => is_local && host == "localhost",
        }
    }

    /// Refuses a change that a page of another origin asks for.
    pub(crate) fn check_origin(&self, head: &Head) -> Result<(), Refusal> {
        let foreign = || Refusal::new(403, "the request comes from a page of another origin");
        if let Some(site) = head.one("sec-fetch-site")?
            && !["same-origin", "none"].contains(&site)
        {
            return Err(foreign());
        }
        let Some(origin) = head.one("origin")? else { return Ok(()) };
        let scheme = if self.is_tls { "https://" } else { "http://" };
        let authority = origin.strip_prefix(scheme).ok_or_else(foreign)?;
        let is_same = authority.eq_ignore_ascii_case(head.authority());
        if is_same && self.is_own(authority) { Ok(()) } else { Err(foreign()) }
    }
}

/// Returns the password of `Basic` credentials.
fn password(credentials: &str) -> Option<Vec<u8>> {
    let (scheme, encoded) = credentials.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > CREDENTIALS_MOST {
        return None;
    }
    let mut decoded = vec![0; CREDENTIALS_MOST];
    let length = STANDARD.decode_slice(encoded.trim(), &mut decoded).ok()?;
    let at = decoded[..length].iter().position(|byte| *byte == b':')?;
    Some(decoded[at + 1..length].to_vec())
}

impl From<HeadFault> for Refusal {
    fn from(fault: HeadFault) -> Self {
        Self::new(fault.status, fault.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str, is_tls: bool, hosts: &[&str]) -> Guard {
        let secret = Secret { value: b"s3cret".to_vec(), is_token: true };
        Guard::new(
            secret,
            address.parse().unwrap(),
            is_tls,
            hosts.iter().map(|&host| host.to_owned()).collect(),
        )
    }

    fn head(headers: &str) -> Head {
        let text = format!("PUT /a?x HTTP/1.1\r\n{headers}\r\n");
        Head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn only_own_names_are_served() {
        let local = guard("127.0.0.1:8080", false, &["files.example"]);
        for own in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080", "files.example"] {
            assert!(local.is_own(own), "{own}");
        }
        for other in [
            "",
            "evil.example:8080",
            "localhost",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.1:8080:8080",
            "127.0.0.1.evil.example:8080",
            "localhost.evil:8080",
            "192.0.2.1:8080",
            "localhost:",
            "localhost:+8080",
        ] {
            assert!(!local.is_own(other), "{other}");
        }
        let all = guard("0.0.0.0:443", true, &[]);
        assert!(all.is_own("192.0.2.1") && all.is_own("192.0.2.1:443") && !all.is_own("example.org"));
        let one = guard("192.0.2.1:80", false, &[]);
        assert!(one.is_own("192.0.2.1") && !one.is_own("192.0.2.2") && !one.is_own("localhost"));
    }

    #[test]
    fn pages_elsewhere_change_nothing() {
        let guard = guard("127.0.0.1:8080", false, &[]);
        let check = |headers: &str| guard.check_origin(&head(&format!("Host: localhost:8080\r\n{headers}")));
        for good in ["", "Origin: http://localhost:8080\r\n", "Sec-Fetch-Site: same-origin\r\n"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "Origin: null\r\n",
            "Origin: http://evil.example\r\n",
            "Origin: https://localhost:8080\r\n",
            "Origin: http://127.0.0.1:8080\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
            "Origin: http://localhost:8080\r\nOrigin: http://evil.example\r\n",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_proved() {
        let guard = guard("127.0.0.1:8080", false, &[]);
        let proof = |headers: &str| guard.proof(&head(&format!("Host: h\r\n{headers}"))).unwrap();
        let basic = |pair: &str| {
            let mut text = vec![0; 200];
            let length = STANDARD.encode_slice(pair, &mut text).unwrap();
            format!("Authorization: Basic {}\r\n", std::str::from_utf8(&text[..length]).unwrap())
        };
        assert_eq!(proof(""), Proof::Missing);
        assert_eq!(proof(&basic("anybody:s3cret")), Proof::Given);
        assert_eq!(proof(&basic(":s3cret")), Proof::Given);
        for wrong in ["x:s3cre", "x:s3cret ", "s3cret", "x:", "x:S3cret"] {
            assert_eq!(proof(&basic(wrong)), Proof::Wrong, "{wrong}");
        }
        assert_eq!(proof("Authorization: Bearer s3cret\r\n"), Proof::Wrong);
        assert_eq!(proof("Authorization: Basic !!\r\n"), Proof::Wrong);
        assert_eq!(proof("Cookie: a=b; papilio-8080=s3cret\r\n"), Proof::Given);
        assert_eq!(proof("Cookie: papilio-8081=s3cret\r\n"), Proof::Missing);
        assert_eq!(proof("Cookie: papilio-8080=x\r\n"), Proof::Missing);
    }
}
