// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A strategy of your own: prefetch where the device went last time. Run it on a trace:
//! `cargo run --release -p ioatlas-iotlb --example own_strategy -- TRACE`
use ioatlas_iotlb::{DeviceId, Filled, IovaPage, Laboratory, Prefetch, Setup, Strategy, Trace};
use std::collections::HashMap;
use std::path::Path;

/// Remembers the last two pages of each device, and expects the same distance again.
#[derive(Default)]
struct Stride {
    last: HashMap<DeviceId, (u64, i64)>,
}

impl Strategy for Stride {
    const RANKS: bool = false; // evictions stay least recently used

    fn after_fill(&mut self, filled: &Filled, prefetch: &mut impl Prefetch) {
        let page = filled.page.number();
        let (before, stride) = self.last.entry(filled.device).or_insert((page, 0));
        let distance = page as i64 - *before as i64;
        if distance == *stride
            && let Some(next) = page.checked_add_signed(distance).and_then(IovaPage::new)
        {
            prefetch.page(next); // does nothing unless it is mapped
        }
        (*before, *stride) = (page, distance);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which trace?")?;
    let trace = Trace::open(Path::new(&path))?;
    let laboratory = Laboratory::new(&trace);
    let baseline = laboratory.simulate(&Setup::default());
    let own = laboratory.simulate_own(&Setup::default(), "stride", Stride::default());
    for outcome in [baseline, own] {
        let percent = outcome.miss_rate * 100.0;
        println!(
            "{}: {} misses, {percent:.1} %",
            outcome.strategy, outcome.misses
        );
    }
    Ok(())
}
