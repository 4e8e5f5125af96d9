#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The documents of the core as they are published, without the feature `unstable`: no link in them
# leads nowhere, and they show no more types than are written down here.
set -euo pipefail
cd "$(dirname "$0")/.."

# More is a decision: each is a name that users learn and that no release may change.
most=122

target=${CARGO_TARGET_DIR:-$PWD/target}/published
CARGO_TARGET_DIR=$target RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p ioatlas-dma
types=$(grep -oE 'href="[^"]*(struct|enum|trait|type|union)\.[A-Za-z0-9_]+\.html"' "$target/doc/ioatlas_dma/all.html" |
    sort -u | wc -l)
echo "public types: ioatlas-dma shows $types, of at most $most"
[ "$types" -ge 50 ] && [ "$types" -le "$most" ]
