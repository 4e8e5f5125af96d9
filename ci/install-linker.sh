#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs the linker that rustc calls, and the C library to link against (Debian and its kin; needs
# root).
set -eu
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends gcc libc6-dev
