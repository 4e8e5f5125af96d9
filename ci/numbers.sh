#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Measures what the documents quote, and writes it into docs/numbers.md: a section for each command,
# with its date, commit, machine and load. Sections that are not named keep what stands there.
# Nothing in that file is written by hand: each section ends with a checksum of itself, which
# --check compares.
#
#   ci/numbers.sh [SECTION..]     all sections, or those named, as --list names them
#   ci/numbers.sh --list          their names, and what each measures
#   ci/numbers.sh --check         exit status 1: the page was changed, or a section is missing
#
# On a machine with nothing else to do. As root it installs what a section needs (Debian).
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/numbers.md

all='
systems       a map and its unmap as each system does it
instructions  instructions of a pair, counted
idle          what a domain takes of the heap before it maps anything
peers         allocators of other crates under the same load, in turns
bounce        bounce buffers beside direct mapping, in turns
simulated     16 simulated CPUs: the results that ATC15 has, ours beside theirs
iotlb         how fast traces are read and IOTLBs simulated
vhost-iotlb   lookups and updates of a device IOTLB
vhost         vhost-net beside testpmd of DPDK, in turns
'

# body NAME: what stands in the page between the marks of that section.
body() {
    awk -v name="$1" '
        $0 ~ "^<!-- /" name " " { on = 0 }
        on { print }
        $0 == "<!-- " name " -->" { on = 1 }' "$page"
}
sum() {
    cksum | cut -d' ' -f1
}
check() {
    local name bad=0 written
    for name in $(awk 'NF { print $1 }' <<<"$all"); do
        written=$(sed -n "s|^<!-- /$name \([0-9]*\) -->\$|\1|p" "$page")
        if [ -z "$written" ]; then
            echo "$page has no section $name: ci/numbers.sh $name"
            bad=1
        elif [ "$(body "$name" | sum)" != "$written" ]; then
            echo "$page: section $name was changed by hand: ci/numbers.sh $name"
            bad=1
        fi
    done
    return $bad
}

names=
for argument; do
    case $argument in
    --list) sed '/^$/d' <<<"$all" && exit ;;
    --check) check && exit ;;
    *)
        if ! grep -q "^$argument " <<<"$all"; then
            sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
            echo "no section of it: $argument" >&2
            exit 2
        fi
        names="$names $argument"
        ;;
    esac
done
[ -n "$names" ] || names=$(awk 'NF { printf "%s ", $1 }' <<<"$all")

target=${CARGO_TARGET_DIR:-target}
command -v jq >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends jq; } >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# say WORDS: a paragraph, wrapped.
say() {
    printf '%s\n' "$1" | tr -s ' \n' ' ' | fmt -w 100
}

ioatlas() {
    cargo build --release --quiet && "$target/release/ioatlas" "$@"
}
lab() {
    cargo build --release --quiet --package ioatlas-experiments && "$target/release/ioatlas-lab" "$@"
}

systems() {
    echo '## A map and its unmap, by system'
    said 'cargo run --release -- report --json'
    echo
    say 'Wall time of one map and its unmap in a ring of 256 single pages with real page tables, no invalidation in it: median
        (10th to 90th percentile). Invalidations and windows are those of the bundled traces. These are the designs as they
        are built here, not those kernels.'
    echo
    ioatlas report --json -o "$work/report.html" >"$work/report"
    jq -r '
        def ns: .text;
        def range: "\(.[0].text) to \(.[1].text)";
        "| as | design | 1 thread, ns | 2 threads, ns each | invalidations per 1,000 maps | unmaps seen in the window |",
        "|---|---|--:|--:|--:|--:|",
        (.systems[] |
            "| \(.name | sub("^as "; "")) | `\(.design | gsub(" "; ""))` "
            + "| \(.ns_per_pair_1_thread | ns) (\(.ns_per_pair_1_thread_range | range)) "
            + "| \(if .ns_per_pair_2_threads then "\(.ns_per_pair_2_threads | ns) (\(.ns_per_pair_2_threads_range | range))" else "-" end) "
            + "| \(.invalidations_per_1k_maps.text) "
            + "| \(.exposure | if .kind == "none" then "none" else .operations_observed.text end) |"),
        "",
        "\(.oracle.checked_accesses.text // .oracle.accesses.text) accesses checked, \(.oracle.violations.text) violations."
    ' "$work/report"
}

instructions() {
    echo '## Instructions of a pair'
    said ci/instructions.sh
    echo
    say 'Counted by callgrind, so the same on any day: one map and one unmap (`domain`), one allocation and one free
        (`allocator`), one install and one clear (`table`), one copy in and one out (`bounce`), one lookup or one update and
        one invalidation (`iotlb`). The measuring loop, some 25 instructions, is included.'
    echo
    ci/instructions.sh >"$work/counted" || { cat "$work/counted" >&2 && return 1; }
    echo '| case | instructions |'
    echo '|---|--:|'
    awk '$1 ~ "/" { printf "| `%s` | %s |\n", $1, $2 }' "$work/counted"
    echo
    grep '^# Counted with' ci/instructions.budget | sed 's/^# //'
}

idle() {
    echo '## Memory of an idle domain'
    said 'cargo run --release -p ioatlas-bench --bin idle'
    echo
    say 'Bytes that the heap has given to a domain that has mapped nothing, by how many CPUs the platform has. The root of
        its tables, a frame, is not among them. A test holds each of these designs to 16 KiB and 1 KiB a CPU.'
    echo
    cargo run --release --quiet -p ioatlas-bench --bin idle
}

peers() {
    echo '## Beside other allocators'
    said 'cargo lab bench --quick --json'
    echo
    say 'Nanoseconds of one allocation and one free, or of one map and one unmap with page tables (median, 10th to 90th
        percentile), one thread. All rows are measured in turns with one control loop; what is compared is a row with
        another of the same pattern and sizes.'
    echo
    lab bench --quick --json >"$work/bench"
    jq -r '
        def tenth: . * 10 | round / 10;
        "| what | pattern | sizes | ns | of the control loop |",
        "|---|---|---|--:|--:|",
        ([.[] | select(.ns_per_pair and .threads == 1 and (.kind | IN("allocator", "domain", "table", "peer", "software")))]
         | sort_by(.pattern, .outstanding, .sizes, .kind, .ns_per_pair) | .[] |
            "| " + (if .kind == "peer" then "crate \(.peer)"
                    elif .kind == "table" then "page table"
                    elif .kind == "allocator" then "allocator `\(.allocator)`"
                    elif .kind == "software" then "`\(.allocator),\(.policy)` on the software unit"
                    else "`\(.allocator),\(.policy)`" end)
            + " | \(.pattern)\(if .pattern == "replace" then " of \(.outstanding)" else "" end) | \(.sizes) | \(.ns_per_pair | tenth) (\(.ns_p10 | tenth) to \(.ns_p90 | tenth)) "
            + "| \(if .control_ratio then "\(.control_ratio | tenth) x" else "-" end) |")
    ' "$work/bench"
}

bounce() {
    echo '## Bounce buffers beside direct mapping'
    said 'cargo lab bench bounce --quick --json'
    echo
    say 'One thread. How many times as fast as mapping each buffer (`never`) a placement is, by what an invalidation costs
        (translator), size and direction; above 1 bouncing is faster.'
    echo
    lab bench bounce --quick --json >"$work/bounce"
    jq -r '
        def hundredth: . * 100 | round / 100;
        [.rows[] | select(.threads == 1 and .times_never)] as $rows
        | ([$rows[].policy] | unique) as $policies
        | "| translator | direction | KiB | \($policies | join(" | ")) |",
          "|---|---|--:|\($policies | map("--:") | join("|"))|",
          ($rows | group_by([.translator, .direction, .block_kib])[] | . as $cell
            | "| \(.[0].translator) | \(.[0].direction) | \(.[0].block_kib) | "
              + ([$policies[] | . as $p | ($cell | map(select(.policy == $p)) | if length > 0 then (.[0].times_never | hundredth | tostring) else "-" end)]
                 | join(" | ")) + " |")
    ' "$work/bounce"
}

simulated() {
    echo '## 16 simulated CPUs'
    said 'cargo lab scale --quick --json'
    echo
    say 'This code on a simulated multiprocessor, beside the results of ATC'"'"'15. *Fitted*: parameters were chosen by this
        result; *predicted*: they were not; *input*: the value of the paper goes in.'
    echo
    lab scale --quick --json >"$work/scale"
    jq -r '
        "| result | section | paper | here | |",
        "|---|---|--:|--:|---|",
        (.rows[] | "| \(.name) | \(.section) | \(.paper) | \(.ours * 100 | round / 100) \(.unit) | \(.kind) |")
    ' "$work/scale"
}

# block COMMAND..: what it prints, as it is.
block() {
    echo
    echo '```text'
    "$@" 2>"$work/errors" || { cat "$work/errors" >&2 && return 1; }
    echo '```'
}
iotlb() {
    echo '## Reading and simulating traces'
    said 'cargo bench -p ioatlas-iotlb'
    block cargo bench --quiet -p ioatlas-iotlb --bench rates
}
vhost_iotlb() {
    echo '## Device IOTLB'
    said 'cargo bench -p ioatlas-vhost'
    block cargo bench --quiet -p ioatlas-vhost --bench iotlb
    block cargo bench --quiet -p ioatlas-vhost --bench guest_memory
}

vhost() {
    echo '## vhost-net beside DPDK'"'"'s testpmd'
    said 'ci/vhost-compare.sh --quick --json'
    echo
    say 'One generator drives both in turns. *Of off*: of the rate with the IOMMU off and the same pages; frames are those
        a second that came back, each checked. The forwarding loops want a CPU each, the generator another: with two CPUs
        compare the columns, not with other machines.'
    echo
    command -v dpdk-testpmd >/dev/null || ci/install-dpdk.sh >&2
    VHOST_LOGS=$work/logs ci/vhost-compare.sh --quick --json >"$work/vhost"
    jq -r '
        def figure: if . == null then "-" elif . < 100 then . * 1000 | round / 1000 | tostring else round | tostring end;
        "| | testpmd | here | here to testpmd |",
        "|---|--:|--:|--:|",
        (.comparisons[] | "| \(.row) | \(.testpmd | figure) | \(.ours | figure) | \(.ratio | figure) |")
    ' "$work/vhost"
}

# said COMMAND: under what circumstances a section was measured.
said() {
    local commit machine
    commit=$(git rev-parse --short HEAD)
    [ -z "$(git status --porcelain -- . ":!$page")" ] || commit="$commit and changes"
    machine="$(nproc) CPUs$(sed -n 's/^model name[^:]*:/,/p' /proc/cpuinfo | head -n 1)"
    echo
    say "\`$1\`, $(date +%F), commit $commit, $machine, load $(cut -d' ' -f1 /proc/loadavg) at the start."
}

{
    cat <<'HEAD'
# Numbers

Written by `ci/numbers.sh`, a section for each command; nothing here is written by hand. Times are
of one machine on one day, quiet or not as its load says: compare within a section, not across. What
is counted (instructions, invalidations, accesses) is the same everywhere.
HEAD
    for name in $(awk 'NF { print $1 }' <<<"$all"); do
        if [[ " $names " == *" $name "* ]]; then
            echo "numbers: $name" >&2
            "${name//-/_}" >"$work/section"
        elif [ -e $page ] && grep -q "^<!-- $name -->\$" $page; then
            body "$name" >"$work/section"
        else
            continue
        fi
        echo
        echo "<!-- $name -->"
        cat "$work/section"
        echo "<!-- /$name $(sum <"$work/section") -->"
    done
} >"$work/page"
cp "$work/page" $page
echo "written: $page" >&2
