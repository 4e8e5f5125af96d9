// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains over VFIO type 1 and iommufd, on a simulated kernel.

mod calls;
mod devices;
mod errors;
mod failures;
mod identity;
mod kernels;
mod model;
mod opening;
mod place;
mod rig;
mod threads;
mod told;
