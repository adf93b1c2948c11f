# device.sh - an RDMA device of a gateway's own on its LAN interface, as a NIC has whose RoCE is on: `check --live`, the log, an event, the
# metric and `status` name it, with the remedy. Once it is deleted, `check --live`, the metric and `status` say nothing of it. Part of wire.sh; by
# itself: boot.sh device.sh
#
# A second gateway stands in the first name space, on a host's own interface. The device there takes what the host's programs are sent, and the
# gateway says how much. In other name spaces the kernel shows no counters of devices.
[[ $0 == */wire.sh ]] || { . /mnt/two-sites.sh; failures=0; lan_mtu 4200; plain off; link 1ms 0% 200mbit; gateways sr || exit 1; }
device_failures=0
device_failed() {
  echo "FAILED: RDMA device: $*"; device_failures=$((device_failures + 1))
  tail -n 3 /run/gateway-a.log /run/gateway-c.log 2> /dev/null
}

asked() { # a|c, COMMAND ARGS...
  local way=(); [[ $1 == c ]] || way=(ip netns exec gw$1)
  "${way[@]}" "$longhaul" "${@:2}"
}
# Whether check --live of a site's file, which has no error, names this device and its remedy.
checked() { # a|c, DEVICE on INTERFACE
  asked $1 check --live --json $etc/$1.toml > /run/checked 2>&1 || { cat /run/checked; device_failed "check --live of $1 ended with $?"; }
  grep -q "\"message\": \"the RDMA device $2 may take RoCE packets before the gateway sees them\"" /run/checked || return 1
  grep -q "\"help\": \"\`rdma link delete ${2% on *}\`\"" /run/checked || { cat /run/checked; device_failed "check --live of $1 has no remedy"; }
}
told() { # a|c, TEXT: waits for such an event, and looks for the same line in the log
  local waited
  for ((waited = 0; ; waited++)); do
    asked $1 events --kind lan_mistake --admin $etc/$1.sock > /run/events 2>&1 && grep -q "$2" /run/events && break
    (( waited < 60 )) || { cat /run/events; device_failed "$1 has no event '$2'"; return; }
    sleep 0.5
  done
  grep -q "WARN.*$2" /run/gateway-$1.log || device_failed "$1 has no line '$2' in its log"
}
shows() { # a|c, KEY of status, EXPRESSION about v: waits until its value is as wanted
  local value waited
  for ((waited = 0; waited < 60; waited++)); do
    value=$(asked $1 status --json --admin $etc/$1.sock | sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p")
    [[ -n $value ]] && (( ${3//v/$value} )) && return
    sleep 0.5
  done
  device_failed "$2 of $1 is '$value', not $3"
}

own_device() {
  local remedy='may take RoCE packets before the gateway sees them: `rdma link delete own`'
  ! checked a 'own on g0' || device_failed "check --live names a device that there is not"
  shows a rdma_devices 'v == 0'
  ip netns exec gwa rdma link add own type rxe netdev g0 || { device_failed "no device on g0"; return; }
  checked a 'own on g0' || { cat /run/checked; device_failed "check --live does not name the device"; }
  told a "the RDMA device own on g0 $remedy"
  shows a rdma_devices 'v == 1'
  [[ $(metric a longhaul_lan_rdma_devices) == 1 ]] || device_failed "the metric does not count the device"
  asked a status --admin $etc/a.sock | grep '^mistake  1 RDMA devices' || device_failed "status says nothing"
  pair ib_write_bw -s 65536 -q 2 -n 5 > /run/program.log 2>&1 || device_failed "a program ended with $?"
  rdma link delete own || device_failed "the device stays"
  ! checked a 'own on g0' || device_failed "check --live names a device that is gone"
  shows a rdma_devices 'v == 0'
  ! asked a status --admin $etc/a.sock | grep '^mistake' || device_failed "status tells of a device that is gone"
}

# rxe0 has taken packets before this gateway starts, which are not counted.
taken_packets() {
  "$longhaul" keys --dir $etc c > /dev/null || { device_failed "no key"; return; }
  sed -e 's/^name = "a"/name = "c"/; s/"g0"/"v0"/; s/^remote = .*/remote = ["10.7.0.0\/24"]/; s/"a\./"c./; s/:9464/:9465/' \
    -e 's/^listen = "10.*/listen = "127.0.0.1:15791"/; s/^address = .*/address = "127.0.0.2:15791"/' $etc/a.toml > $etc/c.toml
  "$longhaul" gateway --config $etc/c.toml > /run/gateway-c.log 2>&1 & local pid=$!
  told c 'the RDMA device rxe0 on v0 may take RoCE packets before the gateway sees them: `rdma link delete rxe0`'
  checked c 'rxe0 on v0' || { cat /run/checked; device_failed "check --live does not name rxe0"; }
  shows c rdma_packets 'v == 0'
  pair ib_write_bw -s 65536 -q 2 -n 5 > /run/program.log 2>&1 || device_failed "a program ended with $?"
  told c 'rxe0 on v0 has just taken [0-9]* RoCE packets, which the gateway did not see: `rdma link delete rxe0`'
  shows c rdma_packets 'v > 0'
  grep 'RDMA device' /run/gateway-c.log
  kill -TERM $pid; wait $pid || device_failed "gateway c ended with $?"
}

own_device
taken_packets
echo "RDMA devices on gateways' LAN interfaces: $device_failures failures"
failures=$((failures + device_failures))
[[ $0 == */wire.sh ]] || { stop_gateways || failures=$((failures + 1)); (( failures == 0 )); }
