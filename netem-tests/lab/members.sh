# members.sh - two gateways for each site under FRR (four-gateways.sh), programs that run throughout, and what befalls the gateway that speaks for them:
# no program sees an error. Prints the longest stall of each.
#
#   LAB_DEEDS     lan, kill and cut at each site of LAB_TWO   done to the gateway of that site that speaks for the hosts
#                     lan:SITE    its LAN interface goes down
#                     wan:SITE    its WAN interface does
#                     kill:SITE   its process is killed
#                     cut:SITE    its machine is cut off: nothing passes its ports, and it does not notice
#                     stop:SITE   it is told to stop
#   LAB_FOR       15      seconds until that is taken back
#   LAB_REST      12      seconds that follow
#   LAB_PROGRAMS  "write send read bw rping"   those of throughout.sh
#   LAB_TIMEOUT   21      a try of a queue pair takes 4.096 us x 2^this, where a program can be told, and of READs twice as long; rdma_cm has its own
#   LAB_DELAY, LAB_LOSS, LAB_SURVIVE   10ms, 1%, gateway
#   LAB_TWO       "a b"   the sites that have two gateways. Both are more than two emulated processors can do: their members flap. gateway/tests/frr.rs has both.
#   LAB_TOP       set: what takes the processors' time goes to top.txt
#
# A row of the table: the deed and the gateway that it was done to; for each program the longest time without a completion after the deed, and after it was taken back.
# Exit status 0: all programs went on through all deeds, all data were right, and the gateways end empty.
LAB_RATE=${LAB_RATE:-10 Mbit/s} # little enough for two emulated processors to do everything in time
. /mnt/four-gateways.sh
. /mnt/modules.sh
patience=${LAB_TIMEOUT:-21} delay=${LAB_DELAY:-10ms} loss=${LAB_LOSS:-1%}
programs=${LAB_PROGRAMS:-write send read bw rping}
state=/run/members failures=0
. /mnt/throughout.sh

# What happens when goes to a file that outlives the machine.
note() { echo "$(date +%T.%3N) $*" >> /mnt/events.log; }
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

row() { # deed, gateway
  local name cells=()
  for name in $programs; do
    case $name in
      write | send | read | mpi)
        runs $name && cells+=("$name $(stall $name "$1") s, $(stall $name "$1 back") s") || { cells+=("$name ENDED"); failures=$((failures + 1)); } ;;
      *) runs $name && cells+=("$name goes on") || { cells+=("$name ENDED"); failures=$((failures + 1)); } ;;
    esac
  done
  printf '%-7s %s' $1 $2; printf ' | %s' "${cells[@]}"; echo
}

begin_anew() {
  local name
  for name in $programs; do
    runs $name && continue
    wait ${pids[$name]}; echo "    $name ended with $?: $(tail -q -n 2 $state/$name*.log | tr '\n' ' ')"
    end $name; begin $name; sleep 2
  done
}

one_deed() { # deed
  local kind=${1%:*} at=${1#*:} name
  name=$(speaker $at) || { fail "no gateway of site $at speaks"; return; }
  note "$1: $name, ways $(ways a)/ $(ways b)"
  deed $1
  befall $kind $name
  sleep ${LAB_FOR:-15}
  note "$1: back, ways $(ways a)/ $(ways b), $(speaker $at) speaks"
  deed $1 back
  undo $kind $name || fail "$1: gateway $name is not back"
  sleep ${LAB_REST:-12}
  note "$1: settled"
  all_sessions && all_ways || fail "$1: not all is as before"
  note "$1: all sessions and ways"
  deed after $1
  row $1 $name
  begin_anew
}

at_the_end() {
  local name
  rm $state/go
  for name in $programs; do
    case $name in
      write | send | read) wait ${pids[$name]} || fail "$name"; tail -n 1 $state/$name.log ;;
      mpi) wait ${pids[mpi]}; tail -n 1 $state/mpi.log; ! grep -q 'allreduces, [1-9]' $state/mpi.log || fail "mpi: wrong sums" ;;
      *) end $name ;;
    esac
  done
  for name in "${members[@]}"; do
    echo "gateway $name: $(metric $name longhaul_host_pairs_moved_total) pairs moved with $(metric $name longhaul_flows_moved_total) flows, $(metric $name longhaul_lan_handed_over_packets_total) frames handed over"
    empty $name || failures=$((failures + 1))
  done
  cp $state/*.log /mnt/
  for name in "${members[@]}"; do
    [[ " $two " != *" ${name:0:1} "* ]] || kill -TERM "$(cat /run/routes-$name.pid)"
    kill -TERM "$(cat /run/gateway-$name.pid)"
  done
}

# Open MPI wants a name for the machine.
hostname lab
load bridge || exit 1
mkdir -p $state; touch $state/go; deed before
rm -f /mnt/*.log; note "begins"
[[ -z ${LAB_TOP:-} ]] || chrt --rr 20 top -b -H -d 8 > /mnt/top.txt &
sites || exit 1
note "sites are made"
link $delay 0%
four_gateways || exit 1
note "four gateways, ways $(ways a)/ $(ways b)"
link $delay $loss ${LAB_LINK:-20mbit}
for name in $programs; do begin $name; done
sleep ${LAB_REST:-12}
begin_anew
usual=(); for kind in lan kill cut; do for site in $two; do usual+=($kind:$site); done; done
for each in ${LAB_DEEDS:-${usual[*]}}; do one_deed $each; done
note "deeds are done"
at_the_end
note "ends"
echo "$failures failures"
(( failures == 0 ))
