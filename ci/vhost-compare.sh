#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Measures `ioatlas vhost-net` beside DPDK's testpmd, in turns, under one generator, and prints both tables: about six minutes, with --quick one or two.
# Options go to `ioatlas vhost-compare`. What the back ends print is kept in VHOST_LOGS (target/vhost-compare).
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
cargo build --release --quiet --package ioatlas
set -- "$target/release/ioatlas" vhost-compare --logs "${VHOST_LOGS:-$target/vhost-compare}" "$@"
if [ "${VHOST_PRIORITY:-0}" != 1 ]; then
    exec "$@"
fi
# A session of its own has a priority of its own, and is not told of a ^C.
# shellcheck disable=SC2016 # the inner shell's
setsid sh -c 'echo -20 2>/dev/null >/proc/self/autogroup || :; exec nice -n -20 "$@"' sh "$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || :' HUP INT TERM
status=0
wait "$child" || status=$?
# a signal ends the wait, not the child
while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
done
exit "$status"
