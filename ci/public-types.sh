#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The documents of the core and of vhost as they are published, without the feature `unstable`: no
# link in them leads nowhere (rustc says nothing of links to what is hidden), and they have no more
# pages of types than are written down here. Methods, fields and variants are not counted.
set -euo pipefail
cd "$(dirname "$0")/.."

# a folder of its own, and nothing in it of other features or of another day
target=${CARGO_TARGET_DIR:-$PWD/target}/published
rm -rf "$target/doc"
unset CARGO_BUILD_TARGET
for library in ioatlas-dma ioatlas-vhost; do
    CARGO_TARGET_DIR=$target RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p "$library"
done
cd "$target/doc"
bad=0

# what std and vm-memory say of their own types leads into their documents
inherited='nomicon/atomics.html|struct.VolatileSlice.html'
dead=$(find ioatlas_dma ioatlas_vhost -name '*.html' -exec awk '
    function resolved(path, part, n, i, kept, out) {
        n = split(path, part, "/")
        for (i = 1; i <= n; i++)
            if (part[i] == "..") kept--
            else if (part[i] != ".") out[++kept] = part[i]
        path = out[1]
        for (i = 2; i <= kept; i++) path = path "/" out[i]
        return path
    }
    { while (match($0, /(href|id)="[^"]*"/)) {
        found = substr($0, RSTART, RLENGTH - 1)
        $0 = substr($0, RSTART + RLENGTH)
        if (sub(/^id="/, "", found)) there[FILENAME "#" found]
        else if (sub(/^href="/, "", found) && found !~ /^(https?|javascript):|static[.]files|src\/|^#$/)
            links[FILENAME "\t" found]
        seen++
    } there[FILENAME] }
    END { if (seen < 1000) print "only " seen + 0 " links and names were read"
    for (link in links) {
        split(link, part, "\t")
        folder = part[1]
        sub(/[^\/]*$/, "", folder)
        if (!((part[2] ~ /^#/ ? part[1] part[2] : resolved(folder part[2])) in there)) print part[1] ": " part[2]
    } }' {} +)
dead=$(grep -vE "^$|$inherited" <<<"$dead" | sort) || [ $? = 1 ]
if [ -n "$dead" ]; then
    echo "links that lead nowhere:"
    echo "$dead"
    bad=1
fi

# LIBRARY MOST: more is a decision. Each is a name that users learn, and that no release may change.
while read -r library most; do
    index=${library//-/_}/all.html
    types=$(grep -oE 'href="[^"]*(struct|enum|trait|type|union)\.[A-Za-z0-9_]+\.html"' "$index" | sort -u | wc -l) || types=0
    echo "public types: $library shows $types, of at most $most"
    [ "$types" -ge 50 ] && [ "$types" -le "$most" ] || bad=1
done <<'BOUNDS'
ioatlas-dma 123
ioatlas-vhost 73
BOUNDS
exit $bad
