#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs what `ioatlas trace record-guest` needs (Debian and its kin; needs root): QEMU, setpriv and
# unshare of util-linux, ip. Fetches the packages of a recording of a network card into the cache,
# by beginning one; the test record looks for them there:
#   cargo test -p ioatlas-cli --test tools -- --include-ignored record:
set -eu
cd "$(dirname "$0")/.."
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends qemu-system-x86 util-linux iproute2
cargo run -- trace record-guest --device e1000 --workload stream --mib 1 --fetch-only
