#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs DPDK's testpmd, beside which ci/vhost-compare.sh measures vhost-net (Debian 12: DPDK
# 22.11; needs root). setpriv, by which no testpmd outlives the comparison, is of util-linux.
# Fetches the packages of a guest in which testpmd runs into the cache:
#   ci/vhost-guest.sh --guest testpmd
set -eu
cd "$(dirname "$0")/.."
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends dpdk-dev librte-net-vhost23 util-linux
cargo run --package ioatlas-vhost-guest -- --guest testpmd --fetch-only
