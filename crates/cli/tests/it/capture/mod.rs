// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas capture`, the program itself, on a directory that stands in for tracefs: here the test
//! is the kernel. It fills the instance that the program makes, with a FIFO as `trace_pipe`, writes
//! the text of events, and empties the instance once its events were switched off.

mod ending;
mod keeping;
mod kernel;
mod printed;
mod recording;
mod refusing;
