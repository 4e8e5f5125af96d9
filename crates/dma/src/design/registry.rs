// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! All allocators, all policies, and the designs with a name.

use super::Design;
use crate::{
    domain::{AllocatorConfig, DomainConfig, PolicyConfig},
    iova::BackingConfig,
};
use alloc::string::ToString;

/// One thing that can be chosen, with its default sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<C> {
    /// The name used on command lines and in tables.
    pub name: &'static str,
    /// The choice, with its default sizes.
    pub config: C,
    /// What it is, in a line.
    pub doc: &'static str,
    /// Where it is described.
    pub paper: &'static str,
}

/// A design with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preset {
    /// The name used on command lines.
    pub name: &'static str,
    /// What people call it: `Linux today`.
    pub title: &'static str,
    /// What the name stands for.
    pub design: Design,
    /// What it is, in a line.
    pub doc: &'static str,
    /// Where it is described.
    pub paper: &'static str,
    /// Which system runs it.
    pub shipped: Shipped,
}

/// Which system runs a design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shipped {
    /// This system does, or did.
    By(&'static str),
    /// No system, as far as we know.
    Nowhere,
}

/// Every allocator, once, with its default sizes.
pub fn allocators() -> impl ExactSizeIterator<Item = Entry<AllocatorConfig>> {
    let entry = |config: AllocatorConfig, paper, doc| Entry {
        name: config.name(),
        config,
        doc,
        paper,
    };
    [
        entry(
            AllocatorConfig::RBTREE,
            "ATC'15 3.1",
            "one lock, top-down first fit from a cached node: Linux until 4.8",
        ),
        entry(
            AllocatorConfig::Plain(BackingConfig::Eiovar(Default::default())),
            "ATC'15 3.1",
            "one lock, a cache of freed ranges by size over that tree: EiovaR",
        ),
        entry(
            AllocatorConfig::Plain(BackingConfig::Freebsd),
            "ATC'15 3.4",
            "one lock, bottom-up first fit in a tree that knows its gaps",
        ),
        entry(
            AllocatorConfig::Plain(BackingConfig::Vmem),
            "ATC'15 3.4",
            "one lock, boundary tags and instant fit: constant time",
        ),
        entry(
            AllocatorConfig::Plain(BackingConfig::MacOs),
            "ATC'15 3.4",
            "one lock, a buddy allocator up to 512 MiB, a tree above",
        ),
        entry(
            AllocatorConfig::Magazine(Default::default()),
            "ATC'15 4.3",
            "per-CPU magazines and a depot over a tree: Linux since 4.9",
        ),
        entry(
            AllocatorConfig::Identity(Default::default()),
            "ATC'15 4.1",
            "the buffer's own address, in a region for each permission; leaves are counted",
        ),
        entry(
            AllocatorConfig::Kmalloc(Default::default()),
            "ATC'15 4.2",
            "addresses that a general-purpose allocator returns; needs a platform with a heap",
        ),
    ]
    .into_iter()
}

/// Every invalidation policy, once, with its default sizes.
pub fn policies() -> impl ExactSizeIterator<Item = Entry<PolicyConfig>> {
    let entry = |config: PolicyConfig, paper, doc| Entry {
        name: config.name(),
        config,
        doc,
        paper,
    };
    [
        entry(
            PolicyConfig::Strict,
            "ATC'15 3.2",
            "one invalidation of the range in every unmap, waited for",
        ),
        entry(
            PolicyConfig::FreeBsd,
            "ATC'15 3.4",
            "one invalidation of each page in every unmap, waited for",
        ),
        entry(
            PolicyConfig::DeferredGlobal(Default::default()),
            "ATC'15 3.2",
            "one queue under one lock, one invalidation of the domain every 250 unmaps or 10 ms",
        ),
        entry(
            PolicyConfig::DeferredPerCpu(Default::default()),
            "ATC'15 5",
            "a queue a CPU, one invalidation of the domain every 250 unmaps or 10 ms",
        ),
        entry(
            PolicyConfig::MacOs(Default::default()),
            "ATC'15 3.4",
            "an invalidation started in every unmap, its completion collected later",
        ),
        entry(
            PolicyConfig::Solaris,
            "ATC'15 3.4",
            "none in unmap, one of the range in every map",
        ),
    ]
    .into_iter()
}

/// The designs with a name.
pub fn presets() -> impl ExactSizeIterator<Item = Preset> {
    use Shipped::*;
    let magazine = AllocatorConfig::Magazine(Default::default());
    let plain = AllocatorConfig::Plain;
    let preset = |(name, title), (allocator, policy), shipped, paper, doc| Preset {
        name,
        title,
        design: DomainConfig::new(allocator, policy).into(),
        doc,
        paper,
        shipped,
    };
    [
        preset(
            ("linux-3.17", "Linux 3.17"),
            (
                AllocatorConfig::RBTREE,
                PolicyConfig::DeferredGlobal(Default::default()),
            ),
            By("Linux 3.17"),
            "ATC'15 3.1, 3.2",
            "what ATC'15 found: a global lock for IOVAs, another for what awaits its flush",
        ),
        preset(
            ("linux", "Linux today"),
            (magazine, PolicyConfig::DeferredPerCpu(Default::default())),
            By("Linux since 4.9"),
            "ATC'15 4.3, 5",
            "what most machines run today",
        ),
        preset(
            ("linux-strict", "Linux strict"),
            (magazine, PolicyConfig::Strict),
            By("Linux since 4.9, iommu.strict=1"),
            "ATC'15 4.3, 3.2",
            "the same without a window",
        ),
        preset(
            ("freebsd", "FreeBSD"),
            (plain(BackingConfig::Freebsd), PolicyConfig::FreeBsd),
            By("FreeBSD"),
            "ATC'15 3.4",
            "logarithmic search under a lock; every unmap waits for its invalidations",
        ),
        preset(
            ("solaris", "Solaris"),
            (plain(BackingConfig::Vmem), PolicyConfig::Solaris),
            By("Solaris (as illumos has it)"),
            "ATC'15 3.4",
            "constant-time allocation under a lock; what is unmapped stays reachable until its range is mapped again",
        ),
        preset(
            ("macos", "Mac OS X"),
            (
                plain(BackingConfig::MacOs),
                PolicyConfig::MacOs(Default::default()),
            ),
            By("Mac OS X"),
            "ATC'15 3.4",
            "logarithmic allocation under a lock; invalidations are queued, and none is waited for",
        ),
    ]
    .into_iter()
}

/// Every allocator with every policy, each with its preset's name if it has one.
pub fn all() -> impl Iterator<Item = Design> {
    allocators().flat_map(|allocator| {
        policies().map(move |policy| DomainConfig::new(allocator.config, policy.config).into())
    })
}

impl Design {
    /// The preset that this is, sizes apart; with another option than the preset's it is none.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn preset(&self) -> Option<Preset> {
        let words = self.to_string();
        presets().find(|preset| preset.design.to_string() == words)
    }
    /// The system that runs it, if it is a preset.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn shipped(&self) -> Shipped {
        self.preset().map_or(Shipped::Nowhere, |p| p.shipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, string::ToString};

    /// `freebsd` and the like name an allocator, a policy and a system, but one of each.
    fn assert_unique(names: impl Iterator<Item = &'static str>) {
        let mut seen = BTreeSet::new();
        names.for_each(|name| assert!(seen.insert(name), "{name} twice"));
    }

    /// Names variants by their patterns: one that is missing here does not compile, and one that is
    /// here and not in the registry fails the test below.
    macro_rules! variants {
        ($config:ty, $entries:expr => $($pattern:pat),+ $(,)?) => {{
            let name = |config: &$config| match config {
                $($pattern => stringify!($pattern)),+
            };
            let listed: BTreeSet<_> = $entries.map(|entry| name(&entry.config)).collect();
            assert_eq!(listed, BTreeSet::from([$(stringify!($pattern)),+]));
            assert_eq!($entries.len(), listed.len(), "each once");
        }};
    }

    #[test]
    fn every_variant_is_listed_once() {
        use AllocatorConfig::*;
        use BackingConfig::*;
        variants!(AllocatorConfig, allocators() =>
            Plain(Rbtree), Plain(Eiovar(_)), Plain(Freebsd), Plain(Vmem), Plain(BackingConfig::MacOs),
            Magazine(_), Identity(_), Kmalloc(_));
        use PolicyConfig::*;
        variants!(PolicyConfig, policies() =>
            Strict, FreeBsd, DeferredPerCpu(_), DeferredGlobal(_), Solaris, PolicyConfig::MacOs(_));
    }

    #[test]
    fn every_entry_says_what_it_is_and_where_that_is_written() {
        let words = allocators().map(|a| (a.doc, a.paper));
        let words = words.chain(policies().map(|p| (p.doc, p.paper)));
        for (doc, paper) in words.chain(presets().map(|p| (p.doc, p.paper))) {
            assert!(
                !doc.is_empty() && paper.starts_with("ATC'15 "),
                "{doc}: {paper}"
            );
        }
    }

    #[test]
    fn names_are_unique_and_lead_back() {
        assert_unique(allocators().map(|a| a.name));
        assert_unique(policies().map(|p| p.name));
        assert_unique(presets().map(|p| p.name));
        assert_unique(presets().map(|p| p.title));
        for preset in presets() {
            assert_eq!(Design::parse(preset.name), Ok(preset.design));
            assert_eq!(preset.design.preset(), Some(preset));
        }
        for design in all() {
            assert_eq!(Design::parse(&design.to_string()), Ok(design));
        }
        assert_eq!(all().count(), allocators().len() * policies().len());
    }

    #[test]
    fn what_no_system_ships_says_so() {
        let shipped = |name: &str| Design::parse(name).unwrap().shipped();
        assert_eq!(shipped("linux"), Shipped::By("Linux since 4.9"));
        assert_eq!(shipped("macos,macos"), Shipped::By("Mac OS X"));
        for name in ["rbtree,strict", "linux,leaf=2m", "freebsd,strict"] {
            assert_eq!(shipped(name), Shipped::Nowhere, "{name}");
        }
    }

    #[test]
    fn systems_are_what_the_paper_says() {
        let design = |name: &str| Design::parse(name).unwrap().to_string();
        for (name, words) in [
            ("linux-3.17", "rbtree,deferred-global"),
            ("linux", "magazine,deferred-percpu"),
            ("linux-strict", "magazine,strict"),
            ("freebsd", "freebsd,freebsd"),
            ("solaris", "vmem,solaris"),
            ("macos", "macos,macos"),
        ] {
            assert_eq!(design(name), words);
        }
    }
}
