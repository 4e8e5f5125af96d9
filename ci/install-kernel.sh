#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs what the guest test under virtio-iommu needs (Debian 12; needs root): QEMU, xz, and in
# the cache of packages the kernel that Debian 12 has beside 6.1, which has no driver for that unit.
# Neither kernel has iommufd (CONFIG_IOMMUFD is not set):
#   cargo test -p ioatlas-nvme --test guest
set -eu
cd "$(dirname "$0")/.."
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends qemu-system-x86 util-linux xz-utils
cargo run --package ioatlas-guest --example fetch -- linux-image-6.12-cloud-amd64 busybox-static libc6 libgcc-s1
