#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Do the published libraries break a program that was written on them? Compares what their documents
# show with what they showed at a commit, by cargo-semver-checks (cargo installs it where it is
# missing, which takes some minutes). The last line is "N passed, N failed".
#
#   ci/semver.sh [COMMIT]    by default the newest release (tag v*), or what was settled before it
set -euo pipefail
cd "$(dirname "$0")/.."

# Until 0.2.0 is released: the commit at which its interface was settled. A change that breaks it
# has a line in docs/from-0.1.md, and the commit that makes it stands here afterwards.
settled=70d95751
since=${1:-$(git describe --tags --match 'v[0-9]*' --abbrev=0 HEAD^ 2>/dev/null || echo "$settled")}
if ! git rev-parse --quiet --verify "$since^{commit}" >/dev/null; then
    echo "semver: there is no commit $since here: git fetch --unshallow --tags" >&2
    exit 2
fi

export PATH=$PATH:${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin
command -v cargo-semver-checks >/dev/null || cargo install cargo-semver-checks --locked --version 0.51.0
command -v jq >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends jq; } >&2

libraries=$(cargo metadata --no-deps --format-version 1 |
    jq -r '.packages[] | select(.publish == null and any(.targets[]; .kind == ["lib"])) | .name')
passed=0 failed=0
for library in $libraries; do
    status=0
    cargo semver-checks --package "$library" --baseline-rev "$since" || status=$?
    case $status in
    0) passed=$((passed + 1)) ;;
    100) failed=$((failed + 1)) ;; # of these findings; anything else is no answer
    *)
        echo "semver: $library could not be compared (status $status)" >&2
        exit 2
        ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
