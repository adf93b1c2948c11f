# two-sites.sh - source it inside the lab machine. One kernel, two RDMA hosts, two gateway name spaces:
#
#   rxe0 on v0 10.0.0.1 -- g0 [ns gwa] wa 10.9.0.1 == tc netem == wb 10.9.0.2 [ns gwb] g1 -- v1 10.0.1.1 on rxe1
#
# Both hosts live in the first name space (Soft-RoCE up to 6.12 knows no other), so policy routing sends what
# rxe0 says to rxe1 out through v0 and gateway A instead of short-cutting over lo; the `oif` rules are what rdma_cm's
# address check asks for. The gateways get the packets on g0 and g1.
#
#   link 10ms 1% 200mbit      sets delay, loss and rate of the long link, each way, at any time
#   plain on|off              routes without gateways (the plain-RC baseline), or not
#   gateways SCHEME           starts the pair with a scheme ("sr", "mds 32 8"), waits until the session is up; stop_gateways ends it
#   lan_mtu 4200              the LANs' MTU: 4200 gives path MTU 4096, 1500 gives 1024
#   ipv6                  gives the hosts IPv6 addresses as well, fd10::1 and fd10:0:1::1, and the gateways the way to them; before `gateways`
#   LAB_COMPLETION        the class's completion: remote or local
#   LAB_WAN_IPV6=1        the gateways speak to each other by IPv6
#   LAB_THREADS           data-plane threads of each gateway
#   gid6 0|1              the index of that site's GID that is its IPv6 address
#   keep_order                what one queue pair sends arrives in that order, as by real NICs: each flow's packets wait for one of the CPUs, whichever sent them
#   empty a|b                 whether that gateway holds nothing any more
#   pair PROGRAM ARGS...      server on rxe1, client on rxe0 (its output on stdout, its status returned)
#   watch, watched            and what else judged.sh has
lab_group=239.1.1.1   # a multicast group that both sites share: UD to it is carried
longhaul=${LAB_LONGHAUL:?the longhaul binary}

site() { # number name-space
  ip netns add $2
  ip link add v$1 mtu 4200 type veth peer name g$1 mtu 4200
  ip link set g$1 netns $2
  ip addr add 10.0.$1.1/24 dev v$1; ip link set v$1 up
  ip -n $2 addr add 10.0.$1.254/24 dev g$1; ip -n $2 link set g$1 up; ip -n $2 link set lo up
  sysctl -qw net.ipv4.conf.v$1.accept_local=1 net.ipv4.conf.v$1.rp_filter=0
  ip netns exec $2 sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.g$1.rp_filter=0
}
site 0 gwa; site 1 gwb
# All LANs' packets wait for this kernel's two emulated CPUs in one queue each, which holds 1000 of them by default: less than one READ of 1 MiB brings.
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.rmem_max=67108864 net.core.wmem_max=67108864 net.core.netdev_max_backlog=30000
ip link add wa mtu 9000 netns gwa type veth peer name wb mtu 9000 netns gwb
ip -n gwa addr add 10.9.0.1/24 dev wa; ip -n gwa link set wa up
ip -n gwb addr add 10.9.0.2/24 dev wb; ip -n gwb link set wb up
tc -n gwa qdisc add dev wa root netem delay 0ms limit 200000
tc -n gwb qdisc add dev wb root netem delay 0ms limit 200000
# What comes in is for this host: the first rule says so, instead of the last.
ip rule add pref 1 iif v0 lookup local; ip rule add pref 2 iif v1 lookup local
ip rule add pref 8 oif v0 from 10.0.0.1 to 10.0.1.1 lookup 100
ip rule add pref 9 oif v1 from 10.0.1.1 to 10.0.0.1 lookup 101
ip rule add pref 10 iif lo from 10.0.0.1 to 10.0.1.1 lookup 100
ip rule add pref 11 iif lo from 10.0.1.1 to 10.0.0.1 lookup 101
ip route add 10.0.1.1 via 10.0.0.254 dev v0 table 100
ip route add 10.0.0.1 via 10.0.1.254 dev v1 table 101
ip rule add pref 100 lookup local; ip rule del pref 0
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1

link() { # delay loss rate
  local spec="delay $1 limit 200000"
  [[ ${2:-0%} == 0% ]] || spec+=" loss $2"
  [[ -z ${3:-} ]] || spec+=" rate $3"
  tc -n gwa qdisc change dev wa root netem $spec; tc -n gwb qdisc change dev wb root netem $spec
}

lan6() { # a site's number: the prefix of its LAN
  echo fd10:0000:000$1
}

gid6() { # a site's number: the index of its device's GID that is its IPv6 address
  local file; file=$(grep -lx $(lan6 $1):0000:0000:0000:0000:0001 /sys/class/infiniband/rxe$1/ports/1/gids/*) && basename $file
}

# As site() and what follows it, for IPv6. The rules have the numbers of those of IPv4.
ipv6() {
  local side ns other
  for side in 0 1; do
    [[ $side == 0 ]] && ns=gwa || ns=gwb
    other=$((1 - side))
    ip -n $ns addr add $(lan6 $side)::fe/64 dev g$side nodad
    ip addr add $(lan6 $side)::1/64 dev v$side nodad
    # The kernel's RDMA gives a neighbour a second to answer, which is short here, and asks from an address of the link's own, which there may not be.
    ip -6 neigh replace $(lan6 $side)::fe dev v$side lladdr $(ip netns exec $ns cat /sys/class/net/g$side/address) nud permanent
    ip -6 rule add pref $((1 + side)) iif v$side lookup local
    ip -6 rule add pref $((8 + side)) oif v$side from $(lan6 $side)::1 to $(lan6 $other)::1 lookup $((100 + side))
    ip -6 rule add pref $((10 + side)) iif lo from $(lan6 $side)::1 to $(lan6 $other)::1 lookup $((100 + side))
    ip -6 route add $(lan6 $other)::1 via $(lan6 $side)::fe dev v$side src $(lan6 $side)::1 table $((100 + side))
  done
  # A client that names no address of its own stands at rxe0.
  ip -6 rule add pref 12 iif lo from ::/128 to $(lan6 1)::1 lookup 100
  ip -6 rule add pref 100 lookup local; ip -6 rule del pref 0
  ip -n gwa addr add fd10:9::1/64 dev wa nodad; ip -n gwb addr add fd10:9::2/64 dev wb nodad
  for _ in {1..50}; do gid6 0 > /dev/null && gid6 1 > /dev/null && return; sleep 0.1; done
  echo "the devices have no GID of their IPv6 addresses"; return 1
}

lan_mtu() {
  ip link set v0 mtu $1; ip link set v1 mtu $1; ip -n gwa link set g0 mtu $1; ip -n gwb link set g1 mtu $1
}

plain() {
  local forward=0; [[ $1 == on ]] && forward=1
  ip netns exec gwa sysctl -qw net.ipv4.ip_forward=$forward net.ipv6.conf.all.forwarding=$forward
  ip netns exec gwb sysctl -qw net.ipv4.ip_forward=$forward net.ipv6.conf.all.forwarding=$forward
  if [[ $1 == on ]]; then
    ip -n gwa route replace 10.0.1.0/24 via 10.9.0.2; ip -n gwb route replace 10.0.0.0/24 via 10.9.0.1
    ip -n gwa -6 addr show dev wa | grep -q fd10:9 || return 0
    ip -n gwa route replace $(lan6 1)::/64 via fd10:9::2; ip -n gwb route replace $(lan6 0)::/64 via fd10:9::1
  else
    ip -n gwa route flush 10.0.1.0/24; ip -n gwb route flush 10.0.0.0/24
    ip -n gwa -6 route flush $(lan6 1)::/64; ip -n gwb -6 route flush $(lan6 0)::/64
  fi
}

# Otherwise each emulated CPU has a queue of its own for what the programs running on it have sent, and a kernel's RDMA user runs on both.
keep_order() {
  local all; all=$(printf '%x' $(((1 << $(nproc)) - 1)))
  echo $all | tee /sys/class/net/v0/queues/rx-0/rps_cpus > /sys/class/net/v1/queues/rx-0/rps_cpus
  ip netns exec gwa bash -c "echo $all | tee /sys/class/net/g0/queues/rx-0/rps_cpus > /sys/class/net/wa/queues/rx-0/rps_cpus"
  ip netns exec gwb bash -c "echo $all | tee /sys/class/net/g1/queues/rx-0/rps_cpus > /sys/class/net/wb/queues/rx-0/rps_cpus"
}

etc=/run/longhaul
gateway_file() { # site, its number, peer, the peer's number, WAN address, peer's WAN address
  local retention=
  [[ -z ${LAB_RETENTION:-} ]] || retention=$(printf '[retention]\ndirectory = "%s"\nsize = "16 MiB"' "$LAB_RETENTION")
  cat > $etc/$1.toml <<TOML
[site]
name = "$1"
[lan]
interface = "g$2"
mode = "packet"
remote = ["10.0.$4.0/24", "$(lan6 $4)::/64"]
multicast = ["$lab_group"]
[wan]
listen = "$5:14791"
mtu = ${LAB_WAN_MTU:-9000}
gso = false   # netem drops whole segmented batches otherwise
[peer]
name = "$3"
address = "$6:14791"
rate = "${LAB_RATE:-200 Mbit/s}"
resume_for = "${LAB_RESUME_FOR:-0 s}"   # what ends flows is tested here
[identity]
certificate = "$1.crt"
key = "$1.key"
authority = "ca.crt"
[admin]
listen = "127.0.0.1:9464"
socket = "$1.sock"
[limits]
idle_flow = "2 s"
$retention
[data_plane]
threads = ${LAB_THREADS:-1}
[policy]
file = "policy.toml"
TOML
}

start_gateway() { # a|b
  # Both hosts' NICs are kernel threads here and share two emulated CPUs with the gateways, which real NICs do not.
  # And an emulator shuffles bytes slowly, as the C library does to copy where it finds ssse3.
  GLIBC_TUNABLES=glibc.cpu.hwcaps=-SSSE3 ip netns exec gw$1 chrt --rr 10 "$longhaul" gateway --config $etc/$1.toml >> /run/gateway-$1.log 2>&1 &
  echo $! > /run/gateway-$1.pid
}

metrics() { # a|b; curl is not part of a minimal system, bash is
  ip netns exec gw$1 timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' 2> /dev/null
}
# The same, though the machine be so busy that the answer does not come in time at once.
patient_metrics() {
  local text
  for _ in {1..12}; do text=$(metrics $1) && [[ -n $text ]] && { echo "$text"; return; }; done
}

await_session() {
  for _ in {1..150}; do
    [[ $(metric a longhaul_session_up) == 1 && $(metric b longhaul_session_up) == 1 ]] && return 0
    sleep 0.1
  done
  echo "no session after 15 s"; for side in a b; do tail -n 5 /run/gateway-$side.log; done; return 1
}

gateways() { # scheme [k m]
  mkdir -p $etc
  [[ -e $etc/b.crt ]] || "$longhaul" keys --dir $etc a b > /dev/null || return 1
  local wan=(10.9.0.1 10.9.0.2); [[ -z ${LAB_WAN_IPV6:-} ]] || wan=("[fd10:9::1]" "[fd10:9::2]")
  gateway_file a 0 b 1 "${wan[0]}" "${wan[1]}"; gateway_file b 1 a 0 "${wan[1]}" "${wan[0]}"
  { echo '[[class]]'; echo 'name = "default"'; echo "scheme = \"$1\""
    [[ -z ${2:-} ]] || { echo "k = $2"; echo "m = $3"; }
    [[ -z ${LAB_COMPLETION:-} ]] || echo "completion = \"$LAB_COMPLETION\""; } > $etc/policy.toml
  completion_told=${LAB_COMPLETION:-}
  start_gateway a; start_gateway b; await_session
}

stop_gateways() {
  local side pid status=0
  for side in a b; do
    [[ -e /run/gateway-$side.pid ]] || continue
    kill -TERM "$(cat /run/gateway-$side.pid)" 2>/dev/null
  done
  for side in a b; do
    [[ -e /run/gateway-$side.pid ]] || continue
    pid=$(cat /run/gateway-$side.pid); rm -f /run/gateway-$side.pid
    wait "$pid" || { status=$?; echo "gateway $side ended with $status"; tail -n 5 /run/gateway-$side.log; }
  done
  return $status
}

. /mnt/listening.sh
. /mnt/metrics.sh

# The programs poll for completions without pause. They get what processor time is left, or they would take it from their own NICs, which are threads.
pair() { watched "$1" both_ends "$@"; }
both_ends() {
  nice -n 19 timeout ${LAB_TIMEOUT:-60} "$@" -d rxe1 -x 1 -F > /run/server.log 2>&1 & local server=$! status
  listening 18515 || sleep 1
  nice -n 19 timeout ${LAB_TIMEOUT:-60} "$@" -d rxe0 -x 1 -F 10.0.1.1; status=$?
  # The server ends by itself after a good run; its verdict counts as well.
  if (( status != 0 )); then kill $server 2>/dev/null; wait $server 2>/dev/null; return $status; fi
  wait $server
}

rping_pair() { watched rping both_rpings "$@"; } # arguments for both
both_rpings() {
  timeout ${LAB_TIMEOUT:-60} rping -s -a 10.0.1.1 "$@" > /run/server.log 2>&1 & local server=$! status
  sleep 1 # its port is rdma_cm's and shows nowhere
  timeout ${LAB_TIMEOUT:-60} rping -c -a 10.0.1.1 -I 10.0.0.1 "$@"; status=$?
  if (( status != 0 )); then kill $server 2>/dev/null; wait $server 2>/dev/null; return $status; fi
  wait $server
}

counters() { for f in /sys/class/infiniband/$1/ports/1/hw_counters/*; do echo "$(basename $f)=$(cat $f)"; done | tr '\n' ' '; echo; }

. /mnt/judged.sh
