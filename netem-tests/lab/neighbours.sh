# neighbours.sh - one host of a LAN asks for the gateway by ARP in ever other names, from before the gateways are there: the kernel's table of
# neighbours, one for all of its name spaces, is full then, and takes in nobody. Gateways that start meanwhile bound what the LAN adds. So they find
# each other, and hosts that nobody knew.
#
#   LAB_RATE     20 Mbit/s
#   LAB_ASKED    400      requests a second
LAB_RATE=${LAB_RATE:-20 Mbit/s} # little enough for two emulated processors to do everything in time
. /mnt/two-sites.sh
. /mnt/modules.sh
load nf_tables nft_limit || exit 2
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# The hosts are in the same kernel, and are not what is tested: they know their gateways.
ip neigh replace 10.0.0.254 dev v0 lladdr "$(ip netns exec gwa cat /sys/class/net/g0/address)" nud permanent
ip neigh replace 10.0.1.254 dev v1 lladdr "$(ip netns exec gwb cat /sys/class/net/g1/address)" nud permanent

cat > /run/ask.py << 'PYTHON'
# Asks who has the gateway's address, each time as somebody else, so many times a second.
import socket, struct, sys, time
rate, own = float(sys.argv[1]), bytes.fromhex(open("/sys/class/net/v0/address").read().strip().replace(":", ""))
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); link.bind(("v0", 0x0806))
begun, sent = time.monotonic(), 0
while True:
    while sent < (time.monotonic() - begun) * rate:
        name = bytes([10, 64 + (sent >> 16) % 64, (sent >> 8) & 255, sent & 255])
        arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, own, name, bytes(6), bytes([10, 0, 0, 254]))
        link.send(b"\xff" * 6 + own + b"\x08\x06" + arp)
        sent += 1
    time.sleep(0.005)
PYTHON

# Sums over processors a column of the table's statistics: how often it was full, by its name.
stat() {
  local total=0 value at
  at=$(head -1 /proc/net/stat/arp_cache | tr -s ' ' '\n' | grep -nx "$1" | cut -d: -f1)
  for value in $(tail -n +2 /proc/net/stat/arp_cache | awk -v at="$at" '{print $at}'); do total=$((total + 16#$value)); done
  echo $total
}
entries() { # the number is the same in each line
  echo $((16#$(tail -1 /proc/net/stat/arp_cache | awk '{print $1}')))
}
takes_in() { # somebody new on the WAN
  ip -n gwa neigh replace 10.9.0.$1 dev wa lladdr 02:00:00:00:09:$1 nud stale 2> /run/refused
}

python3 /run/ask.py "${LAB_ASKED:-400}" & asks=$!
trap 'kill $asks' EXIT
for _ in {1..300}; do (( $(stat table_fulls) > 0 )) && break; sleep 0.1; done
before=$(stat table_fulls)
echo "before the gateways: $(entries) neighbours, full $before times; gc_thresh3 is $(sysctl -n net.ipv4.neigh.default.gc_thresh3)"
(( before > 0 )) || fail "the table is not full, and nothing is shown"
refused=0
for number in {20..39}; do takes_in $number || refused=$((refused + 1)); done
echo "of 20 new neighbours on the WAN, $refused are refused: $(head -1 /run/refused)"
(( refused > 0 )) || fail "the kernel still takes in neighbours"

plain off; lan_mtu 4200; link 5ms 0% 20mbit
began=$SECONDS
gateways sr || { gateways_log=$(tail -n 5 /run/gateway-a.log); fail "no session: $gateways_log"; }
echo "session after $((SECONDS - began)) s"
grep -h "neighbours" /run/gateway-?.log
pair ib_write_bw -s 65536 -q 2 -n 100 > /run/first.log 2>&1 || { tail -n 3 /run/first.log; fail "hosts that nobody knew are not found"; }
# What was there before is thrown out by and by.
sleep 6
settled=$(stat table_fulls)
refused=0
for number in {40..59}; do takes_in $number || refused=$((refused + 1)); done
pair ib_send_bw -s 65536 -q 2 -n 100 > /run/second.log 2>&1 || { tail -n 3 /run/second.log; fail "the second program"; }
sleep 6
after=$(stat table_fulls)
echo "beside the gateways: $(entries) neighbours, full $((after - settled)) times more; $refused of 20 new ones refused"
(( refused == 0 && after == settled )) || fail "the LAN keeps the table full"
for side in a b; do
  unsent=$(metrics $side | awk '/^longhaul_lan_unsent_packets_total.*(no_neighbour|wait_full)/ {sum += $2} END {print sum + 0}')
  failed=$(metric $side longhaul_flows_failed_total)
  echo "gateway $side: $unsent packets for neighbours that were not found, $failed flows failed"
  (( failed == 0 )) || fail "flows ended at $side"
done
kill -0 $asks || fail "nobody asks any more"
stop_gateways || fail "the gateways' end"
echo "$failures failures"
(( failures == 0 ))
