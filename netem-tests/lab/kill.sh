# kill.sh - kill -9 either gateway in mid-transfer and start it again: the programs on both sides end with an error within a bound, new ones
# work, and both gateways end empty.
#
#   LAB_SCHEMES  "sr"
#   LAB_KILLED   "write send read"   under which programs
#   LAB_BOUND    45       seconds from the kill until both programs must have ended: Soft-RoCE tries for ever, so silence ends it after 30
LAB_RATE=${LAB_RATE:-20 Mbit/s} # little enough for two emulated processors to do everything in time
. /mnt/two-sites.sh
bound=${LAB_BOUND:-45}
failures=0

fail() {
  local site
  echo "FAILED: $*"; failures=$((failures + 1))
  for site in a b; do tail -n 3 /run/gateway-$site.log | sed "s/^/  gateway-$site: /"; done
  tail -n 3 /run/client.log /run/server.log
}

running() { kill -0 "$1" 2> /dev/null; }

# Both ends run until stopped, both have work requests outstanding whatever the direction.
start_programs() { # PROGRAM ARGS...
  "$@" -d rxe1 -x 1 -F > /run/server.log 2>&1 & server=$!
  listening 18515 || sleep 1
  "$@" -d rxe0 -x 1 -F 10.0.1.1 > /run/client.log 2>&1 & client=$!
}

# Not by /metrics: programs that run at full speed leave this machine little time for it.
moved() { cat /sys/class/infiniband/rxe1/ports/1/hw_counters/rcvd_pkts; }

await_traffic() {
  local before; before=$(moved)
  for _ in {1..100}; do
    (( $(moved) > before + 200 )) && return 0
    sleep 0.1
  done
  return 1
}

killed() { # a|b, PROGRAM ARGS...
  local side=$1 pid began took name status before=$failures; shift
  start_programs "$@"
  if ! await_traffic; then fail "$*: no traffic before the kill"; kill $server $client 2> /dev/null; wait $server $client; return; fi
  pid=$(cat /run/gateway-$side.pid)
  kill -9 "$pid"; began=$SECONDS; wait "$pid" 2> /dev/null
  sleep 1; start_gateway $side
  while (running $server || running $client) && (( SECONDS - began < bound )); do sleep 0.2; done
  took=$((SECONDS - began))
  for name in server client; do
    pid=${!name}
    if running $pid; then fail "gateway $side killed: the $name of '$*' still runs after $bound s"; kill -9 $pid; fi
    wait $pid; status=$?
    (( status != 0 )) || fail "gateway $side killed: the $name of '$*' ended well, which it cannot have"
  done
  await_session || fail "no session after the restart of gateway $side"
  pair ib_write_bw -s 65536 -q 2 -n 5 > /run/after.log 2>&1 || fail "new flows after the restart of gateway $side ended with $?"
  (( failures > before )) || echo "gateway $side killed under '$*': both programs ended with an error within $took s, new flows work"
}

for scheme in ${LAB_SCHEMES:-sr}; do
  plain off; lan_mtu 4200; link 10ms 1% 20mbit
  gateways ${scheme//:/ } || exit 1
  for side in a b; do
    # More than they can move in the time they have.
    for operation in ${LAB_KILLED:-write send read}; do
      rest=(-q 2); [[ $operation != write ]] || rest=(-q 4 -b)
      watched killed-$side killed $side ib_${operation}_bw -s 65536 "${rest[@]}" -n 20000
    done
  done
  for side in a b; do empty $side || failures=$((failures + 1)); done
  stop_gateways || failures=$((failures + 1))
done
echo "$failures failures"
(( failures == 0 ))
