// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One suite over every assigner x policy x format x platform.

mod rig;
mod road;

/// Each scenario becomes a test on every platform and format; inside, it runs over every design.
macro_rules! on_every_machine {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        mod host_vtd { $( #[test] fn $scenario() {
            crate::$module::$scenario::<ioatlas_dma::platform::host::Host, crate::rig::Vtd>();
        } )* }
        mod host_toy { $( #[test] fn $scenario() {
            crate::$module::$scenario::<ioatlas_dma::platform::host::Host, crate::rig::Small>();
        } )* }
        mod sim_vtd { $( #[test] fn $scenario() {
            crate::$module::$scenario::<ioatlas_dma::platform::sim::Sim, crate::rig::Vtd>();
        } )* }
        mod sim_toy { $( #[test] fn $scenario() {
            crate::$module::$scenario::<ioatlas_dma::platform::sim::Sim, crate::rig::Small>();
        } )* }
    };
}

on_every_machine! {
    road::map_reaches_the_buffer_and_unmap_ends_it,
}
