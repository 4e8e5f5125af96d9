// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A deferred domain that is switched to strict, against an unmap on another CPU, under a unit that
//! reads everything again as soon as it has invalidated.

use crate::loom::{
    Counter,
    domain::{Tiniest, domain, map},
    explore,
    platform::on_cpu_1,
    unit::After,
};
use ioatlas_dma::{
    domain::{AllocatorConfig, DeferredConfig, Exposure, InvalidationMode, Mapping, PolicyConfig},
    units::*,
};
use std::sync::Arc;

fn deferred() -> PolicyConfig {
    PolicyConfig::DeferredPerCpu(DeferredConfig::default().batch(4))
}

fn strict(domain: &Tiniest) {
    let switched = domain.set_mode(InvalidationMode::Strict);
    switched.expect("this unit does not fail");
}

fn unmap(domain: &Tiniest, mapping: Mapping) {
    domain.unmap(mapping).expect("this unit does not fail");
}

/// Once both are over, nothing is left of what was unmapped, whichever came first: it was queued
/// and drained, or flushed by the unmap.
#[test]
fn an_unmap_against_the_switch_to_strict() {
    let (drained, own) = (Counter::default(), Counter::default());
    let counters = (drained.clone(), own.clone());
    explore("unmap, switch to strict", Some(3), move || {
        let (domain, unit) = domain(AllocatorConfig::RBTREE, deferred(), After::Prefetch);
        let mapping = map(&domain, 100);
        let at = mapping.iova().page();
        assert_eq!(unit.access(at), Some(PhysPage(100)));
        let other = {
            let (domain, unit) = (domain.clone(), unit.clone());
            on_cpu_1(move || {
                unmap(&domain, mapping);
                // that is: the switch is over
                if domain.exposure() == Exposure::None {
                    assert_eq!(unit.cached(at), None, "unmapped after the switch (P1)");
                }
            })
        };
        strict(&domain);
        assert_eq!(domain.exposure(), Exposure::None);
        other.join().unwrap();
        assert_eq!(unit.cached(at), None, "unmapped, under strict (P1)");
        assert_eq!(domain.stats().retired.pages, PageCount(0), "drained (P1)");
        match domain.stats().invalidations {
            1 => counters.0.add(),
            more => {
                counters.1.add();
                assert_eq!(more, 2, "the switch's, and the unmap's own");
            }
        }
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
    println!("drained in {}, flushed in {}", drained.get(), own.get());
    assert!(drained.get() > 0 && own.get() > 0, "both must be seen");
}

/// What was unmapped before is gone when either of two switches to strict returns.
#[test]
fn two_switches_to_strict() {
    explore("switch, switch", Some(3), || {
        let (domain, unit) = domain(AllocatorConfig::RBTREE, deferred(), After::Prefetch);
        let mapping = map(&domain, 100);
        let at = mapping.iova().page();
        assert_eq!(unit.access(at), Some(PhysPage(100)));
        unmap(&domain, mapping);
        let strict_then_look = {
            let (domain, unit) = (domain.clone(), unit.clone());
            move || {
                strict(&domain);
                assert_eq!(unit.cached(at), None, "drained by the switch (P1)");
            }
        };
        let other = on_cpu_1(strict_then_look.clone());
        strict_then_look();
        other.join().unwrap();
        assert_eq!(domain.exposure(), Exposure::None);
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
}

/// One switches to strict, and another back: what the domain says of itself is true, whoever was
/// the last.
#[test]
fn a_switch_to_strict_against_one_to_deferred() {
    let (closed, open) = (Counter::default(), Counter::default());
    let counters = (closed.clone(), open.clone());
    explore("strict, deferred", Some(3), move || {
        let (domain, unit) = domain(AllocatorConfig::RBTREE, deferred(), After::Prefetch);
        let mapping = map(&domain, 100);
        let at = mapping.iova().page();
        assert_eq!(unit.access(at), Some(PhysPage(100)));
        let other: Arc<Tiniest> = domain.clone();
        let other = on_cpu_1(move || {
            let switched = other.set_mode(InvalidationMode::Deferred);
            switched.expect("it waits for nothing");
            unmap(&other, mapping);
        });
        strict(&domain);
        other.join().unwrap();
        match domain.exposure() {
            Exposure::None => {
                counters.0.add();
                assert_eq!(domain.mode(), Some(InvalidationMode::Strict));
                assert_eq!(unit.cached(at), None, "nothing is exposed (P1)");
            }
            _ => {
                counters.1.add();
                assert_eq!(domain.mode(), Some(InvalidationMode::Deferred));
            }
        }
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
    println!("strict in {}, deferred in {}", closed.get(), open.get());
    assert!(closed.get() > 0 && open.get() > 0, "both must be seen");
}
