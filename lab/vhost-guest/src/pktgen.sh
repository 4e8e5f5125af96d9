# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What a guest does whose transmit rate is taken, after the beginning that all guests share: its kernel's own generator sends (pktgen).
load
n=0
until [ -e /sys/class/net/eth0 ]; do
    n=$((n + 1))
    [ $n -lt 600 ] || fail "no network card appears"
    sleep 0.1
done
ip addr add "$GUEST/24" dev eth0 && ip link set eth0 up || fail "cannot configure the network card"
until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.1; done

generator=/proc/net/pktgen
echo "add_device eth0" >$generator/kpktgend_0 || fail "no packet generator"
# without end, each frame a new one
for setting in "count 0" "clone_skb 0" "pkt_size 60" "dst $PEER" "dst_mac 02:00:00:00:00:01"; do
    echo "$setting" >$generator/eth0 || fail "pktgen: $setting"
done
# seconds since boot, frames sent, frames received
now() { echo "$(cut -d ' ' -f 1 /proc/uptime) $(cat /sys/class/net/eth0/statistics/tx_packets) $(cat /sys/class/net/eth0/statistics/rx_packets)"; }
say "phase sends"
echo start >$generator/pgctrl &
sleep "$WARM_UP"
say "at $(now)"
sleep "$SECONDS_OF_RATE"
say "at $(now)"
echo stop >$generator/pgctrl
wait
say done
end
