#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Boots an unmodified Debian guest in QEMU on `ioatlas vhost-net`, with its IOMMU off, in pass-through and strict, and checks its traffic.
# With --guest testpmd DPDK drives the card in the guest, through VFIO, and its frames are checked.
# Options are those of the program: ci/vhost-guest.sh --help. Needs what ci/install-record.sh installs. Debian's packages are fetched into
# the user's cache where they are not there (with testpmd: ci/install-dpdk.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --package ioatlas --package ioatlas-vhost-guest
exec "$target/debug/vhost-guest" "$@"
