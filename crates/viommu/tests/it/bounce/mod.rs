// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bounce buffers under attack, through the software unit: its devices read and write all that they
//! can reach, and what they saw and what memory holds is compared byte by byte.
//!
//! `malice`: at any time, on simulated CPUs, from seeds. `attacks`: each attack by itself.
//! `bad_input`: what a driver may do wrong. `mixed`: devices, placements and failures in one
//! domain. `slices`: memory of the program that no device reaches.

mod attacks;
mod bad_input;
mod malice;
mod mixed;
mod rig;
mod slices;

use crate::suite::{placements, rig as suite};
