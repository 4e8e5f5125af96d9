// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A remedy: one way to lose less to an IOMMU, for devices of traces with accesses and for those of
//! captures alike. It says whose it is, by what one asks for it and since which Linux, what becomes
//! less by it on this trace, and what protection it costs.
//!
//! What of it does not depend on the trace is an [`About`], of which `catalogue` has all. What one
//! can have today comes first, then what firmware gives, then what needs code; of each what gains
//! most; but what costs all protection comes after what leaves some. What gains less than a
//! hundredth is no remedy.

use crate::record::Class;
use ioatlas_present::{Figure, Part, Sentence, sentence};
use serde::Serialize;

/// Changes below this, in percent, are not worth a word.
pub const LEAST: f64 = 1.0;

/// What is said of a trace with loss in place of remedies: it has none.
pub const NONE_OF_LOST: &str = "No advice: events of this trace were lost.";

/// Remedies of a device that are shown before all else.
pub const FIRST: usize = 3;

/// A remedy for one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// What is the same for all devices.
    #[serde(flatten)]
    pub about: &'static About,
    /// What more its name says here: the strategies of a sum.
    pub of: Option<String>,
    /// Those that are for this device.
    pub knobs: Vec<Knob>,
    /// What becomes less by it, most first; never empty.
    pub gains: Vec<Gain>,
}

/// What a remedy is, whatever the device.
#[derive(Debug, PartialEq, Serialize)]
pub struct About {
    /// What programs call it.
    pub id: &'static str,
    /// What people call it.
    pub name: &'static str,
    /// Whom it is for.
    pub audience: &'static [Audience],
    /// Who can have it today.
    pub available: Availability,
    /// By what one asks for it.
    #[serde(skip)]
    pub knobs: &'static [Knob],
    /// What it costs of the protection from the device.
    pub protection: Protection,
    /// What one has to know besides; may be empty.
    pub note: &'static str,
}

/// Whom a remedy is for.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Audience {
    Any,
    Network,
    Storage,
    Vm,
    Dpdk,
    Spdk,
}

/// Who can have a remedy today; what is easier to have is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// Linux and the driver of the device, as they are.
    AsItIs,
    /// Programs and virtual machines that are given the device.
    UserSpace,
    /// Machines whose firmware asks for it; no command does.
    Firmware,
    /// It needs code in the kernel, the driver or the IOMMU.
    NeedsCode,
}

/// What one writes, types or adds to the kernel's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Knob {
    /// As it is typed.
    pub knob: &'static str,
    /// Where and when; may be empty.
    pub how: &'static str,
    /// For these devices; for any if it is empty.
    pub audience: Audience,
    /// The version of Linux that has it; `None` where that does not matter, or is not known for
    /// sure.
    pub since: Option<&'static str>,
}

/// What a remedy costs of the protection from a device, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Nothing: it adds protection, and costs time.
    More,
    /// Nothing.
    None,
    /// What was unmapped stays within reach for a while.
    Window,
    /// Buffers stay within reach, also while the CPU uses them.
    Buffers,
    /// The device reaches all memory.
    All,
}

/// What becomes less by a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Of what there is less.
    pub of: Less,
    /// By how much.
    pub change: Figure,
    /// How far the change can be relied on.
    pub bound: Bound,
    /// How much of it is left, where that is known.
    pub left: Option<Figure>,
}

/// What becomes less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Less {
    /// Misses in the IOTLB.
    Misses,
    /// Waits for invalidations, against a strict policy.
    Waits,
    /// Maps, and their unmaps with them.
    Maps,
    /// Maps whose addresses the kernel does not keep for reuse, of all maps.
    FreshAddresses,
    /// Time in maps, unmaps and waits, against a strict policy.
    Time,
    /// Reads of page tables by walks.
    TableReads,
    /// Bytes in reach of the device that no map was for.
    OtherData,
}

/// How far a change can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Bound {
    /// It is what was counted or simulated.
    Exact,
    /// It is so much where all goes well.
    AtMost,
    /// It may be off by so much.
    Within {
        /// Points of a hundred.
        points: Figure,
    },
}

impl Less {
    /// In few words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Less::Misses => "misses",
            Less::Waits => "waits",
            Less::Maps => "maps",
            Less::FreshAddresses => "fresh IOVAs",
            Less::Time => "time",
            Less::TableReads => "reads of page tables",
            Less::OtherData => "other data in reach",
        }
    }
}

impl Gain {
    /// A change that was counted or simulated.
    #[must_use]
    pub fn of(of: Less, change: Figure) -> Self {
        Self {
            of,
            change,
            bound: Bound::Exact,
            left: None,
        }
    }

    /// With what is left.
    #[must_use]
    pub fn leaving(self, left: Figure) -> Self {
        Self {
            left: Some(left),
            ..self
        }
    }

    /// With how far it can be relied on.
    #[must_use]
    pub fn bounded(self, bound: Bound) -> Self {
        Self { bound, ..self }
    }

    /// In few words: `misses -56 %`.
    #[must_use]
    pub fn brief(&self) -> Sentence {
        let most = match self.bound {
            Bound::AtMost => "up to ",
            _ => "",
        };
        sentence![format!("{} {most}", self.of.name()), self.change]
    }

    /// All of it.
    #[must_use]
    pub fn sentence(&self) -> Sentence {
        let mut says = self.brief();
        if let Bound::Within { points } = self.bound {
            let off = sentence![", give or take ", points, " points"];
            says.0.extend(off.0);
        }
        if let Some(left) = self.left {
            says.0.extend(sentence![" (to ", left, ")"].0);
        }
        says
    }
}

impl Protection {
    /// What is lost, in a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Protection::More => "Costs time, and adds protection.",
            Protection::None => "Costs no protection.",
            Protection::Window => {
                "Costs a window: the device reaches what was unmapped for up to 10 ms."
            }
            Protection::Buffers => {
                "Costs some protection: the device reaches these buffers, and what is in them, \
                 all the time."
            }
            Protection::All => "Costs all protection from the device.",
        }
    }
}

impl Audience {
    /// Whether a device that is for `class`, if that is known, may be meant.
    fn may_be(self, class: Option<Class>) -> bool {
        match self {
            Audience::Network => class != Some(Class::Disk),
            Audience::Storage => class != Some(Class::Network),
            Audience::Dpdk => class != Some(Class::Disk),
            Audience::Spdk => class != Some(Class::Network),
            Audience::Any | Audience::Vm => true,
        }
    }

    /// In few words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Audience::Any => "any device",
            Audience::Network => "network",
            Audience::Storage => "storage",
            Audience::Vm => "VM",
            Audience::Dpdk => "DPDK",
            Audience::Spdk => "SPDK",
        }
    }
}

impl Remedy {
    /// For a device that is for `class`, if that is known; `None` if it is not for such devices, or
    /// gains too little.
    #[must_use]
    pub fn new(
        about: &'static About,
        class: Option<Class>,
        gains: impl IntoIterator<Item = Gain>,
    ) -> Option<Self> {
        let mut gains: Vec<Gain> = gains.into_iter().collect();
        gains.retain(|gain| gain.change.value <= -LEAST);
        gains.sort_by(|a, b| a.change.value.total_cmp(&b.change.value));
        let is_for = about.audience.iter().any(|of| of.may_be(class));
        let knobs = about
            .knobs
            .iter()
            .filter(|knob| knob.audience.may_be(class));
        (is_for && !gains.is_empty()).then(|| Self {
            about,
            of: None,
            knobs: knobs.copied().collect(),
            gains,
        })
    }

    /// With what more its name says here.
    #[must_use]
    pub fn named(self, of: String) -> Self {
        Self {
            of: Some(of),
            ..self
        }
    }

    /// Before another: what is easier to have first; of that what costs all protection last; else
    /// what gains most first.
    fn before(&self, other: &Self) -> std::cmp::Ordering {
        // what one can have today is one, by whatever means
        let ease = |of: &Self| of.about.available.max(Availability::UserSpace);
        let rank = |of: &Self| (ease(of), of.about.protection == Protection::All);
        let most = |of: &Self| of.gains[0].change.value;
        let by_gain = most(self).total_cmp(&most(other));
        rank(self).cmp(&rank(other)).then(by_gain)
    }

    /// Whether one can have it today.
    #[must_use]
    pub fn is_for_today(&self) -> bool {
        self.about.available <= Availability::UserSpace
    }

    /// Whom it is for, where that is not clear for a device of this class.
    #[must_use]
    pub fn whom(&self, class: Option<Class>) -> Option<String> {
        let for_all = self.about.audience == [Audience::Any];
        let known = class.is_some() && self.about.available == Availability::AsItIs;
        if for_all || known {
            return None;
        }
        let meant = self.about.audience.iter().filter(|of| of.may_be(class));
        Some(meant.map(|of| of.name()).collect::<Vec<_>>().join(", "))
    }

    /// Its name and its largest gain, for a line of a terminal.
    #[must_use]
    pub fn brief(&self, class: Option<Class>) -> Sentence {
        let whom = self.whom(class).map(|whom| format!(" ({whom})"));
        let name = format!("{}{} ", self.about.name, whom.unwrap_or_default());
        let gain = self.gains[0];
        let most = match gain.bound {
            Bound::AtMost => "up to ",
            _ => "",
        };
        sentence![name, most, gain.change, " ", gain.of.name()]
    }

    /// All its gains.
    #[must_use]
    pub fn gained(&self) -> Sentence {
        let gains = self.gains.iter().map(|gain| gain.sentence().0);
        let gains: Vec<Vec<Part>> = gains.collect();
        Sentence(gains.join(&Part::from(", ")))
    }
}

/// Sorted: what one can have today and best first.
#[must_use]
pub fn sorted(remedies: impl IntoIterator<Item = Option<Remedy>>) -> Vec<Remedy> {
    let mut remedies: Vec<Remedy> = remedies.into_iter().flatten().collect();
    remedies.sort_by(Remedy::before);
    remedies
}

/// Those that are shown before all else: the best of today's that leave some protection.
#[must_use]
pub fn first(remedies: &[Remedy]) -> &[Remedy] {
    let keeps = |of: &&Remedy| of.is_for_today() && of.about.protection != Protection::All;
    &remedies[..remedies.iter().take_while(keeps).count().min(FIRST)]
}

#[cfg(test)]
mod tests {
    use super::super::catalogue as known;
    use super::*;
    use ioatlas_present::Unit;

    fn less(of: Less, percent: f64) -> Gain {
        Gain::of(of, Figure::counted(-percent, Unit::PercentChange))
    }

    #[test]
    fn what_gains_less_than_a_hundredth_is_no_remedy() {
        let of = |gains: &[f64]| {
            let gains = gains.iter().map(|percent| less(Less::Maps, *percent));
            Remedy::new(&known::PAGE_POOL, None, gains)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0.9, 0.0, -50.0]), None);
        let changes = |remedy: Remedy| remedy.gains.iter().map(|g| g.change.value).collect();
        let kept: Option<Vec<f64>> = of(&[0.5, 1.0, 30.0]).map(changes);
        assert_eq!(kept, Some(vec![-30.0, -1.0]));
    }

    #[test]
    fn today_comes_before_firmware_and_code_and_what_costs_all_protection_last_of_today() {
        let one = |about, percent| Remedy::new(about, None, [less(Less::Misses, percent)]);
        let found = sorted([
            one(&known::PREFETCH_BOTH, 99.0),
            one(&known::PASSTHROUGH, 100.0),
            one(&known::HUGE_PAGES, 99.9),
            one(&known::UNTRUSTED, 100.0),
            one(&known::SHORT_RINGS, 2.0),
            one(&known::LAZY, 98.0),
            one(&known::OFFSETS, 0.1),
        ]);
        let ids: Vec<_> = found.iter().map(|remedy| remedy.about.id).collect();
        let today = ["huge-pages", "lazy", "short-rings", "passthrough"];
        assert_eq!(ids, [&today[..], &["untrusted", "alh"]].concat());
        assert_eq!(first(&found).len(), FIRST);
        assert_eq!(first(&found[2..]).len(), 1);
        // neither what costs all protection nor what no command asks for is shown before all else
        assert_eq!((first(&found[3..]).len(), first(&found[4..]).len()), (0, 0));
    }

    #[test]
    fn knobs_are_those_of_the_devices_class() {
        let knobs = |class| {
            let remedy = Remedy::new(&known::SHORT_RINGS, class, [less(Less::Misses, 5.0)]);
            let knobs = remedy.unwrap().knobs;
            knobs.iter().map(|knob| knob.audience).collect::<Vec<_>>()
        };
        assert_eq!(knobs(Some(Class::Disk)), [Audience::Storage]);
        assert_eq!(knobs(Some(Class::Network)), [Audience::Network]);
        assert_eq!(knobs(None), [Audience::Network, Audience::Storage]);
        let pool = |class| Remedy::new(&known::PAGE_POOL, class, [less(Less::Maps, 5.0)]);
        assert_eq!(pool(Some(Class::Disk)), None);
        assert_eq!(pool(None).unwrap().whom(None), Some("network".into()));
        let card = Some(Class::Network);
        assert_eq!(pool(card).unwrap().whom(card), None);
    }
}
