#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Boots an image in QEMU, the serial line on standard output: IMAGE [QEMU OPTION..]. Without options the machine has a unit and a
# device. 0 if the kernel says that all went well, 1 if not, 124 after two minutes, 125 if QEMU ended otherwise.
set -euo pipefail
image=$1
shift
if [ $# -eq 0 ]; then
    set -- -device intel-iommu,intremap=off,aw-bits=48 -device edu,dma_mask=0xffffffffffffffff
fi
# Virtual time follows instructions, so that interrupts come as thick on a slow host, and skips what a sleeping processor waits for.
status=0
timeout -k 5 120 qemu-system-x86_64 -machine q35 -cpu max -accel tcg -icount shift=0,sleep=off -m 64M -nodefaults \
    -no-user-config -display none -no-reboot -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=4 "$@" \
    -kernel "$image" </dev/null || status=$?
# the kernel's statuses, GOOD and BAD: 2 * 0x10 + 1 and 2 * 0x11 + 1
case $status in
33) exit 0 ;;
35) exit 1 ;;
124 | 137) echo "boot: no end in two minutes" >&2 && exit 124 ;;
*) echo "boot: QEMU ended with status $status" >&2 && exit 125 ;;
esac
