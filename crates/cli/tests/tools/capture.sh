# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What the guest of capture.rs does; files go out as base64. Each device has a load whose size is
# known: two disks are read block by block, and two networks answer pings.
load
mount -t tracefs nodev /sys/kernel/tracing || fail "no tracefs"
cd /tmp
file() {
    base64 -w 4000 "$2" | while read -r line; do say "$1 $line"; done
}
until [ -b /dev/nvme0n1 ] && [ -b /dev/sda ]; do sleep 0.1; done
# card DRIVER ADDRESS: brings up the network device of a driver
card() {
    for net in /sys/class/net/*; do
        [ "$(basename "$(readlink "$net/device/driver")")" = "$1" ] || continue
        ifconfig "$(basename "$net")" "$2" netmask 255.255.255.0 up
        until [ "$(cat "$net/carrier")" = 1 ]; do sleep 0.1; done
        return
    done
    fail "no network device of $1"
}
card e1000 10.0.2.15
card virtio_net 10.0.3.15

# capturing FILE: waits until this file of the instance has a 1, while the capture goes on
capturing() {
    until [ "$(cat /sys/kernel/tracing/instances/ioatlas-*/$1 2>/dev/null)" = 1 ]; do
        kill -0 $capture 2>/dev/null || fail "capture ended: $(tr '\n' ' ' <told)"
        sleep 0.1
    done
}
loads() {
    for disk in nvme0n1 sda; do
        dd if=/dev/$disk of=/dev/null bs="$BLOCK_BYTES" count="$BLOCKS" iflag=direct 2>told.dd ||
            fail "dd of $disk: $(tr '\n' ' ' <told.dd)"
    done
    for host in 10.0.2.2 10.0.3.2; do
        ping -q -A -c "$PINGS" -s "$PING_BYTES" $host >told.ping 2>&1 ||
            fail "ping of $host: $(tr '\n' ' ' <told.ping)"
    done
}

ioatlas doctor --json >doctor 2>told || say "told $(cat told)"
file doctor doctor
ioatlas doctor >words 2>&1
file words words

ioatlas capture --seconds 500 --json -o my.trace.zst >summary 2>told &
capture=$!
# a new instance is on, without events: capture switches it off, events on, and then it on
capturing events/dma/enable
capturing tracing_on
loads
kill -INT $capture
wait $capture || fail "capture: $(tr '\n' ' ' <told)"
say "instances $(ls /sys/kernel/tracing/instances)"
file summary summary
file trace my.trace.zst
ioatlas report my.trace.zst --as linux-strict >words 2>told &&
    say "report ok" || say "report $(tr '\n' ' ' <told)"

# what README says to type, as it stands there
if [ -e /readme ]; then
    chmod +x /programs/cargo /programs/sudo
    while :; do loads; done &
    loading=$!
    sh -e /readme >words 2>told && say "readme ok" || say "readme $(tr '\n' ' ' <told)"
    kill $loading
    wait $loading
    file typed words
fi

# the same loads, counted in the kernel
if command -v bpftrace >/dev/null; then
    mount -t debugfs nodev /sys/kernel/debug
    ioatlas capture --bpftrace --seconds 500 >script || fail "capture --bpftrace"
    sh script >my.json 2>told &
    capture=$!
    until grep -q ioatlas-bpftrace my.json; do
        kill -0 $capture 2>/dev/null || fail "bpftrace ended: $(tr '\n' ' ' <told)"
        sleep 0.1
    done
    loads
    kill -INT $capture
    wait $capture || fail "bpftrace: $(tr '\n' ' ' <told)"
    say "bpftrace $(bpftrace --version)"
    file counts my.json
fi
say done
end
