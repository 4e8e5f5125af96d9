// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the kernel's error numbers mean to code that maps, and what to do about them.

use super::Vfio;
use crate::{kernel::Errno, space::AddressSpace};
use ioatlas_dma::{
    domain::MapError,
    table::{InstallCause, InstallError},
    units::*,
};

/// Why the kernel did not map. Each says what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The limit of mappings, also after what was pending was ended and adjoining memory joined.
    #[error(
        "the kernel takes no more than {limit} mappings, and {held} are held: map longer buffers, whose memory is contiguous; bounce small ones \
         (`Placement::Below`); or raise the limit (`dma_entry_limit` of the module vfio_iommu_type1)"
    )]
    Mappings {
        /// How many the kernel takes.
        limit: u64,
        /// How many this domain holds.
        held: u64,
    },
    /// Memory cannot be pinned.
    #[error("memory could not be pinned; this process may pin {}: raise RLIMIT_MEMLOCK (`ulimit -l`, `LimitMEMLOCK=` of systemd), or map less at a time", Limit(*limit))]
    Pin {
        /// How much may be pinned, as far as there is a limit.
        limit: Option<ByteCount>,
    },
    /// There is no memory.
    #[error(
        "there is no memory at {}, or none that may be written: unmapped meanwhile, or a file that was shortened", At(*page)
    )]
    NoMemory {
        /// The first page of the buffer.
        page: Option<PhysPage>,
    },
    /// The host reserves it.
    #[error(
        "IOVA page {page} is reserved by the host (its interrupt window, or a device's reserved memory): `Vfio::domain` keeps such pages off; see `SpaceLimits::holes`"
    )]
    Reserved {
        /// The first page of the range.
        page: IovaPage,
    },
    /// Another mapping is there.
    #[error("IOVA page {page} is mapped already, by something that shares this address space")]
    Mapped {
        /// The first page of the range.
        page: IovaPage,
    },
    /// The devices' address space is gone.
    #[error("the address space has no device any more")]
    NoDevice,
    /// What none of the above explains.
    #[error("the kernel refused the mapping: {0}")]
    Other(Errno),
}

struct At(Option<PhysPage>);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(page) => write!(f, "address {}", page.addr()),
            None => f.write_str("the buffer's address"),
        }
    }
}

struct Limit(Option<ByteCount>);

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{} KiB", bytes.0 >> 10),
            None => f.write_str("any amount, so there was none left"),
        }
    }
}

impl<S: AddressSpace> Vfio<S> {
    /// What an error of [`Domain::map`](ioatlas_dma::domain::Domain::map) means here, if the
    /// kernel is the reason.
    pub fn explain(&self, error: &MapError) -> Option<Refused> {
        let MapError::Install(InstallError { cause, .. }) = error else {
            return None;
        };
        Some(match *cause {
            InstallCause::AlreadyMapped(page) => Refused::Mapped { page },
            InstallCause::Reserved(page) => Refused::Reserved { page },
            InstallCause::NotMemory(page) => Refused::NoMemory { page: Some(page) },
            InstallCause::Host(errno) => match Errno(errno) {
                Errno::NOSPC => {
                    let held = self.calls().held;
                    Refused::Mappings {
                        // kernels before 5.10 do not tell it, but show it
                        limit: self.space().limits().mappings().unwrap_or(held),
                        held,
                    }
                }
                Errno::NOMEM => Refused::Pin {
                    limit: self.space().pin_limit(),
                },
                Errno::FAULT => Refused::NoMemory { page: None },
                Errno::NODEV => Refused::NoDevice,
                errno => Refused::Other(errno),
            },
            _ => return None,
        })
    }
}
