#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Boots an image in QEMU, the serial line on standard output, and after that what was written to the
# virtio disk and the virtio console: IMAGE [QEMU OPTION..]. Without options the machine has a unit
# and an edu device, too. 0 if the kernel says that all went well, 1 if not, 124 after two minutes,
# 125 if QEMU ended otherwise.
set -euo pipefail
image=$1
shift
if [ $# -eq 0 ]; then
    set -- -device intel-iommu,intremap=off,aw-bits=48 -device edu,dma_mask=0xffffffffffffffff
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
truncate -s 1M "$out/disk"
: >"$out/console"
# behind the unit, if there is one
virtio=disable-legacy=on,iommu_platform=on
# Virtual time follows instructions, so that interrupts come as thick on a slow host, and skips what
# a sleeping processor waits for.
status=0
timeout -k 5 120 qemu-system-x86_64 -machine q35 -cpu max -accel tcg -icount shift=0,sleep=off \
    -m 64M -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -device isa-debug-exit,iobase=0xf4,iosize=4 "$@" \
    -drive "file=$out/disk,if=none,id=disk,format=raw" -device "virtio-blk-pci,drive=disk,$virtio" \
    -netdev user,id=net,restrict=on,ipv6=off -device "virtio-net-pci,netdev=net,romfile=,$virtio" \
    -chardev "file,id=console,path=$out/console" -device "virtio-serial-pci,$virtio" \
    -device virtconsole,chardev=console -kernel "$image" </dev/null || status=$?
sed 's/^/on the console: /' "$out/console"
tr -d '\0' <"$out/disk" | sed 's/^/on the disk: /'
# the kernel's statuses, GOOD and BAD: 2 * 0x10 + 1 and 2 * 0x11 + 1
case $status in
33) exit 0 ;;
35) exit 1 ;;
124 | 137) echo "boot: no end in two minutes" >&2 && exit 124 ;;
*) echo "boot: QEMU ended with status $status" >&2 && exit 125 ;;
esac
