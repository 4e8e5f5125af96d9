// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Message 22: updates into the cache, invalidations out of it, and when they are acknowledged.

use super::{Device, session::Session};
use crate::{
    cache::*,
    log_limit::peer_log,
    protocol::{
        message::{FrontAddr, IotlbMessage, MessageError, VhostIotlbType},
        misses::Urgency,
    },
};
use ioatlas_dma::units::*;
use std::time::{Duration, Instant};

/// After this time a guard that holds an acknowledgement up is named in the log.
const SLOW: Duration = Duration::from_secs(1);

impl<D: Device, T: DeviceIotlb> Session<D, T> {
    /// Handles message 22; returns what to answer.
    pub fn iotlb(&mut self, message: Result<IotlbMessage, MessageError>) -> u64 {
        let done = match message {
            Err(e) => Err(e.to_string()),
            Ok(_) if !self.has_iommu() => {
                Err("IOTLB message, but no VIRTIO_F_ACCESS_PLATFORM".into())
            }
            Ok(message) => match message.kind {
                VhostIotlbType::Update => self.update(&message),
                VhostIotlbType::Invalidate => {
                    self.invalidate(&message);
                    Ok(())
                }
                kind => Err(format!("IOTLB message of type {kind:?} from the front end")),
            },
        };
        match done {
            Ok(()) => 0,
            Err(why) => {
                let mut stats = self.stats();
                stats.refused += 1;
                peer_log!(Warn, "refused ({} so far): {why}", stats.refused);
                1
            }
        }
    }

    fn update(&mut self, message: &IotlbMessage) -> Result<(), String> {
        let (iova, len, front, perm) = message.as_update().map_err(|e| e.to_string())?;
        let done = self.insert(iova, len, front, perm);
        // Also where it was refused: no reader shall wait for it any longer.
        self.misses.answered(iova, len);
        if done.is_ok() {
            self.stats().updates += 1;
        }
        done
    }

    fn insert(
        &self,
        iova: Iova,
        len: ByteCount,
        front: FrontAddr,
        perm: Perm,
    ) -> Result<(), String> {
        let pieces = self.table.pieces(front, len);
        let pieces = pieces.map_err(|e| format!("update of IOVA {:#x}: {e}", iova.0))?;
        let entries = pieces.iter().map(|piece| Entry {
            iova: Iova(iova.0 + piece.offset.0),
            len: piece.len,
            host: HostAddr(piece.host as usize as u64),
            perm,
        });
        // What can be known before is: then nothing has to be taken back.
        for entry in entries.clone() {
            entry.run().map_err(|e| e.to_string())?;
        }
        // A guard that waits for an answer must not wait for us, if we wait for it.
        let _hurry = match T::UPDATES {
            Updates::Concurrent => None,
            Updates::Exclusive => Some(self.misses.interrupt_waiters(Urgency::Guards)),
        };
        for (number, entry) in entries.enumerate() {
            match self.cache.update(entry) {
                Ok(Updated::Done | Updated::Unchanged) => (),
                // Cannot be: its invalidation was awaited. If it were, the reader misses again.
                Ok(Updated::Beaten) => {
                    peer_log!(Debug, "update of IOVA {:#x} was beaten", iova.0);
                }
                Err(why) => {
                    // The front end is told that nothing was mapped, so nothing may be, of what was
                    // put in before as well. A cache may forget more than it has to.
                    if number > 0 {
                        let _hurry = self.misses.interrupt_waiters(Urgency::Guards);
                        let invalidation = self.cache.start_invalidate(iova, len);
                        self.await_guards(invalidation, Instant::now());
                    }
                    return Err(why.to_string());
                }
            }
        }
        Ok(())
    }

    fn invalidate(&mut self, message: &IotlbMessage) {
        let start = Instant::now();
        let (first, last) = message.invalidated();
        // One byte less than everything is on its last page, too.
        let len = ByteCount((last.0 - first.0).saturating_add(1));
        let _hurry = self.misses.interrupt_waiters(Urgency::Guards);
        let invalidation = self.cache.start_invalidate(first, len);
        self.await_guards(invalidation, start);
        let took = start.elapsed().as_nanos() as u64;
        let mut stats = self.stats();
        stats.invalidations += 1;
        stats.acknowledging.0 += took;
        stats.slowest_acknowledgement.0 = stats.slowest_acknowledgement.0.max(took);
    }

    /// Waits until guards have been dropped. There is no bound: an acknowledgement before
    /// would be a lie.
    fn await_guards(&self, invalidation: Invalidation, start: Instant) {
        let mut turns = 0u32;
        while !self.cache.is_done(invalidation) {
            turns = turns.saturating_add(1);
            match turns {
                ..256 => std::hint::spin_loop(),
                256..1024 => std::thread::yield_now(),
                _ if start.elapsed() < SLOW => std::thread::sleep(Duration::from_micros(20)),
                _ => {
                    peer_log!(
                        Warn,
                        "an invalidation waits for a device's guard, for over {SLOW:?}"
                    );
                    return self.cache.wait(invalidation);
                }
            }
        }
    }
}
