// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains that are made strict and deferred while they run.

use super::*;

/// A page that is unmapped before, in, or after a time in which a domain is made strict, and is
/// reached by an access that begins and ends when it says; what is judged of it.
#[test]
fn a_domain_is_judged_by_its_mode_at_the_time() {
    #[derive(Clone, Copy, PartialEq)]
    enum Turn {
        Unmap,
        Strict,
        Deferred,
        /// The device's access begins.
        Begins,
        /// What is stale is flushed, by pages.
        Flush,
    }
    use Turn::*;
    let cases: [(&[Turn], &str); 12] = [
        (&[Unmap, Begins], "stale"),
        (&[Unmap, Flush, Strict, Begins], "P1"),
        (&[Unmap, Flush, Begins, Strict], "P5"),
        // of an unmap that is not flushed, the switch and the unmap each tell without an access
        (&[Unmap, Strict], "P1"),
        (&[Strict, Unmap], "P1"),
        (&[Strict, Flush, Unmap, Flush], "P1"),
        (&[Strict, Deferred, Unmap, Begins], "stale"),
        (
            &[Strict, Deferred, Strict, Deferred, Unmap, Begins],
            "stale",
        ),
        // what was unmapped while it was strict, or before, is flushed for good
        (&[Unmap, Flush, Strict, Deferred, Begins], "P1"),
        (&[Unmap, Flush, Begins, Strict, Deferred], "P5"),
        (&[Deferred, Unmap, Begins], "stale"),
        (
            &[Strict, Strict, Deferred, Unmap, Deferred, Begins],
            "stale",
        ),
    ];
    for (nth, (steps, expected)) in cases.into_iter().enumerate() {
        let (mut ledger, domain) = ledger(LAZY);
        let called = ledger.map_called(domain, Perm::Read, &[]);
        ledger.map_returned(domain, called, PAGE, [A].into_iter(), Perm::Read);
        let range = IovaRange::new(PAGE, PageCount(1));
        for step in steps {
            match step {
                Unmap => {
                    let called = ledger.unmap_called(domain, range);
                    ledger.unmap_returned(domain, range, called);
                }
                Strict => {
                    let called = ledger.now();
                    ledger.made_strict(domain, called);
                }
                Deferred => {
                    ledger.defer_called(domain);
                    ledger.defer_returned(domain);
                }
                Begins => ledger.access_began(AccessId(1), NIC),
                Flush => {
                    let began = ledger.now();
                    ledger.flushed(domain.0, Some(range), began);
                }
            }
        }
        if steps.contains(&Begins) {
            reaches(&mut ledger, 1, A, READ);
        }
        assert_eq!(verdict(&ledger), expected, "case {nth}");
    }
}

/// Nothing is promised as strict where another switch may have been the last.
#[test]
fn a_switch_to_strict_beside_one_to_deferred_promises_nothing() {
    for overlap in ["called", "returned", "neither"] {
        let (mut ledger, domain) = ledger(LAZY);
        ledger.defer_called(domain);
        if overlap == "neither" {
            ledger.defer_returned(domain);
        }
        let called = ledger.now();
        if overlap == "returned" {
            ledger.defer_returned(domain);
        }
        ledger.made_strict(domain, called);
        assert_eq!(
            ledger.spaces[domain.0].modes.is_strict(),
            overlap == "neither"
        );
    }
}
