// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The simulated kernel against what is known of the real one: by its sources, and by a driver in a
//! guest (Linux 6.1 and 6.12).

use crate::suite::rig::*;
use ioatlas_dma::units::*;
use ioatlas_vfio::{kernel::*, simulated::*, space::AddressSpace};

const PAGE: u64 = GRANULE;

fn map(space: &impl AddressSpace, iova: u64, pages: u64) -> Result<(), Errno> {
    let call = MapCall {
        iova: Iova(iova),
        memory: VirtAddr(0x10_0000_0000),
        len: ByteCount(pages * PAGE),
        perm: Perm::Read,
    };
    // SAFETY: nothing of it is accessed by a simulated kernel.
    unsafe { space.map(&call) }
}

fn unmap(space: &impl AddressSpace, iova: u64, pages: u64) -> Result<u64, Errno> {
    let ended = space.unmap(Iova(iova), ByteCount(pages * PAGE));
    ended.map(|bytes| bytes.0 / PAGE)
}

#[test]
fn overlaps_misalignment_and_reserved_addresses_are_refused() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        map(&space, 0x10_0000, 4).unwrap();
        assert_eq!(map(&space, 0x10_3000, 4), Err(Errno::EXIST), "{kind:?}");
        assert_eq!(map(&space, 0x20_0800, 1), Err(Errno::INVAL));
        assert_eq!(map(&space, 0xfee0_0000, 1), Err(Errno::INVAL));
        assert_eq!(map(&space, 0xfedf_f000, 2), Err(Errno::INVAL));
        assert_eq!(map(&space, 1 << 39, 1), Err(Errno::INVAL));
        assert_eq!(map(&space, 0x20_0000, 0), Err(Errno::INVAL));
        map(&space, 0xfedf_f000, 1).unwrap();
        map(&space, 0xfef0_0000, 1).unwrap();
        assert_eq!(kernel.mappings().len(), 3);
        assert_eq!(kernel.pinned(), ByteCount(6 * PAGE));
    }
}

#[test]
fn an_unmap_takes_whole_mappings_and_says_how_much_it_was() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        for at in [0x10_0000, 0x10_4000, 0x10_a000] {
            map(&space, at, 4).unwrap();
        }
        let across = unmap(&space, 0x10_2000, 4);
        let front = unmap(&space, 0x10_0000, 2);
        let refused = match kind {
            Kind::Type1 => Err(Errno::INVAL),
            Kind::Iommufd => Err(Errno::NOENT),
        };
        assert_eq!((across, front), (refused, refused), "{kind:?}");
        assert_eq!(kernel.mappings().len(), 3, "nothing was split");
        assert_eq!(unmap(&space, 0x10_0000, 0xe), Ok(12), "across the gap");
        let nothing = unmap(&space, 0x10_0000, 1);
        match kind {
            Kind::Type1 => assert_eq!(nothing, Ok(0)),
            Kind::Iommufd => assert_eq!(nothing, Err(Errno::NOENT)),
        }
        assert_eq!(kernel.pinned(), ByteCount(0));
    }
}

#[test]
fn the_limit_of_mappings_is_type_1s_alone() {
    let machine = || Machine {
        mappings: 2,
        ..Machine::usual()
    };
    for kind in KINDS {
        let kernel = Simulated::new(machine());
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        map(&space, 0, 1).unwrap();
        map(&space, PAGE, 1).unwrap();
        let third = map(&space, 2 * PAGE, 1);
        match kind {
            Kind::Type1 => assert_eq!(third, Err(Errno::NOSPC)),
            Kind::Iommufd => assert_eq!(third, Ok(())),
        }
        unmap(&space, 0, 2).unwrap();
        map(&space, 4 * PAGE, 1).unwrap();
    }
}

#[test]
fn memory_that_is_not_there_or_cannot_be_pinned_is_refused() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine {
            pin_limit: Some(ByteCount(8 * PAGE)),
            ..Machine::usual()
        });
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        map(&space, 0, 8).unwrap();
        assert_eq!(map(&space, 1 << 20, 1), Err(Errno::NOMEM), "{kind:?}");
        unmap(&space, 0, 8).unwrap();
        kernel.forget_memory(VirtAddr(0x10_0000_1000), ByteCount(PAGE));
        assert_eq!(map(&space, 0, 2), Err(Errno::FAULT));
        map(&space, 0, 1).unwrap();
    }
}

#[test]
fn everything_goes_with_the_last_file() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        let device = space.devices()[0].clone();
        map(&space, 0, 8).unwrap();
        drop(space);
        drop(device);
        assert_eq!(kernel.open_files(), 0, "{kind:?}");
        assert_eq!(kernel.pinned(), ByteCount(0));
        assert!(kernel.mappings().is_empty());
    }
}
