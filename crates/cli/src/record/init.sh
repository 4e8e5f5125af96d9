# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What the guest does, after the beginning that all guests share.
mount -t tracefs trace /sys/kernel/tracing

# Port 0x92 (system control port A): bit 1 keeps A20 on, bit 0 would reset; QEMU traces what is written.
mark() { printf "\\$(printf %03o $((2 + $1 * 4)))" | dd of=/dev/port bs=1 seek=146 conv=notrunc 2>/dev/null; }

# Addresses of functions, the firmware's DMAR table, and where a device's registers are.
probe() {
    grep -E " ($SYMBOLS)\$" /proc/kallsyms | while read -r line; do say "symbol $line"; done
    say "dmar $(hexdump -v -e '1/1 "%02x"' /sys/firmware/acpi/tables/DMAR)"
    for device in /sys/bus/pci/devices/*; do
        n=0
        while read -r first last flags; do
            [ "$flags" = 0x0000000000000000 ] || say "region ${device##*/} $n $first $last"
            n=$((n + 1))
        done <"$device/resource"
    done
}

count() {
    echo "hist:keys=$2" >"$events/$1/trigger" || fail "the kernel cannot count: no histogram triggers"
}
counted() {
    while read -r line; do say "$1 $line"; done <"$events/$1/hist"
}

cards() { for card in /sys/class/net/*; do [ -e "$card/device" ] && echo "${card##*/}"; done; }
# With each card and its number at once: "$@" and these two.
each_card() {
    n=0
    for card in $(cards); do
        "$@" "$card" "$n" &
        n=$((n + 1))
    done
    wait
}
up() {
    [ "$QUEUES" = 1 ] || echo "$card: $(ls -d /sys/class/net/$1/queues/rx-* | wc -l) queues"
    ip addr add "$NET$((2 + $2)).15/24" dev "$1" && ip link set "$1" up || fail "cannot configure $1"
    until [ "$(cat /sys/class/net/$1/carrier)" = 1 ]; do sleep 0.1; done
}
# Several connections where there are several queues.
send() {
    i=0
    while [ $i -lt "$STREAMS" ]; do
        dd if=/dev/zero bs=16k count=$((MIB * 64 / STREAMS)) 2>/dev/null | nc.openbsd -N "$NET$((2 + $2)).2" "$SINK" || say "trouble: send" &
        i=$((i + 1))
    done
    wait
}
receive() {
    i=0
    while [ $i -lt "$STREAMS" ]; do
        nc.openbsd -d "$NET$((2 + $2)).2" "$SOURCE" >/dev/null || say "trouble: receive" &
        i=$((i + 1))
    done
    wait
}
# The peer asks, one byte at a time, and ends the connection.
answer() { nc "$NET$((2 + $2)).2" "$ECHO" -e /bin/cat; }

filesystem() {
    /programs/mke2fs -q -t ext4 -F -E lazy_itable_init=0,lazy_journal_init=0 "$DISK" >/dev/null || fail "cannot make a file system"
    mount -t ext4 "$DISK" /mnt || fail "cannot mount the disk"
}
disk() {
    n=0
    until [ -b "$DISK" ]; do
        n=$((n + 1))
        [ $n -lt 600 ] || fail "$DISK does not appear"
        sleep 0.1
    done
}

if [ "$WORKLOAD" = probe ]; then
    probe
    say done
    end
fi

events=/sys/kernel/tracing/events/iommu
count map size
count unmap unmapped_size
load
ip link set lo up
case $CLASS in
network) each_card up ;;
disk) disk ;;
esac
case $WORKLOAD in bonnie | dd) filesystem ;; esac

say "works"
mark 1
case $WORKLOAD in
stream) each_card send ;;
rr) each_card answer ;;
mix)
    each_card send
    mark 2
    each_card receive
    mark 3
    each_card answer
    ;;
bonnie) bonnie++ -d /mnt -u root -f -s "$MIB" -r "$((MIB / 2))" -n 0 -m guest >/dev/null || say "trouble: bonnie++" ;;
dd) dd if=/dev/zero of=/mnt/file bs=16k count=$((MIB * 64)) conv=fsync || say "trouble: dd" ;;
fio)
    fio --name=mixed --filename="$DISK" --rw=randrw --bs=4k --size=256m --io_size="${MIB}m" --direct=1 --ioengine=libaio \
        --iodepth="$DEPTH" --numjobs="$STREAMS" --thread --group_reporting --randrepeat=1 || say "trouble: fio"
    ;;
esac
mark 4

say "comes to rest"
case $CLASS in
network) for card in $(cards); do ip link set "$card" down; done ;;
disk)
    case $WORKLOAD in bonnie | dd) umount /mnt || fail "cannot unmount" ;; esac
    sync
    ;;
esac
sleep 1
mark 63
counted map
counted unmap
say done
end
