#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Does a kernel made of ioatlas run? Builds examples/kernel, boots it in QEMU under a VT-d unit,
# once more under one in caching mode with a disk that bypasses it, and checks what it prints, its
# status, its length, and what its drivers of virtio devices have written. Boots it without a unit
# as well: that must fail, and say why.
set -euo pipefail
cd "$(dirname "$0")/.."

bare=x86_64-unknown-none
complain() {
    echo "kernel boot: $*" >&2
    exit 1
}
command -v qemu-system-x86_64 >/dev/null ||
    complain "needs qemu-system-x86_64: ci/install-qemu.sh (apt-get install -y --no-install-recommends qemu-system-x86)"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cd examples/kernel
lines=$(cat src/*.rs src/*.s | grep -cvE '^[[:space:]]*(//.*|#( .*)?)?$')
echo "kernel boot: $lines lines, without blank ones and comments"
[ "$lines" -lt 800 ] || complain "want less than 800 lines"

# The workspace's versions: what is not needed cargo leaves out. No lock file of its own is kept,
# which would drift.
cp ../../Cargo.lock Cargo.lock
target=${CARGO_TARGET_DIR:-$PWD/../../target}/kernel
export CARGO_TARGET_DIR=$target
cargo clippy --quiet -- -D warnings -D clippy::undocumented_unsafe_blocks
cargo build --quiet
image=$target/$bare/debug/ioatlas-kernel

# boots NAME [QEMU OPTION..]: whether it says that all is well, and what it must have said on the
# way.
boots() {
    local name=$1 status=0 line
    shift
    ./boot.sh "$image" "$@" >"$out/said" 2>"$out/qemu" || status=$?
    sed "s/^/$name: /" "$out/said"
    for line in \
        'unit at 0x[0-9a-f]+' \
        'QI +has an invalidation queue: .*' \
        'moved: 125 of 125 words; .*' \
        'stray write: 125 words landed while mapped, 125 are intact after unmap' \
        'fault: device [0-9a-f:.]+ tried to write page 0x[0-9a-f]+, and was blocked: nothing is mapped there for writing .*' \
        'burst: 2000 words landed; one interrupt ended 16 mappings by 2 descriptors' \
        'vector 32: [0-9]+ interrupts unmapped, 1000 hit one of [0-9]+ maps' \
        'vector 33: [0-9]+ interrupts unmapped, 10 hit one of [0-9]+ maps' \
        'virtio [0-9a-f:.]+: a page is on the disk, and came back' \
        'virtio [0-9a-f:.]+: the router answered; 15 buffers are the card.s still' \
        'virtio [0-9a-f:.]+: the console has [0-9]+ bytes' \
        'on the disk: written by a kernel .*' \
        'on the console: written by a kernel .*' \
        'domain 1: ([0-9]+) maps, \1 unmaps, 0 pages live, 0 retired, 0 quarantined, [0-9]+ invalidations' \
        'closed: ([0-9]+) of \1 frames are free' \
        ok; do
        if [ "$status" -ne 0 ] || ! tr -d '\r' <"$out/said" | grep -qxE "$line"; then
            cat "$out/qemu" >&2
            complain "$name: status $status; want 0, and the line: $line"
        fi
    done
}
edu=edu,dma_mask=0xffffffffffffffff
unit=intel-iommu,intremap=off,aw-bits=48
boots "default"
boots "caching mode" -device "$unit,caching-mode=on" -device "$edu" \
    -blockdev null-co,node-name=bypass,read-zeroes=on -device virtio-blk-pci,drive=bypass
grep -q '^virtio .*: refused, since the device does not offer ACCESS_PLATFORM' "$out/said" ||
    complain "caching mode: the disk that bypasses the unit was not refused"

status=0
./boot.sh "$image" -device "$edu" >"$out/said" 2>&1 || status=$?
if [ "$status" -ne 1 ] || ! grep -q 'firmware announces no remapping unit' "$out/said"; then
    cat "$out/said" >&2
    complain "without a unit: status $status; want 1, and a sentence that says so"
fi
echo "kernel boot: refused where there is no unit; all is well"
