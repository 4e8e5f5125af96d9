// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is known of remedies, whatever the device and the trace.
//!
//! Versions are those of mainline Linux, read from its history and its documentation; a
//! distribution's kernel may have more. Two that are often asked for are not here, as they make
//! maps no fewer: registered buffers of io_uring, which are pinned once, but mapped for each
//! request (as of Linux 6.12); and GRO in software, which joins packets after they were mapped.

use super::remedy::{About, Audience, Availability, Knob, Protection};

use Audience::{Any, Dpdk, Network, Spdk, Storage, Vm};

const fn knob(audience: Audience, knob: &'static str, how: &'static str) -> Knob {
    Knob {
        knob,
        how,
        audience,
        since: None,
    }
}

const fn since(version: &'static str, knob: Knob) -> Knob {
    Knob {
        since: Some(version),
        ..knob
    }
}

/// Deferred invalidation: `iommu.strict` is heeded on x86 since Linux 5.14, on ARM for longer.
pub(super) static LAZY: About = About {
    id: "lazy",
    name: "lazy",
    audience: &[Any],
    available: Availability::AsItIs,
    knobs: &[
        since(
            "5.15",
            knob(
                Any,
                "echo DMA-FQ >/sys/kernel/iommu_groups/N/type",
                "for one group, at run time, its drivers bound",
            ),
        ),
        since("5.14", knob(Any, "iommu.strict=0", "for all, at boot")),
    ],
    protection: Protection::Window,
    note: "against strict; a VT-d unit in caching mode, as of virtual machines, keeps the whole \
           machine strict at boot",
};

/// No translation: `iommu.passthrough` is heeded on x86 since Linux 5.4, on ARM since 4.12.
pub(super) static PASSTHROUGH: About = About {
    id: "passthrough",
    name: "passthrough",
    audience: &[Any],
    available: Availability::AsItIs,
    knobs: &[
        since(
            "5.11",
            knob(
                Any,
                "echo identity >/sys/kernel/iommu_groups/N/type",
                "for one group, while no driver is bound to it",
            ),
        ),
        since(
            "5.4",
            knob(
                Any,
                "iommu.passthrough=1",
                "for all, at boot; on x86 also iommu=pt",
            ),
        ),
    ],
    protection: Protection::All,
    note: "",
};

/// Since 5.14 pages come back to the pool from the network stack; before, only from XDP.
pub(super) static PAGE_POOL: About = About {
    id: "page-pool",
    name: "page pool",
    audience: &[Network],
    available: Availability::AsItIs,
    knobs: &[since(
        "5.14",
        knob(
            Network,
            "page_pool with PP_FLAG_DMA_MAP",
            "in the driver: a newer one, or another card",
        ),
    )],
    protection: Protection::Buffers,
    note: "of drivers that have one; the receive buffers stay mapped and are used again",
};

pub(super) static SHORT_RINGS: About = About {
    id: "short-rings",
    name: "shorter rings",
    audience: &[Network, Storage],
    available: Availability::AsItIs,
    knobs: &[
        knob(
            Network,
            "ethtool -G DEV rx N tx N; ethtool -L DEV combined N",
            "fewer descriptors, fewer queues",
        ),
        knob(
            Storage,
            "nvme.io_queue_depth=N",
            "of NVMe, at boot: queues of N entries, in place of up to 1,024",
        ),
    ],
    protection: Protection::None,
    note: "at most the misses on memory that is mapped all the time, as rings are",
};

pub(super) static SMALL_TRANSFERS: About = About {
    id: "small-transfers",
    name: "small transfers",
    audience: &[Storage],
    available: Availability::AsItIs,
    knobs: &[knob(
        Storage,
        "echo 128 >/sys/block/DISK/queue/max_sectors_kb",
        "at run time: 128 KiB",
    )],
    protection: Protection::None,
    note: "Linux keeps no addresses of larger maps for reuse; there are more maps then",
};

/// A frame of an MTU of 9,000 has the bytes of six of an MTU of 1,500.
pub(super) static LARGE_FRAMES: About = About {
    id: "large-frames",
    name: "larger frames",
    audience: &[Network],
    available: Availability::AsItIs,
    knobs: &[
        knob(
            Network,
            "ip link set DEV mtu 9000",
            "if the whole network has it",
        ),
        knob(
            Network,
            "ethtool -K DEV tso on rx-gro-hw on",
            "or lro on: where the card cuts and joins packets itself",
        ),
    ],
    protection: Protection::None,
    note: "of maps that are as large as a frame of an MTU of 1,500 one in six stays",
};

pub(super) static HUGE_PAGES: About = About {
    id: "huge-pages",
    name: "huge pages",
    audience: &[Dpdk, Spdk, Vm],
    available: Availability::UserSpace,
    knobs: &[knob(
        Any,
        "default_hugepagesz=1G hugepages=N",
        "at boot; memory on hugetlbfs, the device bound to vfio-pci: it is mapped once, by large \
         leaves",
    )],
    protection: Protection::Buffers,
    note: "drivers in the kernel map buffer by buffer; there it needs code",
};

/// Linux copies what does not fill its pages, in and out, and maps the copy.
pub(super) static UNTRUSTED: About = About {
    id: "untrusted",
    name: "untrusted device",
    audience: &[Any],
    available: Availability::Firmware,
    knobs: &[knob(
        Any,
        "ExternalFacingPort",
        "a property that firmware gives the port (ACPI; in a device tree: external-facing); \
         swiotlb=N at boot for room",
    )],
    protection: Protection::More,
    note: "what does not fill whole pages is copied, and the copy mapped, always under strict",
};

pub(super) static BOUNCING: About = About {
    id: "bouncing",
    name: "bouncing small buffers",
    audience: &[Any],
    available: Availability::NeedsCode,
    knobs: &[],
    protection: Protection::None,
    note: "against strict; through slots that stay mapped, as this project's library does: Linux maps \
           each slot anew",
};

pub(super) static PREFETCH_BOTH: About = strategy(
    "alh",
    "an IOMMU that prefetches both neighbours of a page that missed (alh)",
);
pub(super) static PREFETCH_BELOW: About = strategy(
    "sd-alh",
    "an IOMMU that prefetches the page below one that missed (sd-alh)",
);
pub(super) static PREFETCH_MAPPED: About = strategy(
    "mpre",
    "a driver that asks the IOMMU to prefetch what it maps (mpre)",
);
pub(super) static EVICTION_HINTS: About = strategy(
    "eh",
    "a kernel that tells the IOMMU which entries to evict first (eh)",
);
pub(super) static OFFSETS: About = strategy(
    "of",
    "a kernel that keeps the rings of devices in different sets (of)",
);
pub(super) static DESCENDING: About = strategy(
    "descending",
    "groups of mappings in descending order (descending)",
);
pub(super) static BEST_SUM: About = strategy("best-sum", "the best sum of strategies");
pub(super) static LARGER_IOTLB: About = strategy("larger-iotlb", "a larger IOTLB");
pub(super) static WALK_CACHES: About =
    strategy("walk-caches", "an IOMMU with caches of page-table entries");

/// Strategies of WIOSCA'10, by their names there.
pub(super) static STRATEGIES: [&About; 6] = [
    &PREFETCH_BOTH,
    &PREFETCH_BELOW,
    &PREFETCH_MAPPED,
    &EVICTION_HINTS,
    &OFFSETS,
    &DESCENDING,
];

const fn strategy(id: &'static str, name: &'static str) -> About {
    About {
        id,
        name,
        audience: &[Any],
        available: Availability::NeedsCode,
        knobs: &[],
        protection: Protection::None,
        note: "",
    }
}
