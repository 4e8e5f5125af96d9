// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Transfers: a device reads or writes as many bytes as it likes, through the unit.
//!
//! # Theory
//!
//! A transfer is one access to each page that it touches, in ascending order, and that page's bytes
//! move while the access is in flight. So an invalidation that drains waits for them, as it does in
//! hardware: when a strict unmap has returned, no byte of an earlier access is still to be moved.
//! The pages of a transfer are not translated at one moment; an unmap may come between two.

use super::Machine;
use crate::{fault::FaultReason, observe::Outcome, unit::HARDWARE};
use core::ops::Range;
use ioatlas_dma::{
    platform::{CopyMemory, NotMemoryError, PhysMemory},
    units::*,
};

/// A transfer that stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at {at}, after {moved} bytes: {reason}")]
pub struct TransferError {
    /// The first byte that was not moved: where the access was refused.
    pub at: Iova,
    /// How many bytes were moved, all of them before [`at`](Self::at).
    pub moved: ByteCount,
    /// Why it stopped there.
    pub reason: TransferErrorReason,
}

/// Why a transfer stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferErrorReason {
    /// The unit blocked the access, and recorded that.
    #[error("{0}")]
    Fault(FaultReason),
    /// The unit let it through, to an address at which there is no memory.
    #[error("{0}")]
    NotMemory(NotMemoryError),
    /// The last of so many bytes would lie past the last address. There was no access.
    #[error("{0} bytes from here go past the last address")]
    Overflow(ByteCount),
}

impl<P: CopyMemory + PhysMemory<P>> Machine<P> {
    /// `device` reads the bytes at `iova`, wherever they begin and end: one access to each page.
    /// Without bytes there is none.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::DomainConfig, platform::*, translator::VtdSecond48, units::*};
    /// # use ioatlas_host::Host;
    /// # use ioatlas_viommu::machine::*;
    /// # let memory = std::sync::Arc::new(Host::new(Default::default()));
    /// # let machine = Machine::new(memory.clone(), &UnitConfig::new(Geometry::VTD_48))?;
    /// # let domain = machine.domain::<VtdSecond48>(DomainConfig::default())?;
    /// # let nic = SourceId(0x20);
    /// # domain.attach(nic)?;
    /// let frame = memory.frame_alloc().ok_or("no memory")?;
    /// let packet = PhysRange::new(frame.page().addr(), ByteCount(5));
    /// // SAFETY: the frame is ours.
    /// let by = unsafe { Authority::assume() };
    /// memory.write(by, b"hello", packet.addr)?;
    /// let mapping = domain.map(packet, Direction::ToDevice)?;
    /// let mut seen = [0; 5];
    /// machine.dma_read(nic, mapping.iova(), &mut seen)?;
    /// assert_eq!(&seen, b"hello");
    ///
    /// let refused = machine.dma_write(nic, mapping.iova(), b"HELLO").unwrap_err();
    /// assert_eq!((refused.at, refused.moved), (mapping.iova(), ByteCount(0)));
    /// domain.unmap(mapping)?;
    /// # memory.frame_free(by, frame);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TransferError`], at the first page that is refused. What was read before is in `into`; the
    /// rest of it is as it was.
    pub fn dma_read(
        &self,
        device: SourceId,
        iova: Iova,
        into: &mut [u8],
    ) -> Result<(), TransferError> {
        self.transfer(device, iova, AccessKind::Read, into.len(), |part, from| {
            self.platform.read(HARDWARE, from, &mut into[part])
        })
    }

    /// `device` writes `from` to `iova`, wherever that begins and ends: one access to each page.
    /// Without bytes there is none. [`dma_read`](Self::dma_read) has an example.
    ///
    /// # Errors
    /// [`TransferError`], at the first page that is refused. What was written before stays.
    pub fn dma_write(
        &self,
        device: SourceId,
        iova: Iova,
        from: &[u8],
    ) -> Result<(), TransferError> {
        self.transfer(device, iova, AccessKind::Write, from.len(), |part, to| {
            self.platform.write(HARDWARE, &from[part], to)
        })
    }

    /// Calls `copy` for each page with which of the `len` bytes lie there, and where in memory.
    fn transfer(
        &self,
        device: SourceId,
        iova: Iova,
        kind: AccessKind,
        len: usize,
        mut copy: impl FnMut(Range<usize>, PhysAddr) -> Result<(), NotMemoryError>,
    ) -> Result<(), TransferError> {
        let stopped = |done: usize, reason| TransferError {
            at: Iova(iova.0 + done as u64),
            moved: ByteCount(done as u64),
            reason,
        };
        let behind_first = (len as u64).saturating_sub(1);
        if iova.0.checked_add(behind_first).is_none() {
            let len = ByteCount(len as u64);
            return Err(stopped(0, TransferErrorReason::Overflow(len)));
        }
        let mut done = 0;
        while done < len {
            let at = Iova(iova.0 + done as u64);
            let part = (len - done).min((GRANULE - at.offset()) as usize);
            let mut access = self.soft.begin(device, at.page(), kind);
            let outcome = access.run();
            let copied = match outcome {
                Outcome::Translated { page, .. } | Outcome::PassedThrough { page, .. } => {
                    let place = PhysAddr(page.addr().0 + at.offset());
                    copy(done..done + part, place).map_err(TransferErrorReason::NotMemory)
                }
                Outcome::Fault(reason) => Err(TransferErrorReason::Fault(reason)),
            };
            access.finish(); // until here an invalidation waits
            copied.map_err(|reason| stopped(done, reason))?;
            done += part;
        }
        Ok(())
    }
}
