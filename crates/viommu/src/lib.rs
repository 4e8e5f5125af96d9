// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! testing     TestMachine: devices with what a driver maps with, and with their accesses
//! machine     a platform, a unit, and the unit's driver; WatchedMachine has an oracle, too
//! oracle      judges every access of a device by what is mapped at that time
//! unit        SoftUnit: IOTLB, walk caches and context cache over the tables in memory
//! observe     is told everything that it does, in order
//! ```
//!
//! [`unit::SoftUnit`] reads from memory the very tables and queue that hardware would, and decodes
//! them with code of its own. Its caches have a configurable geometry, it walks in separable steps,
//! and may evict and read ahead when it likes.
//!
//! # Testing a driver
//!
//! [`testing::TestMachine`] has devices with what a driver maps with, and with the accesses that a
//! test makes in their place.
//!
//! [`machine::Machine`], of which it is made, is a platform, such a unit, and the driver of the
//! unit. What a test has for a device moves bytes by [`dma_read`](machine::Machine::dma_read) and
//! [`dma_write`](machine::Machine::dma_write), which say what the unit refuses, and where. A
//! [`machine::WatchedMachine`] has an oracle, too. It judges every access by what is mapped at that
//! time, in every domain that the machine made, and one call says whether a device reached what was
//! unmapped, or anything else that it must not: [`oracle::Oracle::assert_clean`].
//!
//! ```
//! use ioatlas_dma::{domain::DomainConfig, platform::*, translator::VtdSecond48, units::*};
//! use ioatlas_host::Host;
//! use ioatlas_viommu::machine::*;
//!
//! let (memory, unit) = (Host::new(Default::default()), UnitConfig::new(Geometry::VTD_48));
//! let watched = WatchedMachine::new(memory, &unit, Oracle::new(), Default::default())?;
//! let domain = watched.domain::<VtdSecond48>(DomainConfig::default())?; // strict
//! let (machine, nic) = (watched.machine(), SourceId(0x20)); // 00:04.0
//! domain.attach(nic)?;
//!
//! let frame = machine.platform().frame_alloc().ok_or("no memory")?;
//! let buffer = PhysRange::new(frame.page().addr(), ByteCount(1500));
//! let mapping = domain.map(buffer, Direction::FromDevice)?; // as the driver does
//! let iova = mapping.iova();
//! machine.dma_write(nic, iova, b"a packet")?; // as the device does
//! domain.unmap(mapping)?;
//! let refused = machine.dma_write(nic, iova, b"too late").unwrap_err();
//! assert_eq!((refused.at, refused.moved), (iova, ByteCount(0)));
//!
//! let mut received = [0; 8];
//! // SAFETY: the frame is ours.
//! let by = unsafe { Authority::assume() };
//! machine.platform().read(by, buffer.addr, &mut received)?;
//! assert_eq!(&received, b"a packet");
//! watched.oracle().assert_clean();
//! # machine.platform().frame_free(by, frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The oracle knows of mappings from the domain's and the DMA API's calls that
//! [`oracle::Watched`] and [`oracle::WatchedDma`] have. For a driver that wants a `Domain` or a
//! `Client` itself, [`Machine`](machine::Machine) is the machine: what a device was refused is in
//! [`take_faults`](unit::SoftUnit::take_faults), and `Domain::audit` says what is still mapped.
//!
//! Clause numbers are those of the VT-d specification, revision 4.1.
#![deny(unsafe_code)] // but for promises, each with its reason

mod active;
pub mod announce;
mod caches;
pub mod config;
mod decode;
mod descriptor;
pub mod device;
pub mod fault;
pub mod invalidation;
pub mod machine;
pub mod message;
pub mod mmio;
pub mod observe;
pub mod oracle;
pub mod queue;
pub mod registers;
pub mod testing;
pub mod unit;
pub mod walk;
mod write_buffer;
