#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The documents of the core and of vhost as they are published, without the feature `unstable`: no
# link in them leads nowhere, and they show no more types than are written down here.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}/published
# each by itself, so that none turns on a feature of the other
for library in ioatlas-dma ioatlas-vhost; do
    CARGO_TARGET_DIR=$target RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p "$library"
done

# LIBRARY MOST: more is a decision. Each is a name that users learn, and that no release may change.
bad=0
while read -r library most; do
    index=$target/doc/${library//-/_}/all.html
    types=$(grep -oE 'href="[^"]*(struct|enum|trait|type|union)\.[A-Za-z0-9_]+\.html"' "$index" | sort -u | wc -l)
    echo "public types: $library shows $types, of at most $most"
    [ "$types" -ge 50 ] && [ "$types" -le "$most" ] || bad=1
done <<'BOUNDS'
ioatlas-dma 122
ioatlas-vhost 71
BOUNDS
exit $bad
