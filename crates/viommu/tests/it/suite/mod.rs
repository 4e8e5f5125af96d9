// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One suite over every allocator x policy x format x platform.
//!
//! # The matrix
//!
//! Designs come from the registry ([`ioatlas_dma::design`]), so that a new one is run without a
//! change here, but where `rig` makes sizes small and asks what to expect ("is new here").
//!
//! * Every behaviour runs over every design that chooses from an aperture of its own, in two
//!   formats on two platforms.
//! * Designs that go by addresses promise other things of IOVAs; what these are is in `identity`
//!   and `heap`. They run with all the others through what expects nothing of a design but that it
//!   is safe: failures of each allocation, random operations against the model, and the schedule in
//!   which everything happens at once.
//! * The path, tables, large leaves and failures run in the other widths too. Failures meet one
//!   kind of tables (largest leaf, reclaim) a design in turn, large leaves all of them; random
//!   operations draw design and tables from all that there are.
//! * What several do at once is done by two interfaces: the domain's own, and the DMA API with all
//!   its placements over one pool (`interface`). The oracle is the same.
//! * Schedules and races run a third of the designs on each seed, threads one kind of unit a
//!   design: these are what takes long.
//! * Requests to the unit go straight to it, but in one of the schedules in which everything
//!   happens at once, and in `combined`.
//! * With `--cfg ioatlas_killers` only what `ci/mutants.sh` runs is built, on simulated platforms
//!   with small tables. The rest takes minutes to compile.

/// Each scenario becomes a test on every platform and format; inside, it runs over every design.
macro_rules! on_every_machine {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        #[cfg(not(ioatlas_killers))]
        on_machines! { host_vtd, ioatlas_host::Host, crate::suite::rig::Vtd, $($module::$scenario)* }
        #[cfg(not(ioatlas_killers))]
        on_machines! { host_toy, ioatlas_host::Host, crate::suite::rig::Small, $($module::$scenario)* }
        #[cfg(not(ioatlas_killers))]
        on_machines! { sim_vtd, ioatlas_sim::platform::Sim, crate::suite::rig::Vtd, $($module::$scenario)* }
        on_machines! { sim_toy, ioatlas_sim::platform::Sim, crate::suite::rig::Small, $($module::$scenario)* }
    };
}

/// The same on the toy format alone, for what has to be exhaustive.
macro_rules! on_toy_machines {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        mod small {
            #[cfg(not(ioatlas_killers))]
            on_machines! { host_toy, ioatlas_host::Host, crate::suite::rig::Small, $($module::$scenario)* }
            on_machines! { sim_toy, ioatlas_sim::platform::Sim, crate::suite::rig::Small, $($module::$scenario)* }
        }
    };
}

/// The same where designs that go by addresses have room.
macro_rules! on_wide_machines {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        #[cfg(not(ioatlas_killers))]
        on_machines! { host_vtd, ioatlas_host::Host, crate::suite::rig::Vtd, $($module::$scenario)* }
        #[cfg(not(ioatlas_killers))]
        on_machines! { host_wide, ioatlas_host::Host, crate::suite::rig::Wide, $($module::$scenario)* }
        #[cfg(not(ioatlas_killers))]
        on_machines! { sim_vtd, ioatlas_sim::platform::Sim, crate::suite::rig::Vtd, $($module::$scenario)* }
        on_machines! { sim_wide, ioatlas_sim::platform::Sim, crate::suite::rig::Wide, $($module::$scenario)* }
    };
}

/// The same in tables of other widths, and in one that is small and wide.
macro_rules! on_every_width {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        mod widths {
            #[cfg(not(ioatlas_killers))]
            on_machines! { vtd39, ioatlas_sim::platform::Sim, ioatlas_dma::table::fmt::VtdSecond39, $($module::$scenario)* }
            #[cfg(not(ioatlas_killers))]
            on_machines! { vtd57, ioatlas_host::Host, ioatlas_dma::table::fmt::VtdSecond57, $($module::$scenario)* }
            #[cfg(not(ioatlas_killers))]
            on_machines! { wide, ioatlas_sim::platform::Sim, crate::suite::rig::Wide, $($module::$scenario)* }
        }
    };
}

/// Platforms over another one leave the CPU's copies to that.
macro_rules! copies_by {
    ($platform:ty, $inner:ident) => {
        // SAFETY: the one inside does.
        unsafe impl ioatlas_dma::platform::CopyMemory for $platform {
            fn is_memory(&self, range: PhysRange) -> bool {
                self.$inner.is_memory(range)
            }
            fn copy(
                &self,
                by: ioatlas_dma::platform::Authority,
                from: PhysRange,
                to: PhysAddr,
            ) -> Result<(), NotMemoryError> {
                self.$inner.copy(by, from, to)
            }
            fn zero(
                &self,
                by: ioatlas_dma::platform::Authority,
                range: PhysRange,
            ) -> Result<(), NotMemoryError> {
                self.$inner.zero(by, range)
            }
            fn take(
                &self,
                by: ioatlas_dma::platform::Authority,
                from: PhysRange,
                to: PhysAddr,
            ) -> Result<(), NotMemoryError> {
                self.$inner.take(by, from, to)
            }
            fn read(
                &self,
                by: ioatlas_dma::platform::Authority,
                from: PhysAddr,
                into: &mut [u8],
            ) -> Result<(), NotMemoryError> {
                self.$inner.read(by, from, into)
            }
            fn write(
                &self,
                by: ioatlas_dma::platform::Authority,
                from: &[u8],
                to: PhysAddr,
            ) -> Result<(), NotMemoryError> {
                self.$inner.write(by, from, to)
            }
        }
    };
}

macro_rules! on_machines {
    ($name:ident, $base:ty, $format:ty, $($module:ident :: $scenario:ident)*) => {
        mod $name { $( #[test] fn $scenario() {
            crate::suite::$module::$scenario::<$base, $format>();
        } )* }
    };
}

#[cfg(not(ioatlas_killers))]
mod address_api;
#[cfg(not(ioatlas_killers))]
mod ats;
#[cfg(not(ioatlas_killers))]
mod attach;
mod bad_input;
mod batches;
mod chunks;
mod combined;
#[cfg(not(ioatlas_killers))]
mod concurrent;
pub mod crowd;
#[cfg(not(ioatlas_killers))]
mod differential;
#[cfg(not(ioatlas_killers))]
mod exhaustion;
#[cfg(not(ioatlas_killers))]
mod failure;
#[cfg(not(ioatlas_killers))]
mod guarded;
#[cfg(not(ioatlas_killers))]
mod heap;
mod identity;
pub mod interface;
mod interrupt;
#[cfg(not(ioatlas_killers))]
mod invalidation;
mod large;
#[cfg(not(ioatlas_killers))]
mod lifecycle;
#[cfg(not(ioatlas_killers))]
mod operations;
#[cfg(not(ioatlas_killers))]
mod options;
#[cfg(not(ioatlas_killers))]
mod oracle_bites;
mod pending;
pub mod placements;
#[cfg(not(ioatlas_killers))]
mod policies;
#[cfg(not(ioatlas_killers))]
mod pool_failures;
#[cfg(not(ioatlas_killers))]
mod quarantine;
#[cfg(not(ioatlas_killers))]
mod races;
#[cfg(not(ioatlas_killers))]
mod reserved;
pub mod rig;
#[cfg(not(ioatlas_killers))]
mod rules;
mod schedules;
mod switching;
mod tables;
#[cfg(not(ioatlas_killers))]
mod ticks;
#[cfg(not(ioatlas_killers))]
mod typed;
#[cfg(not(ioatlas_killers))]
mod unit_variants;
mod writeback;
