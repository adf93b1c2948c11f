# wire.sh - captures what leaves the gateways on both LANs while every kind of operation runs over 3 % loss, for icrc.py to check:
# v0-SCHEME.pcap (what reaches the requesters' host) and v1-SCHEME.pcap (the targets') beside this script.
#
#   LAB_SCHEMES  "sr mds:32:8"
. /mnt/two-sites.sh
failures=0

capture() { # interface, file
  tcpdump -qni $1 -Q in -w /run/$2 -B 65536 'udp port 4791 or icmp' 2> /run/tcpdump-$1.log & captures+=($!)
  for _ in {1..50}; do grep -q 'listening on' /run/tcpdump-$1.log && return 0; sleep 0.1; done
  echo "FAILED: no capture on $1"; cat /run/tcpdump-$1.log; failures=$((failures + 1))
}

expect() { # PROGRAM ARGS...; rping at times ends with 255 for having closed its event channel under its own thread: once more, and said so
  local status
  "$@" > /run/client.log 2>&1 && return; status=$?
  echo "again (ended with $status): $*"; tail -n 2 /run/client.log; sleep 1
  "$@" > /run/client.log 2>&1 || { echo "FAILED ($?): $*"; tail -n 3 /run/client.log /run/server.log; failures=$((failures + 1)); }
}

for scheme in ${LAB_SCHEMES:-sr mds:32:8}; do
  plain off; lan_mtu 4200; link 10ms 3% 200mbit
  gateways ${scheme//:/ } || exit 1
  captures=()
  for side in 0 1; do capture v$side v$side-${scheme%%:*}.pcap; done
  for mtu in 4200 1500; do
    lan_mtu $mtu; path=$((mtu == 4200 ? 4096 : 1024))
    expect pair ib_write_bw -s 65536 -q 2 -n 5 -b -m $path
    expect pair ib_send_bw -s 65537 -q 2 -n 5 -b -m $path
    expect pair ib_read_bw -s 65536 -q 2 -n 5 -m $path
    expect pair ib_atomic_bw -A FETCH_AND_ADD -n 20 -m $path
    expect rping_pair -V -C 3 -S 3001
  done
  for side in a b; do empty $side || failures=$((failures + 1)); done
  sleep 0.5; kill "${captures[@]}"; wait "${captures[@]}"
  cp /run/v[01]-${scheme%%:*}.pcap /mnt/
  for side in 0 1; do echo "$scheme, tcpdump on v$side: $(tail -n 1 /run/tcpdump-v$side.log)"; done
  # Once is enough: the same gateways, whatever carries the packets.
  [[ $scheme != sr ]] || . /mnt/device.sh
  stop_gateways || failures=$((failures + 1))
done
echo "$failures failures"
(( failures == 0 ))
