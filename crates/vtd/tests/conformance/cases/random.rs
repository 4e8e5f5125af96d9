// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Sequences from a seed: maps, unmaps, accesses, flushes, devices attached and detached, the same
//! on both units and against a model of what is mapped. `IOATLAS_SEED` says which seed is the
//! first; a case's name says its own.
//!
//! Where a policy leaves pages exposed, a page that is unmapped and not flushed may be reached or
//! not: there the units are compared with each other alone.

use super::{designs::exposes, driver::*, *};
use fastrand::Rng;
use ioatlas_dma::{
    design::{self, Design},
    domain::Mapping,
};
use std::env;

const SEQUENCES: u64 = 48;
const STEPS: u32 = 60;

pub fn cases() -> Vec<Case> {
    let first = env::var("IOATLAS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let first: u64 = first.unwrap_or(1);
    let designs: Vec<Design> = design::all().collect();
    (first..first + SEQUENCES)
        .map(|seed| {
            let design = designs[seed as usize % designs.len()];
            let width = WIDTHS[(seed / 7 % 2) as usize];
            let name = format!("seed {seed}, {} bits, {design}", width.bits());
            Case::new(name, move |run| match width {
                AddressWidth::Bits39 => sequence::<3>(run, design, seed),
                _ => sequence::<4>(run, design, seed),
            })
            .of_width(width)
        })
        .collect()
}

/// What the model knows.
struct Live {
    mapping: Mapping,
    page: IovaPage,
    to: PhysPage,
    perm: Perm,
}

fn sequence<const L: u32>(run: &mut Run<'_>, design: Design, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let frames = run.host().frames_in_use();
    let Some(driver) = brought_up(run) else {
        return;
    };
    let domain = domain::<L>(run, &driver, design.domain);
    let mut attached = false;
    let mut live: Vec<Live> = Vec::new();
    // pages once mapped: no device reaches them, or perhaps one does
    let mut past: Vec<IovaPage> = Vec::new();
    for step in 0..STEPS {
        let label = |what: &str| format!("step {step}: {what}");
        match random.usize(..12) {
            0 => {
                let done = match attached {
                    true => domain.detach(NIC).is_ok(),
                    false => domain.attach(NIC).is_ok(),
                };
                attached = !attached;
                run.see(label("attached or detached"), done, true);
            }
            1 => {
                let done = domain.flush().is_ok();
                run.see(label("flush"), done, true);
            }
            2..5 => {
                let to = [A, B, C, D][random.usize(..4)];
                let all = [
                    Direction::ToDevice,
                    Direction::FromDevice,
                    Direction::Bidirectional,
                ];
                let direction = all[random.usize(..3)];
                if let Ok(mapping) = domain.map(PhysRange::page(to), direction) {
                    let (page, perm) = (mapping.iova().page(), direction.perm());
                    run.see(label("mapped at"), page, page);
                    past.retain(|old| *old != page);
                    live.push(Live {
                        mapping,
                        page,
                        to,
                        perm,
                    });
                } else {
                    run.see(label("mapped"), false, true);
                }
            }
            5..7 if !live.is_empty() => {
                let gone = live.swap_remove(random.usize(..live.len()));
                past.push(gone.page);
                let done = domain.unmap(gone.mapping).is_ok();
                run.see(label("unmapped"), done, true);
                // the same page may be mapped once more (identity)
                past.retain(|page| live.iter().all(|other| other.page != *page));
            }
            n => {
                let kind = KINDS[random.usize(..2)];
                let choice = random.usize(..live.len() + past.len() + 1);
                let page = live
                    .iter()
                    .map(|l| l.page)
                    .chain(past.iter().copied())
                    .nth(choice);
                let page = page.unwrap_or(IovaPage(0x12_3456 + n as u64));
                let got = run.access(NIC, page, kind);
                let of: Vec<&Live> = live.iter().filter(|l| l.page == page).collect();
                let allowed = of.iter().find(|l| l.perm.allows(kind)).filter(|_| attached);
                let want = match allowed {
                    Some(live) => Reach::Page(live.to),
                    // perhaps: the units must agree, no more
                    None if exposes(&design) => got,
                    None => Reach::Blocked,
                };
                run.see(label("access"), got, want);
            }
        }
    }
    for gone in live {
        let done = domain.unmap(gone.mapping).is_ok();
        run.see("unmapped at the end", done, true);
    }
    let closed = domain.close().map_err(|error| error.to_string());
    run.see("closed", format!("{closed:?}"), "Ok(())");
    shut_down(run, driver, frames);
}
