#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs what the test of `ioatlas capture` needs (Debian 12; needs root): QEMU, xz, and packages in
# a cache of their own: the newest kernel of the backports of Debian 13, where these can be had, the
# first of Debian 12 that has dma events, and bpftrace:
#   cargo test -p ioatlas-cli --test tools -- --include-ignored capture:
set -eu
cd "$(dirname "$0")/.."
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends qemu-system-x86 util-linux xz-utils
fetch() {
    cargo run --package ioatlas-guest --example fetch -- --into capture-packages "$@"
}

# lists of their own, so that those of the machine stay as they are
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
site=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site trixie-backports main" >"$lists/sources"
cat >"$lists/conf" <<END
Dir::Etc::sourcelist "$lists/sources";
Dir::Etc::sourceparts "-";
Dir::State::lists "$lists/lists";
Dir::Cache "$lists/cache";
END
(
    export APT_CONFIG="$lists/conf"
    apt-get -o Acquire::Retries=3 update && fetch linux-image-amd64
) || echo "no newer kernel: the first will be tried only" >&2
fetch linux-image-6.12-amd64 busybox-static bpftrace libc6 libgcc-s1
