// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Table formats, one small file each.

mod toy;
mod vtd;

pub use toy::Toy;
pub use vtd::{VtdSecond, VtdSecond39, VtdSecond48, VtdSecond57};
