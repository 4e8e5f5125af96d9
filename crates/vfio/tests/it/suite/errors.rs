// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What keeps a device from being opened, and that each error says what to do; and nothing stays
//! open.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, table::InstallCause, units::*};
use ioatlas_vfio::{
    device::PciAddress, error::OpenError, kernel::*, simulated::*, space::*, translator::*,
};
use std::sync::Arc;

/// What opening says on a machine that `change` has changed; with the kernel of that machine, in
/// which nothing is open any more.
fn refused(kind: Kind, change: impl FnOnce(&mut Machine)) -> OpenError {
    let mut machine = Machine::usual();
    change(&mut machine);
    let kernel = Simulated::new(machine);
    let error = kind.open(&kernel, &[nvme()]).map(drop).unwrap_err();
    assert_eq!(kernel.open_files(), 0, "{kind:?}: {error}");
    error
}

#[track_caller]
fn says(error: &OpenError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn no_iommu() {
    for kind in KINDS {
        let error = refused(kind, |m| m.devices[0].group = None);
        assert!(matches!(error, OpenError::NoIommu { .. }), "{error}");
        says(
            &error,
            &["0000:00:04.0", "intel_iommu=on", "-device intel-iommu"],
        );
    }
}

#[test]
fn no_such_device() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let error = kind.open(&kernel, &["00:1f.3".parse().unwrap()]);
        let error = error.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{error}");
        says(&error, &["0000:00:1f.3", "lspci"]);
        let none = kind.open(&kernel, &[]).map(drop).unwrap_err();
        assert_eq!(none, OpenError::NoDevices);
        assert_eq!(kernel.open_files(), 0);
    }
}

#[test]
fn devices_that_a_domain_could_not_tell_apart() {
    for kind in KINDS {
        let elsewhere: PciAddress = "0001:00:04.0".parse().unwrap();
        for second in [nvme(), elsewhere] {
            let kernel = Simulated::new(Machine::usual());
            let error = kind.open(&kernel, &[nvme(), second]);
            let error = error.map(drop).unwrap_err();
            assert!(matches!(error, OpenError::Twice { .. }), "{error}");
            assert_eq!(kernel.open_files(), 0);
        }
    }
}

#[test]
fn bound_to_another_driver_or_to_none() {
    for kind in KINDS {
        for driver in [Some("nvme"), None] {
            let error = refused(kind, |m| m.devices[0].driver = driver);
            assert!(
                matches!(error, OpenError::NotBound { .. }),
                "{kind:?}: {error}"
            );
            let name = driver.unwrap_or("no driver");
            says(
                &error,
                &[name, "driver_override", "drivers_probe", "0000:00:04.0"],
            );
        }
    }
}

#[test]
fn a_group_that_is_not_viable_names_what_is_in_the_way() {
    for kind in KINDS {
        let error = refused(kind, |m| {
            for (at, driver) in [("00:05.0", "e1000"), ("00:06.0", "pcieport")] {
                let address: PciAddress = at.parse().unwrap();
                m.devices.push(SimDevice {
                    driver: Some(driver),
                    ..SimDevice::usual(address, 7)
                });
            }
        });
        assert!(
            matches!(error, OpenError::NotViable { group: 7, .. }),
            "{kind:?}: {error}"
        );
        says(
            &error,
            &[
                "group 7",
                "0000:00:05.0: e1000; to bind it",
                "0000:00:06.0: pcieport",
            ],
        );
        assert!(
            !error.to_string().contains("echo 0000:00:06.0"),
            "a bridge is in no device's way"
        );
    }
}

#[test]
fn no_permission() {
    for (kind, files) in [
        (Kind::Type1, ["/dev/vfio/vfio", "/dev/vfio/7"]),
        (Kind::Iommufd, ["/dev/iommu", "/dev/vfio/devices/vfio32"]),
    ] {
        for file in files {
            let error = refused(kind, |m| m.forbidden.push(file));
            assert!(matches!(error, OpenError::NoPermission { .. }), "{error}");
            says(&error, &[file, "chown"]);
        }
    }
}

#[test]
fn files_that_are_missing() {
    let error = refused(Kind::Type1, |m| m.missing.push("/dev/vfio/vfio"));
    says(&error, &["/dev/vfio/vfio", "modprobe vfio-pci"]);
    let error = refused(Kind::Type1, |m| m.missing.push("vfio_iommu_type1"));
    says(&error, &["modprobe vfio_iommu_type1"]);
    let error = refused(Kind::Iommufd, |m| m.missing.push("/dev/iommu"));
    says(&error, &["/dev/iommu", "CONFIG_IOMMUFD"]);
    let error = refused(Kind::Iommufd, |m| m.missing.push("vfio-dev"));
    says(&error, &["CONFIG_VFIO_DEVICE_CDEV", "type 1"]);
}

#[test]
fn without_iommufd_type_1_serves() {
    for missing in ["/dev/iommu", "vfio-dev", "/dev/vfio/devices/vfio32"] {
        let mut machine = Machine::usual();
        machine.missing.push(missing);
        let kernel = Arc::new(Simulated::new(machine));
        let space = AnySpace::open(kernel, &[nvme()]).unwrap();
        assert_eq!(space.to_string(), "VFIO type 1");
    }
    let kernel = Arc::new(Simulated::new(Machine::usual()));
    let space = AnySpace::open(kernel, &[nvme()]).unwrap();
    assert_eq!(space.to_string(), "iommufd");
}

/// A caller that asks for a kind gets that or an error, though the other is there.
#[test]
fn a_kind_that_was_asked_for_is_not_replaced() {
    for (kind, missing, word) in [
        (SpaceKind::Iommufd, "/dev/iommu", "CONFIG_IOMMUFD"),
        (SpaceKind::Iommufd, "vfio-dev", "CONFIG_VFIO_DEVICE_CDEV"),
        // as Debian's kernels have it
        (
            SpaceKind::Iommufd,
            "/dev/vfio/devices/vfio32",
            "CONFIG_VFIO_DEVICE_CDEV",
        ),
        (SpaceKind::Type1, "/dev/vfio/vfio", "modprobe vfio-pci"),
    ] {
        let mut machine = Machine::usual();
        machine.missing.push(missing);
        let kernel = Simulated::new(machine);
        let error = AnySpace::open_as(kind, Arc::new(kernel.clone()), &[nvme()]);
        says(&error.map(drop).unwrap_err(), &[word]);
        assert_eq!(kernel.open_files(), 0, "{missing}");
    }
}

#[test]
fn a_space_says_its_kind_its_pages_and_its_limit() {
    for kind in [SpaceKind::Type1, SpaceKind::Iommufd] {
        let kernel = Arc::new(Simulated::new(Machine::usual()));
        let space = AnySpace::open_as(kind, kernel, &[nvme()]).unwrap();
        assert_eq!(space.kind(), kind);
        let limits = space.limits();
        assert_eq!(limits.granule(), ByteCount(GRANULE));
        let sizes = limits.page_sizes();
        let sizes = sizes.map(|sizes| sizes.iter().collect::<Vec<_>>());
        match kind {
            SpaceKind::Type1 => {
                assert_eq!(sizes, Some(vec![ByteCount(4096), ByteCount(2 << 20)]));
                assert!(limits.mappings().is_some());
            }
            SpaceKind::Iommufd => assert_eq!((sizes, limits.mappings()), (None, None)),
        }
    }
}

#[test]
fn interrupts_that_are_not_remapped() {
    for kind in KINDS {
        let error = refused(kind, |m| m.remapping = Remapping::Off);
        assert!(
            matches!(error, OpenError::NoInterruptRemapping { .. }),
            "{error}"
        );
        says(&error, &["intremap=on", "allow_unsafe_interrupts=1"]);
    }
}

#[test]
fn in_use() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let first = kind.open(&kernel, &[nvme()]).unwrap();
        let files = kernel.open_files();
        let error = kind.open(&kernel, &[nvme()]).map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Busy { .. }), "{kind:?}: {error}");
        says(&error, &["fuser"]);
        assert_eq!(kernel.open_files(), files, "the first has all it had");
        drop(first);
        kind.open(&kernel, &[nvme()]).unwrap();
    }
}

#[test]
fn two_devices_of_one_group_share_a_space() {
    for kind in KINDS {
        let other: PciAddress = "00:05.0".parse().unwrap();
        let mut machine = Machine::usual();
        machine.devices.push(SimDevice::usual(other, 7));
        let kernel = Simulated::new(machine);
        let space = kind.open(&kernel, &[nvme(), other]).unwrap();
        let domain = Vfio::domain(memory(16), space, DomainConfig::default()).unwrap();
        domain.attach(other.source()).unwrap();
        let buffer = domain.platform().buffer(ByteCount(GRANULE)).unwrap();
        let mapping = domain.map(buffer.range(), Direction::ToDevice).unwrap();
        let reach = |device| kernel.reach(device, mapping.iova(), AccessKind::Read);
        assert!(
            reach(other).is_some() && reach(nvme()).is_none(),
            "{kind:?}"
        );
        domain.attach(nvme().source()).unwrap();
        assert!(reach(nvme()).is_some());
        let stranger = SourceId(0x1234);
        let error = domain.attach(stranger).unwrap_err();
        assert!(error.to_string().contains("not one that the host gave us"));
        domain.unmap(mapping).unwrap();
    }
}

#[test]
fn pages_that_are_too_large() {
    for kind in KINDS {
        let error = refused(kind, |m| m.granule = ByteCount(65536));
        says(&error, &["65536 bytes"]);
        let error = refused(kind, |m| m.ranges = vec![(Iova(1), Iova(0xffe))]);
        assert_eq!(error, OpenError::NoRanges, "{kind:?}");
    }
}

#[test]
fn an_aperture_that_is_too_small_or_partly_reserved() {
    for kind in KINDS {
        let open = || {
            let kernel = Simulated::new(Machine::usual());
            kind.open(&kernel, &[nvme()]).unwrap()
        };
        let config = |first, pages| {
            DomainConfig::default().aperture(IovaRange::new(IovaPage(first), PageCount(pages)))
        };
        // 48 bits wanted of 39
        let error = Vfio::domain(memory(16), open(), config(0, 1 << 36)).map(drop);
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("0x0+68719476736") && text.contains("0x0+134217728"),
            "{text}"
        );
        // 4 GiB, with the interrupt window in it
        let domain = Vfio::domain(memory(16), open(), config(0, 1 << 20)).unwrap();
        assert_eq!(domain.stats().reserved, PageCount(256), "{kind:?}");
        let buffer = domain.platform().buffer(ByteCount(GRANULE)).unwrap();
        let at = domain.map_at(Iova(0xfee0_0000), buffer.range(), Direction::ToDevice);
        assert!(matches!(at.unwrap_err(), MapError::NoReserve(_)));
        domain.audit().unwrap();
        // code that makes a domain by hand and does not keep it off is told by the map
        let platform = memory(16);
        let translator = Vfio::new(&*platform, open());
        let domain = Domain::new(platform, translator, DomainConfig::default()).unwrap();
        let buffer = domain.platform().buffer(ByteCount(GRANULE)).unwrap();
        let at = domain.map_at(Iova(0xfee0_0000), buffer.range(), Direction::ToDevice);
        let error = at.unwrap_err();
        let MapError::Install(install) = error else {
            panic!("{error}");
        };
        assert_eq!(install.cause, InstallCause::Reserved(IovaPage(0xfee00)));
        let refused = domain.translator().explain(&error).unwrap();
        assert!(
            refused.to_string().contains("SpaceLimits::holes"),
            "{refused}"
        );
        domain.audit().unwrap();
    }
}

#[test]
fn ranges_are_what_the_kernel_says() {
    let kernel = Simulated::new(Machine {
        ranges: vec![
            (Iova(0x1000), Iova(0x5fff)),
            (Iova(0x8800), Iova(0xf_ffff)),
            (Iova(0x20_0000), Iova(u64::MAX)),
        ],
        ..Machine::usual()
    });
    let space = Kind::Type1.open(&kernel, &[nvme()]).unwrap();
    let limits = space.limits();
    let range = |first, end| IovaRange::new(IovaPage(first), PageCount(end - first));
    assert_eq!(
        limits.holes(),
        [range(0, 1), range(6, 9), range(0x100, 0x200)]
    );
    assert_eq!(limits.whole(), range(0, 1 << 45), "57 bits are enough");
    assert_eq!(limits.mappings(), Some(65_535));
    assert!(limits.has(&range(9, 0x100)) && !limits.has(&range(5, 10)));
    drop(space);
    // iommufd tells no limit of mappings
    let kernel = Simulated::new(Machine::usual());
    let space = Kind::Iommufd.open(&kernel, &[nvme()]).unwrap();
    assert_eq!(space.limits().mappings(), None);
}

/// Errors of calls that have no name of their own say which call it was.
#[test]
fn whatever_fails_is_named() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        drop(kind.open(&kernel, &[nvme()]).unwrap());
        for after in 0..kernel.calls() {
            kernel.fail(Some(Failure {
                after,
                errno: Errno(115),
            }));
            let opened = kind.open(&kernel, &[nvme()]);
            kernel.fail(None);
            let Err(error) = opened else {
                continue; // what asks the kernel when the space is closed
            };
            drop(error.to_string());
            assert_eq!(kernel.open_files(), 0, "{kind:?}, call {after}: {error}");
        }
    }
}
