// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit in words: what it can do, and what the driver does because of it.

use super::check::check;
use crate::layout::{AddressWidth, Capabilities};
use core::fmt;

/// Every capability that changes what the driver does, a line each: the field's name, what the unit
/// says, what follows. Then the capabilities that are read and change nothing, and whether the
/// driver serves such a unit at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation<'u>(pub(super) &'u Capabilities);

impl<'u> Explanation<'u> {
    /// Of a unit with those capabilities, whether it is in use or not.
    pub fn of(unit: &'u Capabilities) -> Self {
        Explanation(unit)
    }
}

/// What is chosen by one bit: the field, its question, then what it says and what follows for
/// yes and for no.
type Choice = (
    &'static str,
    fn(&Capabilities) -> bool,
    [&'static str; 2],
    [&'static str; 2],
);

const CHOICES: &[Choice] = &[
    (
        "QI",
        Capabilities::queued_invalidation,
        [
            "has an invalidation queue",
            "invalidations are queued, and a status word tells what is done",
        ],
        [
            "has no invalidation queue",
            "invalidations go through registers, one at a time",
        ],
    ),
    (
        "CM",
        Capabilities::caching_mode,
        [
            "caches absent entries",
            "every map is followed by an invalidation, and so is every attach",
        ],
        ["never caches absent entries", "mapping flushes nothing"],
    ),
    (
        "RWBF",
        Capabilities::needs_write_buffer_flush,
        [
            "buffers writes to memory",
            "they are flushed after every change and before every invalidation",
        ],
        [
            "sees memory as soon as it is written",
            "write buffers are never flushed",
        ],
    ),
    (
        "C",
        Capabilities::coherent_walks,
        [
            "snoops processor caches",
            "the platform need not write entries back",
        ],
        [
            "does not snoop processor caches",
            "every changed entry is written back to memory",
        ],
    ),
    (
        "PSI",
        Capabilities::page_selective,
        [
            "invalidates single pages",
            "an unmap removes the smallest aligned block around its pages",
        ],
        [
            "invalidates whole domains only",
            "an unmap removes everything of its domain",
        ],
    ),
    (
        "DRD",
        Capabilities::drains_reads,
        ["drains reads on request", "every invalidation asks for it"],
        [
            "cannot be asked to drain reads",
            "one that was translated before may end after an unmap",
        ],
    ),
    (
        "DWD",
        Capabilities::drains_writes,
        ["drains writes on request", "every invalidation asks for it"],
        [
            "cannot be asked to drain writes",
            "one that was translated before may land after an unmap",
        ],
    ),
    (
        "DT",
        Capabilities::device_tlb,
        [
            "lets devices keep translations",
            "they are asked to forget, and fenced if they do not answer",
        ],
        [
            "serves no device TLBs",
            "declaring one is refused, and every device asks the unit each time",
        ],
    ),
    (
        "ESRTPS",
        Capabilities::root_pointer_flushes,
        [
            "empties its caches when it is given a root table",
            "nothing is flushed after that",
        ],
        [
            "keeps its caches when it is given a root table",
            "all are flushed after that",
        ],
    ),
    (
        "ZLR",
        Capabilities::zero_length_reads,
        [
            "lets zero-length reads of write-only pages pass",
            "a device may flush its writes by them",
        ],
        [
            "blocks zero-length reads of write-only pages",
            "a flush by them needs readable pages",
        ],
    ),
    (
        "IR",
        Capabilities::interrupt_remapping,
        [
            "remaps interrupts",
            "what is enabled stays so, and the queue serves the host too",
        ],
        ["does not remap interrupts", "there is nothing to preserve"],
    ),
    (
        "PT",
        Capabilities::pass_through,
        [
            "can let devices pass untranslated",
            "that is not used: every device has a domain",
        ],
        [
            "translates whatever it lets through",
            "every device has a domain",
        ],
    ),
    (
        "SC",
        Capabilities::snoop_control,
        ["can force snooping by leaf", "that is not used"],
        [
            "cannot force snooping by leaf",
            "the bit stays 0, since it is reserved",
        ],
    ),
    (
        "SMTS",
        Capabilities::scalable_mode,
        ["has scalable mode", "it is used in legacy mode"],
        ["has legacy mode alone", "it is used in legacy mode"],
    ),
    (
        "PLMR",
        Capabilities::protected_low_memory,
        [
            "has a protected low memory region",
            "it stays as firmware left it",
        ],
        ["has no protected low memory region", "nothing follows"],
    ),
    (
        "PHMR",
        Capabilities::protected_high_memory,
        [
            "has a protected high memory region",
            "it stays as firmware left it",
        ],
        ["has no protected high memory region", "nothing follows"],
    ),
];

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    field: &str,
    says: fmt::Arguments<'_>,
    follows: fmt::Arguments<'_>,
) -> fmt::Result {
    writeln!(f, "{field:<8}{says}: {follows}")
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.0;
        writeln!(f, "CAP {:#018x}  ECAP {:#018x}", unit.cap(), unit.ecap())?;
        match unit.domain_ids() {
            Some(ids) => {
                let says = format_args!("has {ids} domain ids");
                line(f, "ND", says, format_args!("{} domains at a time", ids - 1))?;
            }
            None => line(
                f,
                "ND",
                format_args!("claims a reserved number of domain ids"),
                format_args!("the unit is refused"),
            )?,
        }
        for width in AddressWidth::ALL {
            let levels = width.levels();
            let bits = unit.iova_bits();
            match (unit.supports_width(width), bits >= width.bits()) {
                (false, _) => line(
                    f,
                    "SAGAW",
                    format_args!("does not walk {levels} levels"),
                    format_args!("a domain of {} bits is refused", width.bits()),
                )?,
                (true, true) => line(
                    f,
                    "SAGAW",
                    format_args!("walks {levels} levels"),
                    format_args!("domains may have {} bits", width.bits()),
                )?,
                (true, false) => line(
                    f,
                    "MGAW",
                    format_args!("takes addresses of {bits} bits"),
                    format_args!("a domain of {} bits is refused all the same", width.bits()),
                )?,
            }
        }
        let largest = ["4 KiB", "2 MiB", "1 GiB"][unit.largest_leaf() as usize - 1];
        line(
            f,
            "SSLPS",
            format_args!("walks leaves of up to {largest}"),
            format_args!("larger ones are never made"),
        )?;
        match unit.max_address_mask() {
            Some(mask) => line(
                f,
                "MAMV",
                format_args!("takes 2^{} pages at once", mask.pages_lg2()),
                format_args!("what is more is invalidated as a whole domain"),
            )?,
            None => line(
                f,
                "MAMV",
                format_args!("has no largest number of pages"),
                format_args!("none is ever invalidated alone"),
            )?,
        }
        let records = unit.fault_records();
        line(
            f,
            "NFR",
            format_args!("has {records} fault record{}", plural(records)),
            format_args!("what is blocked when none is free is lost, and said to be"),
        )?;
        line(
            f,
            "FRO",
            format_args!("has fault records at {:#x}", unit.fault_offset()),
            format_args!("they are read and cleared there"),
        )?;
        let follows = match unit.queued_invalidation() {
            true => "they are not used, since there is a queue",
            false => "invalidations are asked for there",
        };
        line(
            f,
            "IRO",
            format_args!("has IOTLB registers at {:#x}", unit.iotlb_offset()),
            format_args!("{follows}"),
        )?;
        for (field, has, yes, no) in CHOICES {
            let [says, follows] = if has(unit) { yes } else { no };
            line(f, field, format_args!("{says}"), format_args!("{follows}"))?;
        }
        match check(unit) {
            Ok(_) => writeln!(f, "this driver serves it"),
            Err(why) => writeln!(f, "this driver refuses it: {why}"),
        }
    }
}
