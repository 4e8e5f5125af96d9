// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Guests for tests and recordings: an unmodified Debian kernel, programs of Debian's and of ours,
//! under QEMU, with nothing installed but QEMU.
//!
//! | | |
//! |---|---|
//! | [`packages`] | Debian packages, fetched into a cache and unpacked, as a supply of files |
//! | [`image`] | the guest's first and only file system: script, programs with their libraries, kernel modules in the order they load |
//! | [`network`] | a name space with TAP interfaces, made without privileges |
//! | [`qemu`] | QEMU's arguments that all guests share |
//! | [`watch`] | a run: console and log read, a limit of time, no QEMU that outlives it |
//! | [`console`] | what the guest's script says |
//!
//! ```no_run
//! use ioatlas_guest::{Cache, Image, Ignored, Keep, Lines, Watch, qemu};
//! use std::{path::Path, time::Duration};
//! # fn main() -> Result<(), ioatlas_guest::GuestError> {
//! let cache = Cache::open(Path::new("packages"))?;
//! let kernel = cache.kernel()?;
//! let tree = cache.tree(&[&kernel, "busybox-static"])?;
//! let mut image = Image::new(&tree, "load; ls /dev/vfio; say done; end")?;
//! image.module("vfio-pci")?;
//! image.executable("ours", &std::fs::read("target/ours").unwrap())?;
//! std::fs::write("guest.cpio", image.finish()).unwrap();
//! let machine = qemu::Machine {
//!     cpus: 1,
//!     memory_mib: 512,
//!     kernel: tree.only("vmlinuz-")?,
//!     initrd: Path::new("guest.cpio"),
//!     command_line: "intel_iommu=on",
//!     reboot: qemu::Reboot::Ends,
//! };
//! let mut arguments = machine.arguments();
//! arguments.extend(["-accel", "tcg", "-device", "intel-iommu"].map(Into::into));
//! let watch = Watch {
//!     arguments,
//!     directory: Path::new("."),
//!     limit: Duration::from_secs(120),
//!     keep_log: Keep::Tail,
//! };
//! let mut said = Lines::default();
//! watch.run::<_, ioatlas_guest::GuestError>(&mut said, Ignored, |_| {}, || Ok(()))?;
//! # Ok(())
//! # }
//! ```
//!
//! Guests are not trusted less than Debian's archive is: packages come through the machine's own
//! `apt`, which checks their signatures.
#![forbid(unsafe_code)]

pub mod console;
pub mod cpio;
pub mod elf;
mod error;
pub mod image;
pub mod network;
pub mod packages;
pub mod qemu;
pub mod watch;

pub use console::{Console, Heard, Lines};
pub use error::GuestError;
pub use image::Image;
pub use packages::{Cache, Tree};
pub use watch::{Ignored, Keep, Log, Watch};
