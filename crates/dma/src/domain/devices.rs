// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which devices are attached, so that the end of the domain detaches every one.
//!
//! A device is entered before the translator attaches it and crossed out after the translator has
//! detached it; in between it is *changing*, and no other call may attach or detach it here.

use crate::{
    platform::{
        Lock, Platform,
        room::{Larger, NoMemory, with_room},
    },
    translator::AttachError,
    units::*,
};
use alloc::vec::Vec;

pub(super) struct Devices<P: Platform>(P::Lock<Vec<(SourceId, Stage)>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Changing,
    Attached,
}

impl<P: Platform> Devices<P> {
    pub fn new() -> Self {
        Devices(Lock::new(Vec::new()))
    }

    /// Attaches by `attach`, one change of a device at a time. After a failed invalidation the
    /// device is blocked and counts as attached, to be detached.
    pub fn attach(
        &self,
        device: SourceId,
        domain: DomainId,
        attach: impl FnOnce() -> Result<(), AttachError>,
    ) -> Result<(), AttachError> {
        let entered = self.enter(device);
        match entered.map_err(|NoMemory| AttachError::NoMemory { device })? {
            Some(Stage::Changing) => return Err(AttachError::Busy { device }),
            Some(Stage::Attached) => return Err(AttachError::Attached { device, domain }),
            None => {}
        }
        let result = attach();
        match result {
            Ok(()) | Err(AttachError::Invalidate { .. }) => self.set(device, Stage::Attached),
            Err(_) => self.cross_out(device),
        }
        result
    }

    /// Detaches by `detach`. After a failure the device counts as attached still.
    pub fn detach(
        &self,
        device: SourceId,
        domain: DomainId,
        detach: impl FnOnce() -> Result<(), AttachError>,
    ) -> Result<(), AttachError> {
        self.0.with(|all| {
            let entry = all.iter_mut().find(|(source, _)| *source == device);
            let (_, stage) = entry.ok_or(AttachError::NotAttached { device, domain })?;
            if *stage == Stage::Changing {
                return Err(AttachError::Busy { device });
            }
            *stage = Stage::Changing;
            Ok(())
        })?;
        let result = detach();
        match result {
            Ok(()) => self.cross_out(device),
            Err(_) => self.set(device, Stage::Attached),
        }
        result
    }

    /// Everyone, for the end.
    pub fn take(&self) -> Vec<SourceId> {
        let all = self.0.with(core::mem::take);
        all.into_iter().map(|(device, _)| device).collect()
    }

    /// Enters `device` as changing, unless it is there.
    fn enter(&self, device: SourceId) -> Result<Option<Stage>, NoMemory> {
        with_room(
            &self.0,
            |all| all,
            |all| {
                if let Some((_, stage)) = all.iter().find(|(source, _)| *source == device) {
                    return Ok(Some(*stage));
                }
                if let Some(short) = Larger::of(all, all.len() + 1) {
                    return Err(short);
                }
                all.push((device, Stage::Changing));
                Ok(None)
            },
        )
    }

    fn set(&self, device: SourceId, to: Stage) {
        self.0.with(|all| {
            let entry = all.iter_mut().find(|(source, _)| *source == device);
            if let Some((_, stage)) = entry {
                *stage = to;
            }
        });
    }

    fn cross_out(&self, device: SourceId) {
        self.0
            .with(|all| all.retain(|(source, _)| *source != device));
    }
}
