// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which events a kernel has, and what can be recorded by them.

use super::tree::{CAPTURE, commands, model, pci, says, silent, text, tree};

#[test]
fn an_old_kernel_has_no_dma_events_and_says_less_of_modes() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 5.10.0-30-amd64
         sys/class/iommu/dmar0/intel-iommu/version = 1:0
         sys/kernel/tracing/events/iommu/map/id = 3
         sys/kernel/iommu_groups/3/type = DMA\n",
    );
    lines += &pci("0000:03:00.0", "mpt3sas", "3", "dmar0");
    let old = tree(&lines);
    assert_eq!(commands(&model(&old)), CAPTURE);
    says(
        &text(&old),
        &[
            "0000:03:00.0 mpt3sas translated (DMA) group 3, dmar0",
            "translated lazy or strict: kernels before 5.15 do not say which",
            "note dma:* events came with Linux 6.12. Here iommu:* events have to do",
            "# as root: mappings of 5 seconds under your load, without names of devices",
        ],
    );
    // 6.1, and nothing is translated: then nothing can be recorded, if its events are seen.
    let release = "proc/sys/kernel/osrelease = 6.1.0-28-amd64";
    let unseen = tree(release);
    assert_eq!(commands(&model(&unseen)), CAPTURE);
    silent(&text(&unseen), &["nothing can be recorded"]);
    let bare = tree(&format!(
        "{release}\nsys/kernel/tracing/events/iommu/map/id = 3"
    ));
    let out = text(&bare);
    says(
        &out,
        &[
            "here nothing can be recorded",
            "# the bundled traces, as here nothing can be recorded ioatlas report",
        ],
    );
    silent(&out, &["capture", "perf"]);
    assert_eq!(commands(&model(&bare)), ["ioatlas report"]);
}

#[test]
fn events_that_are_seen_count_more_than_the_version() {
    let lines = "proc/sys/kernel/osrelease = 6.12.0\nsys/kernel/tracing/events/sched/enable = 0";
    let without = tree(lines);
    says(&text(&without), &["events no dma:*, no iommu:*"]);
    assert_eq!(commands(&model(&without)), ["ioatlas report"]);
    // A vendor's kernel with dma:* of a later one, below the older path.
    let lines =
        "proc/sys/kernel/osrelease = 5.14.0\nsys/kernel/debug/tracing/events/dma/dma_map_sg/id = 1";
    let with = tree(lines);
    let model = model(&with);
    assert_eq!(commands(&model), CAPTURE);
    assert_eq!(model["events"]["folder"], "sys/kernel/debug/tracing");
}
