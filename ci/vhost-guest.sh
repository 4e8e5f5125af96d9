#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Boots an unmodified Debian guest in QEMU on `ioatlas vhost-net`, with its IOMMU off, in
# pass-through and strict, and checks its traffic. With --guest testpmd DPDK drives the card in the
# guest, through VFIO, and its frames are checked. With --back-end testpmd rates are taken, of
# either guest, beside testpmd as back end, in turns (needs what ci/install-dpdk.sh installs).
# VHOST_PRIORITY=1, as root: other programs on the machine get what is left meanwhile. Options are
# those of the program: ci/vhost-guest.sh --help. Needs what ci/install-record.sh installs. Debian's
# packages are fetched into the user's cache where they are not there (with testpmd:
# ci/install-dpdk.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --package ioatlas-cli --package ioatlas-vhost-guest
exec ci/with-priority.sh "$target/debug/vhost-guest" "$@"
