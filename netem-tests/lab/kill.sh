# kill.sh - kill -9 either gateway in mid-transfer and start it again. Programs go on and end well, whatever their messages' length: what was
# acknowledged in the midst of one stands in memory that outlives the process. With no time to resume, all end with an error at both ends within
# a bound. New programs work, and both gateways end empty.
#
#   LAB_SCHEMES  "sr"
#   LAB_KILLED   "write send read"   under which programs
#   LAB_BOUND    45       seconds from the kill until both programs must have ended if they end with an error: Soft-RoCE tries for ever, so
#                         silence ends it after 30
#   LAB_WAITS    "0 60"   seconds that flows wait for the gateway (peer.resume_for)
LAB_RATE=${LAB_RATE:-20 Mbit/s} # little enough for two emulated processors to do everything in time
. /mnt/two-sites.sh
# The layer over the root file system is no tmpfs.
mkdir -p /run/retained && mount -t tmpfs retained /run/retained
export LAB_RETENTION=/run/retained
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

# Starts programs, and kills a gateway under them. A gateway writes down what it would tell a restarted peer about ten times a second.
kill_under() { # a|b, PROGRAM ARGS...
  local side=$1 pid; shift
  start_programs "$@"
  if ! await_traffic; then fail "$*: no traffic before the kill"; kill $server $client 2> /dev/null; wait $server $client; return 1; fi
  sleep 0.5
  running $server && running $client || { fail "$*: over before the kill"; wait $server $client; return 1; }
  pid=$(cat /run/gateway-$side.pid)
  kill -9 "$pid"; began=$SECONDS; wait "$pid" 2> /dev/null
  sleep 1; start_gateway $side
}

# Waits for both programs, for so long; told: the status of each, or "running".
await_end() { # SECONDS
  local name pid status
  while (running $server || running $client) && (( SECONDS - began < $1 )); do sleep 0.2; done
  took=$((SECONDS - began)) told=()
  for name in server client; do
    pid=${!name}
    if running $pid; then told+=(running); kill -9 $pid; wait $pid; continue; fi
    wait $pid; status=$?; told+=($status)
  done
}

work_anew() { # a|b
  await_session || fail "no session after the restart of gateway $1"
  pair ib_write_bw -s 65536 -q 2 -n 5 > /run/after.log 2>&1 || fail "new flows after the restart of gateway $1 ended with $?"
}

ended() { # a|b, PROGRAM ARGS...
  local side=$1 began took told before=$failures; shift
  kill_under $side "$@" || return
  await_end $bound
  [[ ${told[*]} != *running* ]] || fail "gateway $side killed: '$*' still runs after $bound s: ${told[*]}"
  [[ " ${told[*]} " != *" 0 "* ]] || fail "gateway $side killed: '$*' ended well, which it cannot have: ${told[*]}"
  work_anew $side
  (( failures > before )) || echo "gateway $side killed under '$*': both programs ended with an error within $took s, new flows work"
}

gone_on() { # a|b, PROGRAM ARGS...
  local side=$1 began took told before=$failures; shift
  kill_under $side "$@" || return
  await_end 300
  [[ ${told[*]} == "0 0" ]] || fail "gateway $side killed: '$*' did not go on: ${told[*]}"
  work_anew $side
  (( failures > before )) || echo "gateway $side killed under '$*': both programs went on, and ended well $took s later; new flows work"
}

# Of messages of 64 KiB more than they can move in the time they have.
kill_both() {
  local side operation rest
  for side in a b; do
    for operation in ${LAB_KILLED:-write send read}; do
      rest=(-q 2); [[ $operation != write ]] || rest=(-q 4 -b)
      if [[ $LAB_RESUME_FOR == "0 s" ]]; then
        watched killed-$side ended $side ib_${operation}_bw -s 65536 "${rest[@]}" -n 20000
        continue
      fi
      watched outlived-$side gone_on $side ib_${operation}_bw -s 1024 "${rest[@]}" -n 8000
      [[ $operation == read ]] || watched long-$side gone_on $side ib_${operation}_bw -s 65536 "${rest[@]}" -n 100
    done
  done
}

for scheme in ${LAB_SCHEMES:-sr}; do
  for waits in ${LAB_WAITS:-0 60}; do
    export LAB_RESUME_FOR="$waits s"
    plain off; lan_mtu 4200; link 10ms 1% 20mbit
    gateways ${scheme//:/ } || exit 1
    kill_both
    for side in a b; do empty $side || failures=$((failures + 1)); done
    stop_gateways || failures=$((failures + 1))
  done
done
echo "$failures failures"
(( failures == 0 ))
