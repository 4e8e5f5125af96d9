// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A queue alone, in front of the fake unit.

use super::*;
use ioatlas_dma::invalidation::{InvalidateError, WaitLimit};
use ioatlas_vtd::layout::Words;
use ioatlas_vtd::queue::{Queue, Ticket};

pub const LIMIT: WaitLimit = WaitLimit(50);
/// How many looks a unit has to finish what it fetched: enough for one of every submission, several
/// times.
pub const LOOKS: WaitLimit = WaitLimit(1000);
/// An IOTLB invalidation of domain `n`, as the unit sees it.
pub fn invalidation(n: u64) -> Words {
    Words {
        low: 0x22 | n << 16,
        high: 0,
    }
}

pub struct Bench {
    pub host: Arc<Memory>,
    pub unit: Arc<Fake>,
    pub queue: Queue<Memory>,
}

impl Bench {
    pub fn new() -> Self {
        let host = host(4);
        let unit = Fake::new(&host);
        let frame = || host.frame_alloc().unwrap().publish();
        let queue = Queue::new(&*host, frame(), frame(), LOOKS);
        unit.state().iqa = queue.ring().0;
        unit.state().gsts = QIE;
        Bench { host, unit, queue }
    }
    /// A unit that takes nothing until it is stepped.
    pub fn held() -> Self {
        let bench = Bench::new();
        bench.unit.state().credit = 0;
        bench
    }
    pub fn submit(&self, batch: &[Words]) -> Result<Ticket, InvalidateError> {
        self.queue
            .submit(&*self.host, &self.unit, batch.iter().copied(), LIMIT)
    }
    /// Submits until there is no room; returns how often.
    pub fn fill(&self) -> usize {
        let fits = |_: &usize| self.submit(&[invalidation(0)]).is_ok();
        (0..1000).take_while(fits).count()
    }
    pub fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        self.queue.done(&*self.host, &self.unit, ticket)
    }
}
