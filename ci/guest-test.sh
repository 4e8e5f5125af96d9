#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The NVMe driver over VFIO in Debian guests under QEMU, with its VT-d unit and with virtio-iommu: boots them, runs every policy, and prints verdict and tables. Installs
# what is missing if it may. The same test as in `cargo test -p ioatlas-nvme`; its last line but the tables says how many claims hold.
set -euo pipefail
cd "$(dirname "$0")/.."
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# without QEMU, a kernel or busybox they are ignored, which is no verdict
cargo test -p ioatlas-nvme --test guest -- --list --ignored >"$said"
if grep -q ': test$' "$said"; then
    ci/install-record.sh
    ci/install-kernel.sh
fi
cargo test -p ioatlas-nvme --test guest | tee "$said"
if grep -qE '^test .*\.\.\. ignored' "$said"; then
    echo "$0: not all was run; ci/install-record.sh and ci/install-kernel.sh install what is missing" >&2
    exit 1
fi
