# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What the guest of capture.rs does. All that it needs is in its kernel; files go out as base64.
mount -t tracefs nodev /sys/kernel/tracing || fail "no tracefs"
cd /tmp
file() {
    base64 -w 4000 "$2" | while read -r line; do say "$1 $line"; done
}
until [ -b /dev/nvme0n1 ]; do sleep 0.1; done

ioatlas doctor --json >doctor 2>told || say "told $(cat told)"
file doctor doctor
ioatlas doctor >words 2>&1
file words words

ioatlas capture --seconds 500 --json -o my.trace.zst >summary 2>told &
capture=$!
until [ "$(cat /sys/kernel/tracing/instances/ioatlas-*/tracing_on 2>/dev/null)" = 1 ]; do
    kill -0 $capture 2>/dev/null || fail "capture ended: $(tr '\n' ' ' <told)"
    sleep 0.1
done
dd if=/dev/nvme0n1 of=/dev/null bs="$BLOCK_BYTES" count="$BLOCKS" iflag=direct 2>told.dd ||
    fail "dd: $(tr '\n' ' ' <told.dd)"
kill -INT $capture
wait $capture || fail "capture: $(tr '\n' ' ' <told)"
say "instances $(ls /sys/kernel/tracing/instances)"
file summary summary
file trace my.trace.zst
ioatlas report my.trace.zst --as linux-strict >words 2>told &&
    say "report ok" || say "report $(tr '\n' ' ' <told)"
say done
end
