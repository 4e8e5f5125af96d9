#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The NVMe driver over VFIO in a Debian guest under QEMU: boots it, runs every policy, and prints verdict and table. Installs what is missing if it may.
# The same test as in `cargo test -p ioatlas-nvme`; its last line but the tables says how many claims hold.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v qemu-system-x86_64 >/dev/null || [ ! -d "${XDG_CACHE_HOME:-$HOME/.cache}/ioatlas/packages" ]; then
    ci/install-record.sh
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
cargo test -p ioatlas-nvme --test guest | tee "$said"
# without QEMU, a kernel or busybox they are ignored, which is no verdict
if grep -qE '^test .* \.\.\. ignored' "$said"; then
    echo "$0: nothing was run; ci/install-record.sh installs what is missing" >&2
    exit 1
fi
