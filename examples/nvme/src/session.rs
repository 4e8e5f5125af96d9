// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Everything that is done with a controller, in order, and what came of it.
//!
//! It is the same wherever the controller is: what is below it comes as a domain, a window of
//! registers and, where there are any, interrupts.

use crate::{
    cost::{self, Cost, Plan},
    edu::Edu,
    lists::{self, Mapped},
    load::Buffers,
    memory,
    nvme::{
        NvmeError,
        command::*,
        controller::{About, Controller},
        namespace::Namespace,
        queue::*,
    },
    pattern::{self, Expected},
    policy::Policy,
    revoke::{self, RevokeError, Revoked},
    round_trip::{RoundTrip, RoundTripError, round_trip},
    verify::{self, Verified, VerifyError},
    vfio::Space,
    window::{Idle, Interrupts, RegisterWindow, Vector},
};
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, FromDevice, ToDevice},
    domain::Domain,
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use serde::Serialize;
use std::sync::Arc;

/// What is known of the disk's content, and what may be done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disk {
    /// Nothing is known, and nothing may be written: what one read brought is what
    /// others are held against.
    ReadOnly,
    /// It holds the pattern, all of it.
    HasPattern,
    /// The pattern is written to its first 8 MiB.
    Destroy,
}

/// As much of a disk is looked at where it does not hold the pattern.
const LOOKED_AT: u64 = 8 << 20;

/// What a session is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Orders {
    pub namespace: NamespaceId,
    /// What its disk is.
    pub disk: Disk,
    /// A namespace so slow that unmaps overtake reads, to show what a controller does then.
    pub late: Option<NamespaceId>,
    /// How completions are waited for.
    pub idle: Idle,
    /// What is verified: policies and sizes.
    pub verify: Vec<Policy>,
    pub measure: Plan,
}

/// Where to do it.
#[allow(missing_docs)] // its fields say it
pub struct Place<'p, T: Translator<Host>> {
    /// With all devices attached.
    pub domain: Arc<Domain<Host, T>>,
    pub nvme: Arc<dyn RegisterWindow>,
    /// Those of an `edu`, if there is one.
    pub edu: Option<Arc<dyn RegisterWindow>>,
    /// The controller's interrupts, and which one to use, if there are any.
    pub interrupts: Option<(&'p dyn Interrupts, Vector)>,
    /// How often the kernel was asked to map or unmap so far, if one has the tables.
    pub calls: Option<&'p dyn Fn() -> u64>,
}

/// What came of it. This is what `--json` prints; fields are added, and never change their meaning.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Report {
    /// The address space that its devices are in, where a kernel keeps it.
    pub space: Option<Space>,
    /// How buffers lie in the machine, where that was chosen.
    pub layout: Option<&'static str>,
    /// When the domain invalidates, where that was chosen: a name of `ioatlas_dma::design`.
    pub domain_policy: Option<&'static str>,
    pub model: String,
    pub disk_bytes: u64,
    /// Of how many physical runs a buffer of 128 KiB is, if the kernel tells.
    pub runs: Option<u64>,
    /// Reads under each policy.
    pub verified: Vec<Verified>,
    /// Wrong bytes of reads told of by interrupts; none if there are no interrupts.
    pub interrupts_wrong_bytes: Option<u64>,
    /// A page to `edu` and back, if there is one.
    pub round_trip: Option<RoundTrip>,
    /// What was revoked, and what the device did then.
    pub revoked: Vec<Revoked>,
    /// The controller was told these numbers around that.
    pub revoked_notes: [u32; 2],
    /// Of so many reads that an unmap overtook, so many wrote afterwards. No verdict is made of it.
    pub late: Option<[u32; 2]>,
    /// Lists that were mapped and unmapped.
    pub lists: Vec<Mapped>,
    pub costs: Vec<Cost>,
    /// Pages that were mapped still at the end.
    pub pages_left: u64,
    /// What is not as it should be.
    pub failures: Vec<String>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its variants say it
pub enum SessionError {
    #[error(transparent)]
    Nvme(#[from] NvmeError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A page there and back.
    #[error("edu: {0}")]
    RoundTrip(#[from] RoundTripError),
    #[error("edu: {0}")]
    Revoke(#[from] RevokeError),
}

/// Reads that no load exceeds.
const LONGEST: u64 = 128 << 10;
const LATE_READS: u32 = 4;

/// Does all of it. The controller is disabled when this returns, and the domain as empty as it was.
///
/// # Errors
/// [`SessionError`]: it could not be done. What was done and came out wrong is in the report.
pub fn run<T: Translator<Host>>(
    place: &Place<'_, T>,
    orders: &Orders,
) -> Result<Report, SessionError> {
    // a CPU slot of this thread's own: the fast paths of map and unmap need one
    ioatlas_host::register();
    let domain = &place.domain;
    let mapped = |p: &Arc<Domain<Host, T>>| p.audit().map_or(0, |audit| audit.census.pages.0);
    let before = mapped(domain);
    let plain = Policy::MapUnmap.client(domain).map_err(VerifyError::from)?;
    // declared before the controller, so dropped after it; of what was mapped when an error ended
    // this nothing is freed
    let buffers;
    let mut controller = Controller::start(place.nvme.clone(), &plain, orders.idle)?;
    let disk = Namespace::open(&mut controller, &plain, orders.namespace)?;
    let deepest = orders.measure.depths.iter().max();
    let depth = deepest.copied().unwrap_or(Depth(8)).max(Depth(8));
    let mut queue = controller.create_queue(depth, Told::Polled)?;
    let About { model, .. } = controller.about().clone();
    let mut report = Report {
        model,
        disk_bytes: disk.len().0,
        ..Report::default()
    };
    let expected = content(&mut queue, &plain, &disk, orders.disk)?;
    let host = domain.platform().clone();
    buffers = Buffers::new(host.clone(), depth.0.into(), ByteCount(LONGEST + GRANULE))?;

    // many disks take less than our longest in one command
    let most = disk.transfer_max;
    let sizes = [4096, 16 << 10, LONGEST].map(|len| ByteCount(len.min(most.0)));
    let mut plan = orders.measure.clone();
    plan.sizes.retain(|size| *size <= most);
    for policy in &orders.verify {
        let seen = verify::policy(
            *policy,
            domain,
            &mut queue,
            &disk,
            &buffers,
            orders.idle,
            &sizes,
            &expected,
        )?;
        report.verified.extend(seen);
    }
    // once they were used they are where they will be
    report.runs = memory::runs(&host, buffers.buffer(0, ByteCount(LONGEST)));
    if let Some((interrupts, vector)) = place.interrupts {
        let wrong = verify::interrupts(
            &mut controller,
            &plain,
            &disk,
            interrupts,
            vector,
            &expected,
        )?;
        report.interrupts_wrong_bytes = Some(wrong);
    }
    let mut note = 0;
    if let Some(registers) = &place.edu {
        let edu = Edu::new(registers.clone()).map_err(RevokeError::from)?;
        report.round_trip = Some(round_trip(domain, &edu)?);
        report.revoked_notes = [1, 2];
        note = 2;
        controller.note(1)?;
        revoke::all(&edu, domain, |revoked| report.revoked.push(revoked))?;
        controller.note(2)?;
    }
    if let Some(slow) = orders.late {
        let slow = Namespace::open(&mut controller, &plain, slow)?;
        let landed = revoke::late(&mut queue, &plain, &slow, LATE_READS)?;
        report.late = Some([LATE_READS, landed]);
    }
    report.lists = lists::map(domain, &mut controller, &buffers, &mut note)?;
    report.costs = cost::measure(
        &plan,
        domain,
        &mut controller,
        &mut queue,
        &disk,
        &buffers,
        orders.idle,
        || place.calls.map(|calls| calls()),
        &mut note,
    )?;
    controller.delete_queue(queue)?;
    controller.shut_down()?;
    drop(plain);
    report.pages_left = mapped(domain).saturating_sub(before);
    report.failures = failures(&report);
    Ok(report)
}

/// Finds out what is on the disk.
fn content<T: Translator<Host>>(
    queue: &mut QueuePair,
    client: &Client<Host, T>,
    disk: &Namespace,
    known: Disk,
) -> Result<Expected, NvmeError> {
    let step = disk.transfer_max.0.min(LONGEST);
    let len = disk.len().0.min(LOOKED_AT) / step * step;
    let steps = (0..len).step_by(step as usize);
    let block = |at| Block(at / disk.block.0);
    match known {
        Disk::HasPattern => Ok(Expected::Pattern(disk.len())),
        Disk::ReadOnly => {
            let mut bytes = vec![0; len as usize];
            for at in steps {
                let none = NvmeError::NoMemory(ByteCount(step));
                let buffer: CpuBuffer<_, FromDevice> =
                    client.buffer(ByteCount(step)).ok_or(none)?;
                let buffer = disk.read(queue, client, block(at), buffer)?;
                buffer.read(ByteCount(0), &mut bytes[at as usize..][..step as usize])?;
            }
            Ok(Expected::Copy(bytes))
        }
        Disk::Destroy => {
            let bytes: Vec<u8> = pattern::disk(ByteCount(len)).flatten().collect();
            for at in steps {
                let none = NvmeError::NoMemory(ByteCount(step));
                let buffer: CpuBuffer<_, ToDevice> = client.buffer(ByteCount(step)).ok_or(none)?;
                buffer.write(ByteCount(0), &bytes[at as usize..][..step as usize])?;
                disk.write(queue, client, block(at), buffer)?;
            }
            Ok(Expected::Pattern(ByteCount(len)))
        }
    }
}

fn failures(report: &Report) -> Vec<String> {
    let mut failures = Vec::new();
    for v in report.verified.iter().filter(|v| !v.is_good()) {
        failures.push(format!("{v:?}"));
    }
    for r in report.revoked.iter().filter(|r| !r.is_good()) {
        failures.push(format!("{r:?}"));
    }
    if let Some(trip) = report.round_trip.filter(|trip| !trip.is_good()) {
        failures.push(format!("{trip:?}"));
    }
    if let Some(wrong @ 1..) = report.interrupts_wrong_bytes {
        failures.push(format!("read by interrupts: {wrong} bytes are wrong"));
    }
    if report.pages_left > 0 {
        failures.push(format!("{} pages stay mapped", report.pages_left));
    }
    failures
}
