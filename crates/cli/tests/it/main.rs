// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod by_hand;
mod capture;
mod captures;
mod circles;
mod commands;
mod common;
mod compare;
mod designs;
mod doctor;
mod documents;
mod help;
mod histograms;
mod interrupted;
mod packages;
mod perfetto;
mod progress;
mod report;
mod report_of_captures;
mod screen;
mod soak;
mod standard_input;
mod survival;
mod timings;
mod vhost_bench;
mod vhost_net;
