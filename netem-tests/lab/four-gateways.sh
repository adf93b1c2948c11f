# four-gateways.sh - source it inside the lab machine. Two sites of two gateways, each with a router under FRR, and an RDMA host at each end:
#
#   rxe0 on v0 10.0.0.10 --+                        +-- a1 10.9.0.1 --+                +-- b1 10.9.1.1 --+
#                          +-- [ra] LAN 10.0.0.0/24-+                 +-- tc netem  ---+                 +-- LAN 10.0.1.0/24 [rb] -- v1 10.0.1.10 on rxe1
#            router 10.0.0.1 --+                    +-- a2 10.9.0.2 --+                +-- b2 10.9.1.2 --+
#
# Gateways, routers and the network between the sites are name spaces. In each gateway's, `lan` is 10.0.SITE.254 or .253, and `wan` is above.
# A host's only way to the other site is its router, which learns the prefix by BGP, from those gateways that longhaul-routes finds healthy.
# The configurations are those of packaging/frr: router.conf with a line for the second gateway, gateway.conf with each one's addresses.
#
#   sites                     makes all of this, but for the gateways
#   link 10ms 1% 20mbit       sets delay, loss and rate of the long link, each way
#   four_gateways             starts them, and longhaul-routes beside each; waits until all sessions are up, and both routers have two ways
#   start_gateway a1, start_routes a1
#   speaker a                 the gateway of that site that speaks for the hosts
#   befall KIND a1            does one of what members.sh names to that gateway's machine; undo KIND a1 takes it back
#
# With LAB_SOFT it runs outside of the lab machine, in any name space of root's: the hosts are name spaces `hosta` and `hostb` for others to put software in, with the
# addresses .10 to .15, and whoever wants a long link bridges `la` and `lb` of the name space `net`. LAB_LOGS is the folder of all logs.
#   metric a1 NAME            the sum of a metric's series
longhaul=${LAB_LONGHAUL:?the longhaul binary} frr=${LAB_TREE:?the source tree}/packaging/frr
host_a=10.0.0.10 host_b=10.0.1.10
# LAB_TWO: the sites that have two gateways each; another one has its first only, to which a route leads by hand.
two=${LAB_TWO:-a b} members=()
for each in a b; do members+=(${each}1); [[ " $two " != *" $each "* ]] || members+=(${each}2); done
etc=/run/longhaul
logs=${LAB_LOGS:-/mnt}
. ${LAB_SCRIPTS:-/mnt}/listening.sh
. ${LAB_SCRIPTS:-/mnt}/metrics.sh

place() { # a1...: sets what the gateway's name says: its site's number and the other one's, its own number, its address on the LAN and on the WAN
  case $1 in a*) site=0 ;; *) site=1 ;; esac
  other=$((1 - site)) nth=${1:1} lan=10.0.$site.$((255 - ${1:1})) wan=10.9.$site.${1:1}
}

namespace() { ip netns add $1; ip -n $1 link set lo up; ip netns exec $1 sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0; }

router() { # name, site's number
  namespace $1
  ip -n $1 link add lan type bridge; ip -n $1 addr add 10.0.$2.1/24 dev lan
  ip link add v$2 mtu 4200 type veth peer name host mtu 4200 netns $1
  ip -n $1 link set host master lan up; ip -n $1 link set lan up
  if [[ -n ${LAB_SOFT:-} ]]; then soft_host host${1:1} $2; else
    ip addr add 10.0.$2.10/24 dev v$2; ip link set v$2 up
    sysctl -qw net.ipv4.conf.v$2.accept_local=1 net.ipv4.conf.v$2.rp_filter=0
  fi
  # Hosts are led by their router, though the gateways are on their segment.
  ip netns exec $1 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.lan.send_redirects=0 net.ipv4.fib_multipath_hash_policy=0
}

soft_host() { # name, its site's number
  local last
  namespace $1
  ip link set v$2 netns $1
  for last in 10 11 12 13 14 15; do ip -n $1 addr add 10.0.$2.$last/24 dev v$2; done
  ip -n $1 link set v$2 up; ip -n $1 route add default via 10.0.$2.1
}

machine() { # a1...: a gateway's, with its ports at the router and in the network between the sites
  local site other nth lan wan; place $1
  namespace $1
  ip link add lan mtu 4200 netns $1 type veth peer name $1 mtu 4200 netns r${1:0:1}
  ip link add wan mtu 9000 netns $1 type veth peer name $1 mtu 9000 netns net
  plug $1 lan; plug $1 wan
  ip -n $1 addr add $lan/24 dev lan; ip -n $1 addr add $wan/16 dev wan
  ip -n $1 link set lan up; ip -n $1 link set wan up
  ip netns exec $1 sysctl -qw net.ipv4.ip_forward=0
}

# A machine that is cut off: its ports pass nothing, and its own interfaces do not notice.
plug() { # a1..., lan|wan
  case $2 in
    lan) ip -n r${1:0:1} link set $1 master lan up ;;
    wan) ip -n net link set $1 master edge-${1:0:1} up ;;
  esac
}
unplug() {
  case $2 in
    lan) ip -n r${1:0:1} link set $1 nomaster ;;
    wan) ip -n net link set $1 nomaster ;;
  esac
}

# As in two-sites.sh, both hosts live in the first name space, so policy routing sends what rxe0 says to rxe1 out through v0.
hosts() {
  local site other
  ip rule add pref 1 iif v0 lookup local; ip rule add pref 2 iif v1 lookup local
  for site in 0 1; do
    other=$((1 - site))
    ip rule add pref $((8 + site)) oif v$site from 10.0.$site.10 to 10.0.$other.10 lookup $((100 + site))
    ip rule add pref $((10 + site)) iif lo from 10.0.$site.10 to 10.0.$other.10 lookup $((100 + site))
    ip route add 10.0.$other.10 via 10.0.$site.1 dev v$site table $((100 + site))
  done
  ip rule add pref 100 lookup local; ip rule del pref 0
  rdma link add rxe0 type rxe netdev v0
  rdma link add rxe1 type rxe netdev v1
}

link() { # delay loss rate
  local spec="delay $1 limit 200000" end
  [[ ${2:-0%} == 0% ]] || spec+=" loss $2"
  [[ -z ${3:-} ]] || spec+=" rate $3"
  for end in la lb; do tc -n net qdisc replace dev $end root netem $spec; done
}

long_link() {
  local side
  if [[ -z ${LAB_SOFT:-} ]]; then
    ip link add la mtu 9000 netns net type veth peer name lb mtu 9000 netns net
    ip -n net link set la master edge-a up; ip -n net link set lb master edge-b up
    return
  fi
  for side in a b; do
    ip link add l$side mtu 9000 netns net type veth peer name port-$side mtu 9000 netns net
    ip -n net link set port-$side master edge-$side up; ip -n net link set l$side up
  done
}

sites() {
  local name
  sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.rmem_max=67108864 net.core.wmem_max=67108864 net.core.netdev_max_backlog=30000
  router ra 0; router rb 1
  namespace net
  for name in edge-a edge-b; do ip -n net link add $name type bridge && ip -n net link set $name up || return 1; done
  long_link
  for name in "${members[@]}"; do machine $name; done
  [[ -n ${LAB_SOFT:-} ]] || { hosts; link 0ms; }
  local starts=() each
  for name in a b; do
    if [[ " $two " != *" $name "* ]]; then lead_by_hand $name; continue; fi
    start_frr r$name "$(router_conf $name)" & starts+=($!)
    start_frr ${name}1 "$(gateway_conf ${name}1)" & starts+=($!)
    start_frr ${name}2 "$(gateway_conf ${name}2)" & starts+=($!)
  done
  for each in "${starts[@]}"; do wait $each || return 1; done
}

lead_by_hand() { # a|b
  local site other nth lan wan; place ${1}1
  ip -n r$1 route add 10.0.$other.0/24 via $lan
}

# The files of packaging/frr, of site a. At site b the prefixes change places.
for_site() { case $1 in a) cat ;; b) sed 's/10\.0\.1\./10.0.X./g; s/10\.0\.0\./10.0.1./g; s/10\.0\.X\./10.0.0./g' ;; esac; }
router_conf() { sed 's/^ *neighbor 10.0.0.254 peer-group LONGHAUL/&\n neighbor 10.0.0.253 peer-group LONGHAUL/' $frr/router.conf | for_site $1; }
gateway_conf() { sed "s/gateway-a1/gateway-$1/; s/10\.0\.0\.254/10.0.0.$((255 - ${1:1}))/" $frr/gateway.conf | for_site ${1:0:1}; }

start_frr() { # name space, configuration
  local daemon first
  install -d -o frr -g frr /var/run/frr/$1 /etc/frr/$1
  : > /etc/frr/$1/vtysh.conf
  echo "$2" > /run/$1.conf
  # Emulated processors are slow, and hellos of BFD that are 150 ms late end a way. Of what follows from that, BGP has so much to do that it must not come before them.
  for daemon in zebra bfdd bgpd; do
    first=(chrt --other 0 nice -n -10); [[ $daemon != bfdd ]] || first=(chrt --rr 14)
    "${first[@]}" ip netns exec $1 /usr/lib/frr/$daemon -d -N $1 -f /dev/null --log file:$logs/frr-$1.log > /dev/null 2>&1 || { echo "$daemon of $1 does not start"; return 1; }
  done
  for _ in {1..50}; do vtysh -N $1 -f /run/$1.conf > /run/vtysh-$1.log 2>&1 && return; sleep 0.5; done
  echo "vtysh refuses the configuration of $1"; cat /run/vtysh-$1.log; return 1
}

gateway_file() { # a1...
  local site other nth lan wan each; place $1
  printf '[site]\nname = "%s"\n' $1
  if [[ " ${members[*]} " == *" ${1:0:1}2 "* ]]; then
    printf 'gateways = [{ name = "%s1", address = "10.9.%s.1:14791" }, { name = "%s2", address = "10.9.%s.2:14791" }]\n' ${1:0:1} $site ${1:0:1} $site
  fi
  cat <<TOML
[lan]
interface = "lan"
mode = "packet"
[wan]
listen = "$wan:14791"
mtu = ${LAB_WAN_MTU:-9000}
gso = false   # netem drops whole segmented batches otherwise
TOML
  for each in "${members[@]}"; do
    [[ ${each:0:1} != "${1:0:1}" ]] || continue
    printf '[[peer]]\nname = "%s"\naddress = "10.9.%s.%s:14791"\nrate = "%s"\nremote = ["10.0.%s.0/24"]\nresume_for = "2 min"\n' $each $other ${each:1} "${LAB_RATE:-20 Mbit/s}" $other
    [[ " ${members[*]} " != *" ${each:0:1}2 "* ]] || echo "site = \"${each:0:1}\""
  done
  cat <<TOML
[identity]
certificate = "$1.crt"
key = "$1.key"
authority = "ca.crt"
[admin]
listen = "127.0.0.1:9464"
[limits]
idle_flow = "2 s"
withdraw = "3 s"
total_buffer = "64 MiB"
[policy]
file = "policy.toml"
TOML
}

start_gateway() { # a1...
  GLIBC_TUNABLES=glibc.cpu.hwcaps=-SSSE3 ip netns exec $1 chrt --rr 10 "$longhaul" gateway --config $etc/$1.toml >> $logs/gateway-$1.log 2>&1 &
  echo $! > /run/gateway-$1.pid
}

start_routes() { # a1...
  local site other nth lan wan; place $1
  LONGHAUL="$longhaul" VTYSH="vtysh -N $1" ip netns exec $1 chrt --rr 8 $frr/longhaul-routes 10.0.$other.0/24 > $logs/routes-$1.log 2>&1 &
  echo $! > /run/routes-$1.pid
}

metrics() { # a1...
  ip netns exec $1 timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' 2> /dev/null
}

# By its log: a page of metrics takes an emulated processor long. No gateway of a site speaks while hosts wait for one.
speaker() { # a|b
  local name pairs
  for _ in {1..100}; do
    for name in "${members[@]}"; do
      [[ $name == $1* ]] || continue
      pairs=$(grep -oE 'pairs=[0-9]+' $logs/gateway-$name.log | tail -n 1 | tr -dc 0-9)
      (( ${pairs:-0} > 0 )) && { echo $name; return; }
    done
    sleep 0.2
  done
  return 1
}

# Each has a session with each other one: the last that its log says of each peer is so.
sessions() { # a1...
  awk '/session up peer=/ { up = 1 } /session lost/ { up = -1 } up { match($0, /peer=[ab][12]/); state[substr($0, RSTART, RLENGTH)] = up; up = 0 }
    END { for (peer in state) if (state[peer] > 0) number++; print number + 0 }' $logs/gateway-$1.log
}
all_sessions() {
  local name
  for _ in {1..300}; do
    for name in "${members[@]}"; do [[ $(sessions $name) == $((${#members[@]} - 1)) ]] || { sleep 0.2; continue 2; }; done
    return 0
  done
  echo "not all sessions are up after a minute"; for name in "${members[@]}"; do echo "$name: $(sessions $name)"; done; return 1
}

ways() { ip -n r$1 route show proto bgp | grep -oE 'via [0-9.]+' | sort | tr '\n' ' '; }
all_ways() {
  local name
  for _ in {1..300}; do
    for name in $two; do [[ $(ways $name | wc -w) == 4 ]] || { sleep 0.2; continue 2; }; done
    return 0
  done
  echo "the routers do not have two ways each after a minute: $(ways a)/ $(ways b)"; return 1
}

four_gateways() {
  local name
  mkdir -p $etc
  "$longhaul" keys --dir $etc "${members[@]}" > /dev/null || return 1
  printf '[[class]]\nname = "default"\nscheme = "%s"\ncompletion = "remote"\nsurvive = "%s"\n' ${LAB_SCHEME:-sr} ${LAB_SURVIVE:-gateway} > $etc/policy.toml
  for name in "${members[@]}"; do gateway_file $name > $etc/$name.toml; start_gateway $name; done
  all_sessions || return 1
  for name in "${members[@]}"; do [[ " $two " != *" ${name:0:1} "* ]] || start_routes $name; done
  all_ways
}

befall() { # kind, gateway
  case $1 in
    lan | wan) ip -n $2 link set $1 down ;;
    kill) kill -9 "$(cat /run/gateway-$2.pid)" ;;
    cut) unplug $2 lan; unplug $2 wan ;;
    stop) kill -TERM "$(cat /run/gateway-$2.pid)" ;;
  esac
}

# Not by `wait`: gateway/tests/frr.rs calls each function in a shell of its own. Where init does not reap, a zombie is left of what another shell started.
await_end() { # process, seconds
  local nth
  for (( nth = 0; nth < $2 * 5; nth++ )); do
    kill -0 $1 2> /dev/null && ! grep -qs '^State:.Z' /proc/$1/status || return 0
    sleep 0.2
  done
  echo "process $1 has not ended after $2 s"; return 1
}

# A stop takes up to limits.withdraw and limits.drain, 8 s here.
undo() { # kind, gateway
  case $1 in
    lan | wan) ip -n $2 link set $1 up ;;
    kill | stop) await_end "$(cat /run/gateway-$2.pid)" 30 && start_gateway $2 ;;
    cut) plug $2 lan; plug $2 wan ;;
  esac
}
