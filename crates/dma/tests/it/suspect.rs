// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit that does not answer: what waiting for it costs, and how it is trusted again (P11).

use ioatlas_dma::{
    domain::*,
    invalidation::{Invalidate, InvalidateError, Scope, WaitLimit},
    iova::MagazineConfig,
    platform::Authority,
    table::{TableConfig, TableShape, fmt::VtdSecond48},
    translator::{AttachError, Paged, RemappingUnit, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::sync::{Arc, Mutex};

const LIMIT: WaitLimit = WaitLimit(1_000);
/// A unit that works answers at this look at it.
const ANSWERS_AT: u64 = 3;

#[derive(Default)]
pub struct State {
    submitted: u64,
    answered: u64,
    looks: u64,
    /// Looks since it answered last, as far as it works.
    since: u64,
    dead: bool,
    /// Comes after the next look at this one, which was told what was so before.
    interrupt: Option<(u64, Box<dyn FnOnce() + Send>)>,
}

/// Caches nothing, and answers late, or not at all.
#[derive(Clone)]
pub struct Late(Arc<Uncached<Host>>, Arc<Mutex<State>>);

impl Late {
    pub fn dies(&self) {
        self.1.lock().unwrap().dead = true;
    }
    /// It works again, and has done what it was asked meanwhile.
    pub fn recovers(&self) {
        let state = &mut *self.1.lock().unwrap();
        state.dead = false;
        state.since = 0;
        state.answered = state.submitted;
    }
    /// It works again, and has done the first `answered` of what it was asked.
    fn recovers_from(&self, answered: u64) {
        let state = &mut *self.1.lock().unwrap();
        state.dead = false;
        state.since = 0;
        state.answered = answered;
    }
    pub fn looks(&self) -> u64 {
        self.1.lock().unwrap().looks
    }
}

// SAFETY: there is no cache, so it may say anything.
unsafe impl Invalidate for Late {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = u64;
    fn submit(&self, _: DomainId, _: Scope) -> Result<u64, InvalidateError> {
        let state = &mut *self.1.lock().unwrap();
        state.submitted += 1;
        Ok(state.submitted)
    }
    fn done(&self, token: u64) -> Result<bool, InvalidateError> {
        let mut guard = self.1.lock().unwrap();
        let state = &mut *guard;
        state.looks += 1;
        state.since += u64::from(!state.dead);
        if state.since >= ANSWERS_AT {
            state.since = 0;
            state.answered = state.submitted;
        }
        let done = token <= state.answered;
        let interrupt = state.interrupt.take_if(|(at, _)| *at == token);
        drop(guard);
        if let Some((_, interrupt)) = interrupt {
            interrupt();
        }
        Ok(done)
    }
}

// SAFETY: the one inside does.
unsafe impl RemappingUnit<Host> for Late {
    fn walks(&self, shape: TableShape) -> bool {
        self.0.walks(shape)
    }
    fn platform(&self) -> Option<&Arc<Host>> {
        None
    }
    fn attach(
        &self,
        by: Authority,
        p: &Host,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        self.0.attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &Host,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.0.detach(by, p, device, domain)
    }
    fn domain_id(&self, p: &Host) -> Option<DomainId> {
        self.0.domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &Host, id: DomainId) {
        self.0.release_domain_id(by, p, id)
    }
}

pub type Tables = Paged<Host, VtdSecond48, Late>;
pub type Dom = Domain<Host, Tables>;

pub fn domain(policy: PolicyConfig) -> (Dom, Late) {
    let host = Arc::new(Host::new(HostConfig::default().frames(256).slots(2)));
    let unit = Late(Arc::default(), Arc::default());
    let tables = Paged::new(&host, unit.clone(), TableConfig::default()).expect("tables");
    let config = DomainConfig::new(AllocatorConfig::Magazine(MagazineConfig::default()), policy)
        .wait_limit(LIMIT);
    (Domain::new(host, tables, config).expect("a domain"), unit)
}

pub fn map(domain: &Dom, nth: u64) -> Mapping {
    let buffer = PhysRange::page(PhysPage(0x100 + nth));
    domain.map(buffer, Direction::FromDevice).expect("room")
}

fn cause(error: UnmapError) -> InvalidateError {
    match error {
        UnmapError::Invalidate { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn a_dead_unit_is_waited_for_once_however_many_mappings_end() {
    const MAPPINGS: u64 = 64;
    for policy in [PolicyConfig::Strict, PolicyConfig::FreeBsd] {
        let (domain, unit) = domain(policy);
        let mappings: Vec<_> = (0..MAPPINGS).map(|nth| map(&domain, nth)).collect();
        unit.dies();
        let before = unit.looks();
        let failed: Vec<_> = mappings
            .into_iter()
            .map(|mapping| cause(domain.unmap(mapping).unwrap_err()))
            .collect();
        let looks = unit.looks() - before;
        let most = LIMIT.0 + 1 + 2 * MAPPINGS;
        assert!(
            looks <= most,
            "P11: {MAPPINGS} unmaps looked {looks} times at a dead unit, more than {most}"
        );
        assert_eq!(failed[0], InvalidateError::TimedOut { turns: LIMIT.0 });
        assert_eq!(failed[1..], [InvalidateError::TimedOut { turns: 0 }; 63]);
        // none of it is ever used again
        let quarantined = domain.stats().quarantined;
        assert_eq!(quarantined.pages, PageCount(MAPPINGS));
    }
}

/// Whatever a policy defers, its flushes are bounded in the same way.
#[test]
fn a_dead_unit_is_waited_for_once_by_flushes_too() {
    for policy in [
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
        PolicyConfig::MacOs(MacOsConfig::default()),
    ] {
        let (domain, unit) = domain(policy);
        let mappings: Vec<_> = (0..32).map(|nth| map(&domain, nth)).collect();
        unit.dies();
        let before = unit.looks();
        for mapping in mappings {
            domain.unmap(mapping).ok(); // it fails: the unit is dead
            let _ = domain.flush();
        }
        let looks = unit.looks() - before;
        // one look for each submission, one for the oldest; macos looks at several each time
        let most = LIMIT.0 + 32 * 32;
        assert!(
            looks <= most,
            "P11: 32 flushes looked {looks} times at a dead unit, more than {most}"
        );
    }
}

/// What finds the unit silent just before it is back has itself been looked at once: it is no reason
/// to find the unit silent.
#[test]
fn what_was_not_waited_for_does_not_make_the_unit_suspect() {
    let (domain, unit) = domain(PolicyConfig::Strict);
    let domain = Arc::new(domain);
    let mut mappings = (0..3).map(|nth| map(&domain, nth)).collect::<Vec<_>>();
    unit.dies();
    let mut end = || domain.unmap(mappings.remove(0));
    let turns = LIMIT.0;
    let timed_out = InvalidateError::TimedOut { turns };
    assert_eq!(cause(end().unwrap_err()), timed_out);
    let oldest = unit.1.lock().unwrap().submitted;
    let is_back = {
        let (domain, unit) = (domain.clone(), unit.clone());
        move || {
            unit.recovers_from(oldest);
            domain.tick(TimeNs(1)).expect("nothing is deferred"); // and finds it so
            unit.recovers_from(oldest);
        }
    };
    unit.1.lock().unwrap().interrupt = Some((oldest, Box::new(is_back)));
    let at_once = InvalidateError::TimedOut { turns: 0 };
    assert_eq!(cause(end().unwrap_err()), at_once);
    let ended = end();
    assert!(
        ended.is_ok(),
        "P11: the unit answers again, and the next unmap says {ended:?}"
    );
}

#[test]
fn a_unit_that_answers_again_is_waited_for_again() {
    for by_tick in [false, true] {
        let (domain, unit) = domain(PolicyConfig::Strict);
        let mut mappings = (0..4).map(|nth| map(&domain, nth)).collect::<Vec<_>>();
        unit.dies();
        let mut end = || domain.unmap(mappings.remove(0));
        let turns = LIMIT.0;
        assert_eq!(
            cause(end().unwrap_err()),
            InvalidateError::TimedOut { turns }
        );
        let at_once = InvalidateError::TimedOut { turns: 0 };
        assert_eq!(cause(end().unwrap_err()), at_once);
        unit.recovers();
        if by_tick {
            domain.tick(TimeNs(1)).expect("nothing is deferred");
        }
        for nth in 0..2 {
            let ended = end();
            assert!(
                ended.is_ok(),
                "P11: the unit answers again, and unmap {nth} after that says {ended:?}"
            );
        }
        assert_eq!(domain.stats().quarantined.pages, PageCount(2), "P10");
        domain.close().expect("the unit works");
    }
}
