// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod acpi_find;
mod common;
mod contradictions;
mod device_tlbs;
mod direct;
mod dmar;
mod dmar_build;
mod dmar_routing;
mod driver;
mod explain;
mod faults;
mod late_waits;
mod layout;
mod live;
mod loom;
mod plan;
mod queue;
mod recovery;
mod software;
mod stall;
mod units;
