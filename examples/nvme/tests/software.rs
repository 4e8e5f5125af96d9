// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver behind a remapping unit that is nothing but code: what becomes of memory that runs
//! out, and of evidence that is none.

#[path = "../examples/everywhere/software.rs"]
mod software;

use ioatlas_dma::{
    dma_api::{ClientConfig, Dma, DmaConfig},
    domain::DomainConfig,
    platform::*,
    translator::VtdSecond48,
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_nvme::{
    edu::Edu,
    nvme::{
        queue::{Depth, QueueId, QueuePair},
        registers::Capabilities,
    },
    revoke::{self, RevokeError, Revoked},
    window::RegisterWindow,
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::Machine,
};
use software::SoftEdu;
use std::sync::{Arc, Mutex};

/// Two rings, and a list for each of three commands: with every number of frames that are too few,
/// what was there is there again.
#[test]
fn a_pair_of_queues_that_does_not_fit_leaves_nothing() {
    let config = HostConfig::default().frames(64).slots(2);
    let memory = Arc::new(Host::new(config));
    let machine = Machine::new(memory.clone(), &UnitConfig::new(Geometry::VTD_48)).unwrap();
    let domain = Arc::new(
        machine
            .domain::<VtdSecond48>(DomainConfig::default())
            .unwrap(),
    );
    let dma = Arc::new(Dma::new(domain.clone(), DmaConfig::default()));
    let client = dma.client(ClientConfig::default()).unwrap();
    let (_, window) = software::machine().unwrap();
    let all = || std::iter::from_fn(|| memory.frame_alloc()).collect::<Vec<_>>();
    // SAFETY: frames go back where they came from.
    let by = unsafe { Authority::assume() };
    let mut refused = 0;
    loop {
        let mut held = all();
        let spare = held.split_off(held.len().saturating_sub(refused));
        assert_eq!(spare.len(), refused, "P10: frames are missing");
        spare
            .into_iter()
            .for_each(|frame| memory.frame_free(by, frame));
        let (window, id) = (window.clone() as Arc<dyn RegisterWindow>, QueueId(1));
        let pair = QueuePair::new(&client, window, Capabilities(255), id, Depth(3));
        held.into_iter()
            .for_each(|frame| memory.frame_free(by, frame));
        let Err(error) = pair else {
            pair.unwrap().free().unwrap();
            break;
        };
        let mapped = domain.audit().unwrap().census.pages;
        assert_eq!(mapped, PageCount(0), "P10: {refused} frames: {error}");
        refused += 1;
    }
    assert!(refused > 4, "with {refused} frames there was room");
    assert_eq!(domain.audit().unwrap().census.pages, PageCount(0));
}

/// An `edu` that takes as many looks as it is told for each transfer, the last number for all that
/// follow.
struct Slow {
    inner: Arc<SoftEdu>,
    looks: Vec<u32>,
    begun: Mutex<usize>,
    pending: Mutex<Option<(u64, u32)>>,
}

const COMMAND: u64 = 0x98;

impl Slow {
    fn new(inner: Arc<SoftEdu>, looks: &[u32]) -> Self {
        Slow {
            inner,
            looks: looks.to_vec(),
            begun: Mutex::new(0),
            pending: Mutex::new(None),
        }
    }
}

impl RegisterWindow for Slow {
    fn read32(&self, offset: u64) -> u32 {
        self.inner.read32(offset)
    }
    fn write32(&self, offset: u64, value: u32) {
        self.inner.write32(offset, value);
    }
    fn read64(&self, offset: u64) -> u64 {
        let mut pending = self.pending.lock().unwrap();
        match pending.take() {
            Some((command, looks @ 1..)) if offset == COMMAND => {
                *pending = Some((command, looks - 1));
                1
            }
            Some((command, _)) => {
                self.inner.write64(COMMAND, command);
                0
            }
            None => self.inner.read64(offset),
        }
    }
    fn write64(&self, offset: u64, value: u64) {
        if offset != COMMAND {
            return self.inner.write64(offset, value);
        }
        let mut begun = self.begun.lock().unwrap();
        let nth = *begun;
        *begun += 1;
        match self.looks.get(nth).or(self.looks.last()) {
            // it was over before anything could be done
            None | Some(0) => self.inner.write64(offset, value),
            Some(looks) => *self.pending.lock().unwrap() = Some((value, *looks)),
        }
    }
}

fn revoked(looks: &[u32]) -> Result<Vec<Revoked>, RevokeError> {
    let (domain, edu) = software::machine().unwrap();
    let edu = Edu::new(Slow::new(edu, looks)).unwrap();
    let mut seen = Vec::new();
    revoke::all(&edu, &Arc::new(domain), |case| seen.push(case))?;
    Ok(seen)
}

/// A page that was written while it was mapped, and planted anew, looks as if it had never been
/// written.
#[test]
fn a_transfer_that_was_over_before_its_unmap_is_no_evidence() {
    let calm = revoked(&[2]).unwrap();
    assert!(
        calm.iter()
            .all(|case| case.is_good() && case.overtaken == 0)
    );
    // every other one is over at once
    let looks: Vec<u32> = (0..200).map(|nth| 2 * (nth % 2)).collect();
    let busy = revoked(&looks).unwrap();
    assert_eq!(busy.len(), calm.len());
    assert!(busy.iter().all(Revoked::is_good));
    let again: Vec<_> = busy.iter().filter(|case| case.overtaken > 0).collect();
    assert!(!again.is_empty());
    assert!(again.iter().all(|case| case.case == "unmapped under way"));
    match revoked(&[0]) {
        Err(RevokeError::Overtaken(attempts)) => assert!(attempts > 1),
        other => panic!("{other:?}"),
    }
}
