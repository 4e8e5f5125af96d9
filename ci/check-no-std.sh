#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Can a kernel link core and drivers? Builds them for a target without an operating system, checks
# them for one without atomic words of 64 bits (rustup target add x86_64-unknown-none
# riscv32imac-unknown-none-elf), and looks into an archive built for the host (ci/no-std): no symbol
# of `std`, nothing asked of a C library but memory copies, no thread-local storage. Proves on an
# archive that has all three that it would notice.
set -euo pipefail
cd "$(dirname "$0")/.."

bare=x86_64-unknown-none
# It has no 64-bit atomics: a platform brings its own words.
narrow=riscv32imac-unknown-none-elf
if ! command -v readelf >/dev/null; then
    echo "no-std: needs readelf: ci/install-binutils.sh (apt-get install binutils)" >&2
    exit 1
fi

# What a kernel has to bring along itself; the unwinder's names are mentioned by precompiled `core`,
# and never called.
allowed='^(memcpy|memmove|memset|memcmp|bcmp|strlen|rust_eh_personality|_Unwind_Resume|_GLOBAL_OFFSET_TABLE_)$'
# Crate `std` in mangled names, v0 (a crate root, C..3std) and legacy (_ZN3std.., or as `<std::..>`
# inside a name).
std_names='^_R.*C([a-zA-Z0-9]*_)?3std|^_ZN3std[0-9]|_LT_std\.\.|\$LT\$std\.\.'

# Prints what is wrong with an archive, a line each; nothing if it is fine.
faults() {
    local symbols
    symbols=$(mktemp)
    readelf -sW "$1" | awk '$1 ~ /^[0-9]+:$/ && NF >= 8 { print $4, $7, $8 }' | sort -u >"$symbols"
    if [ "$(wc -l <"$symbols")" -lt 100 ]; then
        echo "fewer than 100 symbols: the archive was not read"
    fi
    awk '{ print $3 }' "$symbols" | grep -E "$std_names" | sed 's/^/symbol of std: /' || true
    awk '$1 == "TLS" { print "thread-local symbol: " $3 }' "$symbols"
    awk '$3 == "__tls_get_addr" { print "thread-local access: " $3 }' "$symbols"
    awk '$2 != "UND" { print $3 }' "$symbols" | sort -u >"$symbols.defined"
    awk '$2 == "UND" { print $3 }' "$symbols" | sort -u | comm -23 - "$symbols.defined" |
        grep -vE "$allowed" | sed 's/^/not in the archive: /' || true
    readelf -SW "$1" | grep -oE '\.t(bss|data)[^ ]*' | sort -u | sed 's/^/thread-local section: /' || true
    rm -f "$symbols" "$symbols.defined"
}

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# without these targets cargo says how to install them
cargo build -p ioatlas-dma -p ioatlas-vtd -p ioatlas-virtio-drivers -p ioatlas-dma-api -p ioatlas \
    --features ioatlas/vtd,ioatlas/virtio-drivers,ioatlas/dma-api --target "$bare"
echo "no-std: built for $bare"
cargo check -p ioatlas-dma -p ioatlas-vtd -p ioatlas-virtio-drivers -p ioatlas-dma-api --target "$narrow"
echo "no-std: checked for $narrow"

target=${CARGO_TARGET_DIR:-$PWD/target}
# The workspace's versions: what is not needed cargo leaves out. No lock file of its own is kept,
# which would drift.
cp Cargo.lock ci/no-std/Cargo.lock
CARGO_TARGET_DIR=$target/no-std cargo build --release --manifest-path ci/no-std/Cargo.toml
archive=$target/no-std/release/libioatlas_no_std.a
for entry in ioatlas_uncached ioatlas_vtd; do
    readelf -sW "$archive" | awk -v e="$entry" '$8 == e && $7 != "UND" { f = 1 } END { exit !f }' ||
        { echo "no-std: $entry is not in the archive" >&2; exit 1; }
done

# The other way round: each kind of fault is found in an archive that has it.
cat >"$build/planted.rs" <<'RUST'
std::thread_local! { static KEPT: std::cell::Cell<u64> = const { std::cell::Cell::new(1) }; }
#[unsafe(no_mangle)]
pub extern "C" fn planted() -> u64 {
    std::thread::spawn(|| KEPT.with(|k| k.replace(2))).join().unwrap_or(0)
}
RUST
rustc --edition 2024 --crate-type staticlib -C panic=abort -o "$build/libplanted.a" "$build/planted.rs" 2>/dev/null
faults "$build/libplanted.a" >"$build/planted"
for kind in 'symbol of std: ' 'thread-local symbol: ' 'thread-local section: ' 'not in the archive: malloc' \
    'not in the archive: pthread_'; do
    if ! grep -qF "$kind" "$build/planted"; then
        echo "no-std: the check is blind: no '$kind' in an archive that has it" >&2
        exit 1
    fi
done

faults "$archive" >"$build/faults"
if [ -s "$build/faults" ]; then
    echo "no-std: $(wc -l <"$build/faults") things that a kernel could not link, among them:" >&2
    head -20 "$build/faults" >&2
    exit 1
fi
echo "no-std: $archive has no symbol of std or of a C library, and no thread-local storage"
