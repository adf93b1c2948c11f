# vrf.sh - the LAN interface of one gateway in a VRF: hosts' programs cross by the gateways, and nothing of RoCE leaves beside them though the
# machine forwards, be it whole or in fragments. The kernel says of such packets that they came by the VRF (nftables), and by the interface (rules).
. /mnt/two-sites.sh
. /mnt/modules.sh
load nf_tables nft_limit vrf || exit 2
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

plain off; lan_mtu 4200; link 1ms 0% 50mbit
ip netns exec gwa sysctl -qw net.ipv4.ip_forward=1
# The machine knows a way to the other site's hosts, which programs' TCP takes.
ip -n gwa route add 10.0.1.0/24 via 10.9.0.2

# Whether a packet of a host's, of so many bytes, is on the long link as it is: one to RoCE's port, or a fragment without the port.
leaves() {
  ip netns exec gwb timeout 8 tcpdump -qnni wb -c 1 "$1" > /run/seen 2> /dev/null & local seen=$!
  sleep 1
  python3 -c '
import socket, sys, time
host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
host.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"v0")
host.bind(("10.0.0.1", 0))
for _ in range(15):
    host.sendto(bytes(int(sys.argv[1])), ("10.0.1.1", 4791)); time.sleep(0.2)' "$2"
  wait $seen
}
whole() { leaves 'udp port 4791' 100; }
fragments() { leaves 'dst net 10.0.1.0/24 and ip[6:2] & 0x1fff != 0' 9000; }
seals() { # what the gateway's LAN interface is
  whole && fail "$1: RoCE leaves unsealed"
  fragments && fail "$1: fragments of RoCE leave unsealed"
  pair ib_write_bw -s 65536 -q 2 -n 50 > /run/program.log 2>&1 || { tail -n 3 /run/program.log; fail "$1: a program"; }
  ip netns exec gwa "$longhaul" check --live $etc/a.toml > /run/checked 2>&1 || { cat /run/checked; fail "$1: check --live"; }
  ! grep -q 'no route for programs' /run/checked || fail "$1: check --live does not see the VRF's routes"
  [[ $(metric a longhaul_flows_failed_total) == 0 ]] || fail "$1: flows failed"
}

whole && fragments || fail "without a gateway nothing leaves, and nothing is shown"
gateways sr || fail "no session"
seals "as it is"
stop_gateways

ip -n gwa link add blue type vrf table 10; ip -n gwa link set blue up
ip -n gwa link set g0 master blue
ip -n gwa route del 10.0.1.0/24
ip -n gwa route add 10.0.1.0/24 via 10.9.0.2 dev wa table 10
whole || fail "without a gateway nothing leaves by the VRF, and nothing is shown"
fragments || fail "without a gateway no fragment leaves by the VRF, and nothing is shown"
gateways sr || fail "no session in a VRF"
seals "in a VRF"
stop_gateways
echo "$failures failures"
(( failures == 0 ))
