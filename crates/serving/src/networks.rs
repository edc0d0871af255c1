//! `Networks`: the addresses whose clients are served.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The first address. A version 4 address is never one that is mapped into version 6.
    address: IpAddr,
    /// The bits that all addresses share.
    bits: u8,
}

/// A text that is no network.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no address, and no network such as 192.168.1.0/24 or fd00::/8")]
pub struct BadNetwork(String);

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                shares(u32::from(own).into(), u32::from(other).into(), 32, self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => shares(own.into(), other.into(), 128, self.bits),
            _ => false,
        }
    }
}

/// Returns whether two numbers of `width` bits have the same first `bits`.
fn shares(one: u128, two: u128, width: u8, bits: u8) -> bool {
    (one ^ two).checked_shr((width - bits).into()).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let bad = || BadNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let given: IpAddr = address.parse().map_err(|_| bad())?;
        let most: u8 = if given.is_ipv4() { 32 } else { 128 };
        let bits: u8 = match bits {
            None => most,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|bits| *bits <= most).ok_or_else(bad)?
            }
            Some(_) => return Err(bad()),
        };
        let address = given.to_canonical();
        // A network of mapped addresses is one of version 4, if all of it is.
        let bits = match (given, address) {
            (IpAddr::V6(_), IpAddr::V4(_)) => bits.checked_sub(96).ok_or_else(bad)?,
            _ => bits,
        };
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The networks whose clients are served; without any, all clients are.
#[derive(Clone, Debug, Default)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Serves the clients in these networks; all if there are none.
    pub fn new(networks: impl IntoIterator<Item = Network>) -> Self {
        Self(networks.into_iter().collect())
    }

    /// Returns whether every client is served.
    pub fn are_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a client with this address is served. One of a Unix socket has none: the
    /// permissions of the socket decide.
    pub fn serve(&self, client: Option<IpAddr>) -> bool {
        let Some(client) = client.map(|client| client.to_canonical()) else { return true };
        self.are_all() || self.0.iter().any(|network| network.contains(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &str) -> Networks {
        Networks::new(text.split(',').map(|network| network.parse().unwrap()))
    }

    #[test]
    fn addresses_are_compared_with_networks() {
        for (allowed, inside, outside) in [
            ("192.168.1.0/24", "192.168.1.255", "192.168.2.0"),
            ("192.168.1.77/24", "192.168.1.1", "192.168.0.255"),
            ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
            ("::1", "::1", "127.0.0.1"),
            ("fd00::/8", "fdff::1", "fe00::"),
            ("0.0.0.0/0", "255.1.2.3", "::2"),
            ("10.1.0.0/16,fe80::/10", "fe80::5", "10.2.0.0"),
            // A socket of version 6 shows a client of version 4 as a mapped address.
            ("10.0.0.0/8", "::ffff:10.1.1.1", "::ffff:11.0.0.0"),
            ("::ffff:10.0.0.0/104", "10.1.1.1", "11.0.0.0"),
        ] {
            let networks = networks(allowed);
            assert!(networks.serve(Some(inside.parse().unwrap())), "{allowed} {inside}");
            assert!(!networks.serve(Some(outside.parse().unwrap())), "{allowed} {outside}");
            assert!(networks.serve(None));
        }
        assert!(Networks::default().serve(Some("1.2.3.4".parse().unwrap())));
    }

    #[test]
    fn texts_that_are_no_networks_are_refused() {
        for text in ["", "/", "a", "1.2.3", "1.2.3.4/", "1.2.3.4/33", "1.2.3.4/+8", "::/129", "::1/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert!("::ffff:1.2.3.4/64".parse::<Network>().is_err(), "more than the mapped addresses");
        assert_eq!("1.2.3.4".parse::<Network>().unwrap().to_string(), "1.2.3.4/32");
    }
}
