#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Machines that are not x86: what a kernel links is checked for three without an operating system,
# and the tests of core and vhost run as programs of aarch64, under QEMU. That shows what differs
# between instruction sets, as words, bytes and fences, and not what differs in the order of
# accesses, which is this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."

for bare in aarch64-unknown-none riscv64gc-unknown-none-elf armv7a-none-eabi; do
    rustup target add "$bare"
    cargo check -p ioatlas-dma -p ioatlas-vtd -p ioatlas-virtio-drivers -p ioatlas-dma-api \
        --target "$bare"
    echo "other machines: checked for $bare"
done

machine=aarch64-unknown-linux-gnu
rustup target add "$machine"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
# Not to be had under QEMU: Linux's asynchronous I/O, mappings of huge pages, filters of system
# calls, and a test program that starts itself.
cargo test --no-fail-fast --target "$machine" -p ioatlas-dma -p ioatlas-vhost --lib --test it -- \
    --skip event_fd::tests --skip events_that_block --skip huge_pages_that_run_out \
    --skip membarrier:: --skip a_front_end_that_finds_no_descriptor
