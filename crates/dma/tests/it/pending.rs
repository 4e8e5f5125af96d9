// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmaps that are started, and finished later, before a unit that answers when it is told to.

use crate::lend;
use crate::suspect::{Dom, Late, Tables, domain, map};
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use ioatlas_host::{Host, register};
use std::sync::Arc;

fn mapped(domain: &Dom, count: u64) -> Vec<Mapping> {
    (0..count).map(|nth| map(domain, nth)).collect()
}

fn retired(domain: &Dom) -> u64 {
    domain.stats().retired.pages.0
}

#[test]
fn what_is_started_is_held_until_the_unit_has_answered() {
    let (domain, unit) = domain(PolicyConfig::Strict);
    let all = mapped(&domain, 10);
    let iovas: Vec<_> = all.iter().map(Mapping::iova).collect();
    let before = domain.stats();
    unit.dies();
    let mut pending = domain.unmap_start(&mut all.into_iter());
    for _ in 0..5 {
        let looks = unit.looks();
        assert!(!pending.is_done(), "P1: the unit has not answered");
        assert_eq!(unit.looks() - looks, 1, "P11: it waits for nothing");
    }
    let stats = domain.stats();
    assert_eq!(stats.invalidations, before.invalidations + 1, "one for all");
    assert_eq!(stats.unmaps, before.unmaps + 10);
    assert_eq!(retired(&domain), 10, "P10: all of it is held");
    domain.audit().expect("P10");
    for iova in &iovas {
        let again = domain.map_at(*iova, PhysRange::page(PhysPage(9)), Direction::ToDevice);
        assert!(again.is_err(), "P3: {iova} is held");
    }
    unit.recovers();
    assert!(pending.is_done());
    assert_eq!(retired(&domain), 0, "what has ended is free");
    let looks = unit.looks();
    assert!(pending.is_done(), "it always says so then");
    assert_eq!(pending.finish(), Ok(10));
    assert_eq!(unit.looks(), looks, "and asks for nothing");
    domain.audit().expect("P10");
    domain.close().expect("the unit works");
}

#[test]
fn a_unit_that_does_not_answer_is_waited_for_as_long_as_the_domain_says() {
    for drops in [false, true] {
        let (domain, unit) = domain(PolicyConfig::Strict);
        let all = mapped(&domain, 10);
        unit.dies();
        let mut pending = domain.unmap_start(&mut all.into_iter());
        assert!(!pending.is_done(), "P1: the unit has not answered");
        match drops {
            true => drop(pending),
            false => {
                let error = pending.finish().expect_err("P1: the unit is dead");
                assert_eq!((error.ended, error.stopped), (0, None));
                assert_eq!(error.lost.map(|lost| lost.mappings), Some(10));
            }
        }
        let quarantined = domain.stats().quarantined.pages;
        assert_eq!(quarantined, PageCount(10), "P1: nothing of it is free");
        assert_eq!(retired(&domain), 0, "P10");
        domain.audit().expect("P10");
        unit.recovers();
        domain.close().expect("the unit works");
    }
}

#[test]
fn one_that_is_forgotten_is_counted_for_good() {
    let (domain, unit) = domain(PolicyConfig::Strict);
    let all = mapped(&domain, 10);
    unit.dies();
    std::mem::forget(domain.unmap_start(&mut all.into_iter()));
    unit.recovers();
    domain.flush().expect("the unit works");
    domain.tick(TimeNs(1)).expect("nothing is deferred");
    assert_eq!(retired(&domain), 10, "P10");
    domain.audit().expect("P10");
    domain.close().expect("the unit works");
}

/// An interrupt handler starts, and a task on another CPU finishes.
#[test]
fn it_may_be_sent_to_another_cpu() {
    fn is_send<T: Send>(_: &T) {}
    let (domain, _) = domain(PolicyConfig::Strict);
    let pending = domain.unmap_start(&mut mapped(&domain, 3).into_iter());
    is_send(&pending);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            register();
            assert_eq!(pending.finish(), Ok(3));
        });
    });
    let domain = Arc::new(domain);
    let dma = Arc::new(Dma::new(domain.clone(), DmaConfig::default()));
    let client = dma.client(ClientConfig::default()).expect("a client");
    let none = std::iter::empty::<DmaMapping<Lent<Vec<PhysRange>>>>();
    is_send(&client.unmap_start(&mut { none }));
    domain.audit().expect("P10");
}

/// What owns a list, as long as there is more than one.
type Owned = Arc<[PhysRange]>;

/// A client, lists of which every other one is bounced, and what is mapped of them.
struct Lists {
    domain: Arc<Dom>,
    unit: Late,
    client: Client<Host, Tables>,
    lists: Vec<Owned>,
    mapped: Vec<DmaMapping<Lent<Owned>>>,
}

impl Lists {
    fn new(count: u64) -> Self {
        let (domain, unit) = domain(PolicyConfig::Strict);
        let domain = Arc::new(domain);
        let dma = Arc::new(Dma::new(domain.clone(), DmaConfig::default()));
        let client =
            dma.client(ClientConfig::default().placement(Placement::Below(ByteCount(2049))));
        let client = client.expect("a client");
        let p = domain.platform();
        let list = |nth: u64| -> Owned {
            let page = p.frame_alloc().expect("a frame").page();
            let len = if nth.is_multiple_of(2) { 2048 } else { GRANULE };
            [PhysRange::new(page.addr(), ByteCount(len))].into()
        };
        let lists: Vec<_> = (0..count).map(list).collect();
        let map = |list: &Owned| client.map_sg(lend(list.clone()), Direction::FromDevice);
        let mapped = lists.iter().map(map).collect::<Result<_, _>>();
        Lists {
            mapped: mapped.expect("room"),
            domain,
            unit,
            client,
            lists,
        }
    }
    fn start(&mut self) -> DmaPendingUnmap<'_, Host, Tables, Lent<Owned>> {
        let mapped = std::mem::take(&mut self.mapped);
        self.client.unmap_start(&mut mapped.into_iter())
    }
    /// Owners of each list, this one among them.
    fn owners(lists: &[Owned]) -> Vec<usize> {
        lists.iter().map(Arc::strong_count).collect()
    }
}

#[test]
fn lists_come_back_from_finish_and_from_nothing_else() {
    for count in [1, 2, 10, 64] {
        let mut all = Lists::new(count);
        let (lists, unit) = (all.lists.clone(), all.unit.clone());
        unit.dies();
        let mut pending = all.start();
        if count > 1 {
            assert!(!pending.is_done(), "P1: the unit has not answered");
        }
        assert_eq!(Lists::owners(&lists), vec![3; count as usize], "P1: held");
        unit.recovers();
        assert!(pending.is_done());
        assert_eq!(
            Lists::owners(&lists),
            vec![3; count as usize],
            "P1: held still"
        );
        let mut back = Vec::new();
        assert_eq!(
            pending.finish(|list| back.push(list.into_inner())),
            Ok(count as usize)
        );
        assert_eq!(back, lists, "in order");
        all.domain.audit().expect("P10");
    }
}

#[test]
fn of_one_that_is_dropped_lists_are_dropped_that_no_device_reaches() {
    for dies in [false, true] {
        let mut all = Lists::new(10);
        let (lists, unit) = (all.lists.clone(), all.unit.clone());
        if dies {
            unit.dies();
        }
        drop(all.start());
        let left: Vec<_> = (0..10)
            .map(|nth| 2 + usize::from(dies) * (nth % 2))
            .collect();
        assert_eq!(Lists::owners(&lists), left, "P1: a device may reach those");
        unit.recovers();
        all.domain.audit().expect("P10");
    }
}

#[test]
fn lists_that_a_device_may_reach_still_do_not_come_back() {
    let mut all = Lists::new(10);
    let (lists, unit) = (all.lists.clone(), all.unit.clone());
    unit.dies();
    let mut back = Vec::new();
    let error = all.start().finish(|list| back.push(list.into_inner()));
    let error = error.expect_err("P1: the unit is dead");
    assert_eq!(
        (error.ended, error.lost.map(|lost| lost.mappings)),
        (5, Some(5))
    );
    let bounced: Vec<_> = lists.iter().step_by(2).cloned().collect();
    assert_eq!(back, bounced, "P1: not what is mapped directly");
    unit.recovers();
    all.domain.audit().expect("P10");
}

#[test]
fn the_mapping_of_another_pool_is_told_by_finish() {
    let mut all = Lists::new(6);
    let config = ClientConfig::default().placement(Placement::Never);
    let other = all.client.dma().client(config).expect("a client");
    let theirs = other.map_sg(lend(all.lists[1].clone()), Direction::FromDevice);
    let theirs = theirs.expect("room");
    let at = theirs.iova();
    all.mapped.insert(3, theirs);
    let mut mapped = std::mem::take(&mut all.mapped).into_iter();
    let mut back = Vec::new();
    let pending = all.client.unmap_start(&mut mapped);
    let error = pending
        .finish(|list| back.push(list.into_inner()))
        .expect_err("foreign");
    assert_eq!((error.ended, error.lost, mapped.len()), (3, None, 3));
    let Some(DmaUnmapError::Foreign(theirs)) = error.stopped else {
        panic!("{:?}", error.stopped)
    };
    assert_eq!(theirs.iova(), at);
    other.unmap(*theirs).expect("theirs");
    let pending = all.client.unmap_start(&mut mapped);
    assert_eq!(pending.finish(|list| back.push(list.into_inner())), Ok(3));
    assert_eq!(back, all.lists);
    all.domain.audit().expect("P10");
}
