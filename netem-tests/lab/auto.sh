# auto.sh - a link that changes while programs run on it: what the gateway that sends measures of it, and what `auto` chooses.
# Fails if a program does, if the truth lies more than half outside of the estimated range at the end of a phase (the range itself misses it once in
# twenty phases), or at too many changes of scheme.
#
#   LAB_PHASE     40     seconds for each link
#   LAB_SWITCHES  20     changes of scheme allowed over all, of both streams; 14 and 15 were seen where packets flow on all four links
# Small datagrams, so that a rate which two emulated processors carry with time to spare is many packets.
LAB_RATE=${LAB_RATE:-20 Mbit/s} LAB_WAN_MTU=${LAB_WAN_MTU:-1500}
. /mnt/two-sites.sh
phase=${LAB_PHASE:-40}
failures=0

plain off; lan_mtu 1500; link 5ms 0.01% 20mbit
gateways auto || exit 1

# What the gateway at site a knows, in one line: seconds, loss (low, likely, high), run of losses, smoothed RTT in ms, scheme of the bulk stream, changes.
known() {
  patient_metrics a | awk -v at=$SECONDS '
    function label(name) { return match($0, name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 3) : "" }
    /^longhaul_path_drop_ratio/ { loss[label("bound")] = $2 }
    /^longhaul_path_burst_packets/ && label("bound") == "likely" { run = $2 }
    /^longhaul_path_rtt_seconds/ && label("statistic") == "smoothed" { rtt = 1000 * $2 }
    /^longhaul_scheme_info/ && label("class") == "default/64KiB" && label("stream") == "bulk" && $2 == 1 { scheme = label("scheme") }
    /^longhaul_scheme_switches_total/ { switches += $2 }
    END { printf "%d %.5f %.5f %.5f %.1f %.0f %s %d\n", at, loss["low"], loss["likely"], loss["high"], run, rtt, scheme, switches }'
}

during() { # its name, true loss, true RTT in ms, delay, loss as netem has it...
  local name=$1 loss=$2 rtt=$3 delay=$4 began=$SECONDS last=''; shift 4
  link $delay "$*" 20mbit
  while (( SECONDS - began < phase )); do sleep 4; last=$(known); echo "  $last"; done
  read -r _ low likely high _ measured _ <<< "$last"
  if awk "BEGIN { exit !($low / 1.5 <= $loss && $loss <= 1.5 * $high) }"; then
    echo "$name: loss $loss, $likely is likely ($low to $high); RTT $rtt ms, $measured measured"
  else
    echo "FAILED: $name: loss $loss does not lie within $low to $high"; failures=$((failures + 1))
  fi
}

echo "  s, loss (low, likely, high), packets lost in a row, RTT in ms, scheme, changes"
# One after the other until the last phase is over: a busy machine stretches the phases, and without packets nothing is measured.
run_programs() {
  while [[ ! -e /run/over ]]; do LAB_TIMEOUT=120 pair ib_write_bw -s 65536 -q 2 -D 30 || return; done
}
rm -f /run/over; run_programs > /run/client.log 2>&1 & programs=$!
during "few losses" 0.0001 10 5ms 0.01%
during "many" 0.02 10 5ms 2%
# Of good packets one in 200 begins a run of losses, of lost ones one in four ends it: 0.005 / (0.005 + 0.25).
during "in runs of four" 0.0196 10 5ms gemodel 0.5% 25%
during "few, and far" 0.0001 100 50ms 0.01%
touch /run/over
wait $programs || { echo "FAILED: the programs ended with $?"; tail -n 3 /run/client.log /run/server.log; failures=$((failures + 1)); }
read -r _ _ _ _ _ _ _ switches <<< "$(known)"
(( switches <= ${LAB_SWITCHES:-20} )) || { echo "FAILED: $switches changes of scheme"; failures=$((failures + 1)); }
awk '/^ +[0-9]+ +[0-9]+ +[0-9.]+/ { print "goodput " $4 " MiB/s" }' /run/client.log
stop_gateways || failures=$((failures + 1))
grep -a "scheme chosen" /run/gateway-a.log | sed 's/\x1b\[[0-9;]*m//g' | cut -c1-300
(( failures == 0 ))
