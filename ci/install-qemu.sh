#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs the QEMU whose VT-d unit the driver is tested against (Debian and its kin; needs root):
#   cargo test -p ioatlas-vtd --test conformance
# setpriv, by which no QEMU outlives its test, is of util-linux; xz unpacks kernel modules.
set -eu
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends qemu-system-x86 util-linux xz-utils
