// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What this machine is and what it was asked.

use super::model::{Clock, TraceOrigin, Wait};
use crate::histograms::{DeviceCounts, Histograms};
use crate::loaded::LoadedTrace;
use ioatlas_present::{Figure, Unit};
use std::ffi::OsString;

/// Cycles of one strict invalidation: Malka et al., "rIOMMU" (ASPLOS 2015), table 1.
const RIOMMU_INVALIDATION_CYCLES: f64 = 2127.0;

/// Clock of a CPU that does not tell its own, in GHz.
const UNKNOWN_CLOCK_GHZ: f64 = 3.0;

/// The value of a field of `/proc/cpuinfo`, for the first CPU.
fn cpuinfo(field: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.split(':').next().map(str::trim) == Some(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Model of the CPU, or `unknown`.
pub(super) fn cpu_model() -> String {
    cpuinfo("model name")
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".into())
}

/// Number of CPUs that this process may use.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The wait of one invalidation: the user's, else rIOMMU's cycles on this CPU's clock.
pub(super) fn wait(inv_ns: Option<f64>) -> Wait {
    if let Some(time) = inv_ns {
        return Wait {
            time: Figure::assumed(time, Unit::Nanoseconds),
            cycles: None,
        };
    }
    let megahertz = cpuinfo("cpu MHz").and_then(|text| text.parse::<f64>().ok());
    let known = megahertz
        .map(|megahertz| megahertz / 1000.0)
        .filter(|clock| clock.is_finite() && *clock > 0.1);
    let gigahertz = known.unwrap_or(UNKNOWN_CLOCK_GHZ);
    let clock = Clock {
        figure: Figure::assumed(gigahertz, Unit::Gigahertz),
        note: if known.is_some() {
            ""
        } else {
            " (unknown here)"
        },
    };
    let time = RIOMMU_INVALIDATION_CYCLES / gigahertz;
    Wait {
        time: Figure::assumed(time, Unit::Nanoseconds),
        cycles: Some((
            Figure::assumed(RIOMMU_INVALIDATION_CYCLES, Unit::Cycles),
            clock,
        )),
    }
}

/// The command line of this program as one could type it again.
pub fn command_line(program: &str, arguments: &[OsString]) -> String {
    let shown = arguments.iter().enumerate().map(|(index, argument)| {
        let text = argument.to_string_lossy();
        if index == 0 {
            // Where the binary lies says nothing and may say too much.
            return program.to_owned();
        }
        let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            text.into_owned()
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Where a trace comes from.
pub(super) fn origin(loaded: &LoadedTrace, is_variant: bool) -> TraceOrigin {
    TraceOrigin {
        name: loaded.trace.name().to_owned(),
        bytes: loaded.file_bytes,
        sha256: loaded.sha256.clone(),
        events: Figure::count(loaded.trace.events().len() as u64),
        is_variant,
    }
}

/// Where counts come from.
pub(super) fn origin_of_counts(of: &Histograms) -> TraceOrigin {
    let events = |device: &DeviceCounts| device.maps().saturating_add(device.unmaps());
    TraceOrigin {
        name: of.name.clone(),
        bytes: of.file_bytes,
        sha256: of.sha256.clone(),
        events: Figure::count(of.devices.values().map(events).fold(0, u64::saturating_add)),
        is_variant: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_can_be_typed_again() {
        let arguments = ["/opt/x/ioatlas", "report", "a b", "it's", ""].map(OsString::from);
        assert_eq!(
            command_line("ioatlas", &arguments),
            r"ioatlas report 'a b' 'it'\''s' ''"
        );
    }

    #[test]
    fn a_given_wait_is_taken_as_it_is() {
        assert_eq!(
            wait(Some(12.0)).time,
            Figure::assumed(12.0, Unit::Nanoseconds)
        );
        assert_eq!(wait(None).cycles.unwrap().0.text(), "2,127");
        assert!(wait(None).time.value > 0.0);
    }
}
