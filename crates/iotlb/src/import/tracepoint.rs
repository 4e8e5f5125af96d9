// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `ftrace` and `perf script` have in common: a time, a CPU, the name of a tracepoint and its
//! text.

use super::fields::Piece;
use super::raw::Parsed;
use super::{Complaint, dma, iommu};
use crate::trace::{Stamp, TASK_BYTES};

/// Bytes of the name of an event, at most.
const EVENT_BYTES: usize = 64;

/// Which tracepoints a capture is read by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum System {
    /// `dma:*`. If both are there, `iommu:*` tells the same again, with less.
    #[default]
    Dma,
    Iommu,
}

/// A line taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracepoint<'a> {
    pub stamp: Option<Stamp>,
    /// Name of the task that ran, where the tracer knew it.
    pub task: Option<&'a str>,
    /// Its number, where the tracer did not know its name.
    pub unnamed: Option<u32>,
    /// Without the system that it belongs to.
    pub event: &'a str,
    pub payload: Piece<'a>,
}

impl Tracepoint<'_> {
    /// The system that the event belongs to, if it is one of those read here.
    pub fn system(&self) -> Option<System> {
        if dma::is_event(self.event) {
            Some(System::Dma)
        } else if iommu::is_event(self.event, self.payload.text) {
            Some(System::Iommu)
        } else {
            None
        }
    }

    /// What the event says, if it belongs to `system`.
    pub fn parse(&self, system: System) -> Result<Parsed, Complaint> {
        match (self.system(), system) {
            (Some(System::Dma), System::Dma) => dma::parse(self),
            (Some(System::Iommu), System::Iommu) => iommu::parse(self),
            (Some(_), _) => Ok(Parsed::Nothing),
            (None, _) => Ok(other_event(self.event)),
        }
    }
}

/// An event that is none of those read here; any line where it is no name.
pub(super) fn other_event(name: &str) -> Parsed {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-');
    match !name.is_empty() && name.len() <= EVENT_BYTES && name.bytes().all(plain) {
        true => Parsed::OtherEvent(name.into()),
        false => Parsed::Unknown,
    }
}

/// The name before the number of a task; `None` where the tracer forgot it.
pub(super) fn task(name: &str) -> Option<&str> {
    let name = name.trim();
    let unknown = name.is_empty() || name == "<...>" || name.contains(char::is_control);
    (!unknown && name.len() <= TASK_BYTES).then_some(name)
}

/// Seconds with six or nine decimals as nanoseconds; `None` for anything else, such as the
/// counts of other clocks.
pub(super) fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let unit = 10u64.pow(9 - fraction.len() as u32); // at most 9 digits
    let part = fraction.parse::<u64>().ok()? * unit;
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(part)
}

/// The number of a CPU in brackets, as in `[001]`.
pub(super) fn cpu(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('[')?.strip_suffix(']')?;
    let valid = digits.len() >= 3 && digits.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_decimals() {
        assert_eq!(nanoseconds("5.881838"), Some(5_881_838_000));
        assert_eq!(nanoseconds("0.000000001"), Some(1));
        for text in ["5", "5.", ".5", "5.0000000001", "-5.0", "99999999999.0"] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
        assert_eq!(
            (cpu("[017]"), cpu("[17]"), cpu("[0x1]")),
            (Some(17), None, None)
        );
    }
}
