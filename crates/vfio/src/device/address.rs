// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where a PCI function is.

use ioatlas_dma::units::SourceId;
use std::{fmt, str::FromStr};

/// A PCI function, as Linux spells it: `0000:00:04.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// The segment group, which Linux calls domain.
    pub segment: u32,
    /// Bus, device and function.
    pub function: SourceId,
}

impl PciAddress {
    /// By what its IOMMU knows it. Functions of several segments may have the same.
    pub fn source(&self) -> SourceId {
        self.function
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{}", self.segment, self.function)
    }
}

/// What is no PCI address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no PCI address; one is written 0000:00:04.0 or 00:04.0")]
pub struct AddressError(pub String);

impl FromStr for PciAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).ok_or_else(|| AddressError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (segment, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let number = |text: &str, most: u32| {
        let hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| hex)?;
        (number <= most).then_some(number)
    };
    let (bus, device) = (number(bus, 0xff)?, number(device, 0x1f)?);
    let source = bus << 8 | device << 3 | number(function, 7)?;
    Some(PciAddress {
        segment: number(segment, u32::MAX)?,
        function: SourceId(source as u16),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (text, written) in [
            ("0000:00:04.0", "0000:00:04.0"),
            ("00:1f.7", "0000:00:1f.7"),
            ("10001:ff:00.1", "10001:ff:00.1"),
        ] {
            let address: PciAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), written);
        }
    }

    #[test]
    fn what_is_none_is_refused_with_its_text() {
        for text in [
            "",
            "nvme0",
            "00:20.0",
            "00:04.8",
            "0:100:00.0",
            "00:+4.0",
            "00:04.",
        ] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
