// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's trace events, as its `log` back end writes them.

use super::QemuError;

/// What a line of interest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceEvent {
    /// A device's access was translated.
    Access {
        /// Requester: bus, device and function.
        source: u16,
        /// As the device gave it, offset in the page included.
        address: u64,
        /// The second-stage entry that translates it.
        entry: u64,
    },
    /// The guest invalidated pages.
    InvalidatePages,
    /// The unit reported a fault to the guest.
    Fault,
    /// A byte was written to I/O port 0x92.
    Port92(u64),
}

/// The event of a line and its time stamp in microseconds, if it has one; `None`
/// for every other line.
pub(super) fn parse(
    line: &[u8],
    number: u64,
) -> Result<Option<(Option<u64>, TraceEvent)>, QemuError> {
    let Ok(line) = std::str::from_utf8(line) else {
        return Ok(None);
    };
    let (stamp, line) = split_stamp(line);
    let name = line.split(' ').next().unwrap_or_default();
    let access = |event: &'static str| {
        let missing = |field| QemuError::Field {
            line: number,
            event,
            field,
        };
        let field = |keys: &[&'static str]| {
            let found = keys.iter().find_map(|key| value(line, key));
            found.ok_or(missing(keys[0]))
        };
        let source = u16::try_from(field(&["sid"])?).map_err(|_| missing("sid"))?;
        Ok::<_, QemuError>(TraceEvent::Access {
            source,
            address: field(&["iova"])?,
            // so called before and since QEMU 9.2
            entry: field(&["slpte", "pte"])?,
        })
    };
    let event = match name {
        "vtd_iotlb_page_hit" => access("vtd_iotlb_page_hit")?,
        "vtd_iotlb_page_update" => access("vtd_iotlb_page_update")?,
        "vtd_inv_desc_iotlb_pages" => TraceEvent::InvalidatePages,
        "vtd_dmar_fault" => TraceEvent::Fault,
        "port92_write" => TraceEvent::Port92(value(line, "write").ok_or(QemuError::Field {
            line: number,
            event: "port92_write",
            field: "value",
        })?),
        _ => return Ok(None),
    };
    Ok(Some((stamp, event)))
}

/// Takes `pid@seconds.microseconds:` off a line.
fn split_stamp(line: &str) -> (Option<u64>, &str) {
    let stamp = || {
        let (stamp, rest) = line.split_once(':')?;
        let (pid, time) = stamp.split_once('@')?;
        let (seconds, micros) = time.split_once('.')?;
        let _: u64 = pid.parse().ok()?;
        let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
        let us = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
        Some((us, rest))
    };
    match stamp() {
        Some((us, rest)) => (Some(us), rest),
        None => (None, line),
    }
}

/// The hexadecimal number after the word `key`.
fn value(line: &str, key: &str) -> Option<u64> {
    let mut words = line.split(' ');
    words.find(|word| *word == key)?;
    let digits = words.next()?.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}
