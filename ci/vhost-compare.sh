#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Measures `ioatlas vhost-net` beside DPDK's testpmd, in turns, under one generator, and prints both
# tables: about six minutes, with --quick one or two. Options go to `cargo lab vhost-compare`. What
# the back ends print is kept in VHOST_LOGS (target/vhost-compare).
#
# VHOST_PRIORITY=1, as root: other programs on the machine get what is left meanwhile.
set -eu
cd "$(dirname "$0")/.."
if ! command -v dpdk-testpmd >/dev/null; then
    echo "vhost-compare: no dpdk-testpmd: ci/install-dpdk.sh installs it" >&2
    exit 1
fi
if ! command -v setpriv >/dev/null; then
    echo "vhost-compare: no setpriv: ci/install-dpdk.sh installs it" >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-target}
cargo build --release --quiet --package ioatlas-experiments
exec ci/with-priority.sh "$target/release/ioatlas-lab" vhost-compare --logs "${VHOST_LOGS:-$target/vhost-compare}" "$@"
