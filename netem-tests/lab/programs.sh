# programs.sh - the RDMA programs people run, in one boot: by plain routing (delay, no loss: Soft-RoCE does not bear it), and through the gateways with
# loss, with each scheme. `programs-table` makes docs/programs.md of it.
#
#   LAB_GROUPS   "perftest pingpong cm ucx fi errors"   which programs; also: product (all that perftest can do; perftest is a sample that covers it), ipv6,
#                                   nvme nfs (nvme.sh, nfs.sh), pyverbs (verbs-suite.py), faults (faults.py)
#   LAB_ROWS     short | all        ucx, fi: a few sizes, or more
#   LAB_ONLY     ""                 a regular expression: only rows that match it
#   LAB_EXCEPT   ""                 another: no rows that match it
#   LAB_CASES    ""                 pyverbs: only these cases
#   LAB_SCHEMES  "plain sr mds:32:8"
#   LAB_PLAIN    ""                 plain routing runs these groups only; of others every failure through the gateways counts
#   LAB_DELAY    "10ms"             each way; several, one after the other
#   LAB_LOSS     1%                 through the gateways
#   LAB_TIMEOUT  90                 seconds for a program; nvme and nfs have LAB_SECONDS more, and 4 s for each ms of delay, and pyverbs has half an hour for all its cases
#   LAB_CAPTURE  ""                 1: packets at both hosts' interfaces are recorded, headers only, and kept of what fails
#
# Writes programs.tsv (delay, scheme, group, program and options, exit status or reason, times it was tried, seconds) beside itself, and what a failed run
# left to be read under failed/. Exit status 0: whatever ends well by plain routing does so through the gateways, and they end empty.
. /mnt/two-sites.sh
. /mnt/programs-rows.sh
schemes=${LAB_SCHEMES:-plain sr mds:32:8} delays=${LAB_DELAY:-10ms} loss=${LAB_LOSS:-1%}
results=/mnt/programs.tsv; : > $results
rm -rf /mnt/failed; mkdir -p /mnt/failed
limit=${LAB_TIMEOUT:-90}
# libfabric takes an interface's first address, and one of IPv6 that nobody gave it cannot be reached from elsewhere.
ip -6 addr flush dev v0; ip -6 addr flush dev v1
case " ${LAB_GROUPS:-}${LAB_WAN_IPV6:+ ipv6} " in *" ipv6 "*) ipv6 || exit 1 ;; esac
# A program that connects by rdma_cm and names no address of its own would find the other site's on this very kernel: it is to stand at rxe0. TCP goes over lo.
ip rule add pref 6 iif lo to 10.0.1.1 ipproto tcp lookup local
ip rule add pref 7 iif lo from 0.0.0.0/32 to 10.0.1.1 lookup 100
ip route replace 10.0.1.1 via 10.0.0.254 dev v0 src 10.0.0.1 table 100

# Server and client of one run, from the words in the arrays `server` and `client`; their outputs in server.log and client.log. The client's status, or
# else the server's, or 99 if both sites' hosts found each other on this very kernel. Programs that poll get what processor time is left, or they would take it
# from their own NICs, which are threads.
both() { # seconds to wait for the server, or :PORT
  local sent=/sys/class/net/v0/statistics/tx_packets before; before=$(cat $sent)
  nice -n 19 timeout -k 5 $limit "${server[@]}" > /run/server.log 2>&1 & local pid=$! status
  case $1 in :*) listening ${1#:} || sleep 1 ;; *) sleep $1 ;; esac
  nice -n 19 timeout -k 5 $limit "${client[@]}" > /run/client.log 2>&1; status=$?
  # A server that goes on for ever has to be there still.
  if (( status != 0 || endless )); then kill $pid 2> /dev/null || status=1; wait $pid 2> /dev/null; else wait $pid; status=$?; fi
  (( status == 0 && $(cat $sent) - before < 3 )) && status=99
  return $status
}

one() { # the row's words
  local here=10.0.0.1 there=10.0.1.1 gids=(1 1) six=
  if [[ $1 == ipv6 ]]; then
    # TCP, by which some find each other, stays with IPv4.
    shift; six=1 here=$(lan6 0)::1 there=$(lan6 1)::1
    gids=($(gid6 0) $(gid6 1))
  fi
  local server=("$@") client=("$@") endless=0 wait=:18515
  case $1 in
    ib_*)
      server+=(-d rxe1 -x ${gids[1]} -F ${six:+--ipv6}) client+=(-d rxe0 -x ${gids[0]} -F ${six:+--ipv6})
      # By rdma_cm, its port shows nowhere, and the client has to be told where it stands.
      [[ " $* " != *" -R "* ]] || { wait=1; client+=(--source_ip 10.0.0.1); }
      client+=(10.0.1.1) ;;
    ibv_*) server+=(-d rxe1 -g ${gids[1]}) client+=(-d rxe0 -g ${gids[0]} 10.0.1.1) ;;
    rping) wait=1 server+=(-s -a $there) client+=(-c -a $there -I $here) ;;
    ucmatose | udaddy)
      wait=1 server+=(-b $there ${six:+-f ipv6}) client+=(-b $here -s $there ${six:+-f ipv6}) ;;
    # The receiver is the server. Over RoCEv2 rdma_cm joins groups of IPv4 alone.
    mckey) wait=1 server+=(-m $lab_group -b 10.0.1.1) client+=(-m $lab_group -b 10.0.0.1 -s) ;;
    cmtime) wait=1 endless=1 server+=(-b 10.0.1.1) client+=(-b 10.0.0.1 -s 10.0.1.1) ;;
    ucx_perftest)
      # UCX has to be told which of its addresses to speak from, and to take Soft-RoCE's word for where a UD packet was sent to.
      local ucx=(env UCX_TLS=rc_verbs,ud_verbs:aux UCX_IB_GID_INDEX=1 UCX_UD_VERBS_ETH_DGID_CHECK=n)
      wait=:13337 server=("${ucx[@]}" UCX_NET_DEVICES=rxe1:1 "$@") client=("${ucx[@]}" UCX_NET_DEVICES=rxe0:1 "$@" 10.0.1.1) ;;
    fi_pingpong)
      # For 256 peers, libfabric's default, it wants longer completion queues than Soft-RoCE has.
      wait=:47592 server=(env FI_UNIVERSE_SIZE=2 "$@" -d rxe1) client=(env FI_UNIVERSE_SIZE=2 "$@" -d rxe0 10.0.1.1) ;;
    errors.py) timeout -k 5 $limit python3 /mnt/errors.py $2 > /run/client.log 2>&1; return ;;
    faults.py) LAB_WAY=$way timeout -k 5 $limit python3 /mnt/faults.py "${@:2}" > /run/client.log 2>&1; return ;;
    # Both ends are the kernel's. To end what hangs in it, time is needed.
    nvme.sh | nfs.sh) rm -f /run/server.log; timeout -k 30 $((limit + ${LAB_SECONDS:-15} + 4 * ${delay%ms})) bash /mnt/$1 "${@:2}" > /run/client.log 2>&1; return ;;
    verbs-suite.py) rm -f /run/server.log; nice -n 19 timeout -k 5 1800 python3 /mnt/$1 "${@:2}" > /run/client.log 2>&1; return ;;
    *) echo "no such program: $1" > /run/client.log; return 127 ;;
  esac
  both $wait
}

# What may tell why.
keep() { # name
  local side
  mkdir -p /mnt/failed/$1
  cp /run/client.log /mnt/failed/$1/; [[ ! -e /run/server.log ]] || cp /run/server.log /mnt/failed/$1/
  for side in 0 1; do [[ ! -e /run/v$side.pcap ]] || cp /run/v$side.pcap /mnt/failed/$1/; done
  counters rxe0 > /mnt/failed/$1/rxe0; counters rxe1 > /mnt/failed/$1/rxe1
  [[ -e /run/gateway-a.pid ]] || return 0
  for side in a b; do
    tail -n 50 /run/gateway-$side.log > /mnt/failed/$1/gateway-$side.log
    patient_metrics $side | grep -v '^#' > /mnt/failed/$1/metrics-$side
  done
}

try() { # the row's words
  local side pids=() status
  if [[ -n ${LAB_CAPTURE:-} ]]; then
    for side in 0 1; do
      tcpdump -i v$side -s 120 -c 50000 -U -w /run/v$side.pcap udp port 4791 2> /dev/null & pids+=($!)
    done
    sleep 1
  fi
  watched "$1" one "$@" < /dev/null; status=$?
  (( ${#pids[@]} == 0 )) || { sleep 0.5; kill "${pids[@]}"; wait "${pids[@]}"; }
  return $status
}

# What plain routing came to in the same boot.
plain_outcome() { awk -F'\t' -v delay=$1 -v row="$2" '$1 == delay && $2 == "plain" && $4 == row { print $5 }' $results; }

# A suite's cases are the rows. What does not end as it did by plain routing is run once more.
record_cases() { # delay, scheme, group
  local case outcome tries plain second
  cp /run/cases.tsv /run/cases-first.tsv; cp /run/client.log /mnt/cases-${2// /-}.log
  while IFS=$'\t' read -r case outcome tries; do
    plain=$(plain_outcome $1 $case)
    if [[ $2 != plain && $outcome != "${plain:-$outcome}" || $outcome == failed* ]]; then
      echo "$1, $2: $case: $outcome (plain: $plain)"
      keep $case-${2// /-}
      try verbs-suite.py $case
      second=$(cut -f2 /run/cases.tsv)
      [[ $second == "$outcome" ]] || { again=$((again + 1)) outcome=$second tries=2; }
      if [[ $outcome == failed* && $2 != plain && $plain != failed* ]]; then
        failures=$((failures + 1)); echo "FAILED: $1, $2: $case: $outcome (plain: $plain)"; keep $case-${2// /-}-again
      fi
    fi
    printf '%s\t%s\t%s\t%s\t%s\t%d\n' $1 "$2" $3 $case "$outcome" $tries >> $results
  done < /run/cases-first.tsv
}

failures=0 again=0 number=0
run_rows() { # delay, scheme
  local group row reason status tries plain began way=gateways
  [[ $2 != plain ]] || way=plain
  while IFS=$'\t' read -r group row reason; do
    number=$((number + 1))
    [[ $2 != plain || " ${LAB_PLAIN:-$group} " == *" $group "* ]] || continue
    [[ $2 != plain || $row != mckey* ]] || reason="multicast is not routed without gateways"
    if [[ -n $reason ]]; then printf '%s\t%s\t%s\t%s\t%s\t0\n' $1 "$2" $group "$row" "$reason" >> $results; continue; fi
    tries=1 began=$SECONDS
    try $row; status=$?
    if [[ $group == pyverbs ]]; then
      record_cases $1 "$2" $group
      (( status == 0 )) || { failures=$((failures + 1)); echo "FAILED: $1, $2: $row did not get to its end ($status)"; tail -n 5 /run/client.log; }
      continue
    fi
    if (( status != 0 )); then
      keep $number-${2// /-}
      # Two programs that find each other by a TCP port fail at times for their own reasons. Once more, and said so.
      again=$((again + 1)) tries=2; sleep 1
      try $row; status=$?
      (( status == 0 )) || keep $number-${2// /-}-again
    fi
    # What was seen, not how that ended, is compared.
    [[ ($group != errors && $group != faults) || $status != 0 ]] || status=$(tail -n 1 /run/client.log)
    printf '%s\t%s\t%s\t%s\t%s\t%d\t%d\n' $1 "$2" $group "$row" "$status" $tries $((SECONDS - began)) >> $results
    plain=$(plain_outcome $1 "$row")
    if [[ $group == errors ]]; then
      [[ $2 == plain || $status == "${plain:-$status}" ]] || { failures=$((failures + 1)); echo "FAILED: $1, $2: $row: $status (plain: $plain)"; keep $number-${2// /-}; }
      continue
    fi
    # Of faults it knows itself what may come of them.
    [[ $group != faults || ! $status =~ ^[^0-9] ]] || status=0
    (( status != 0 || tries > 1 )) || continue
    echo "$number: status $status at try $tries (plain: ${plain:--}): $1, $2: $row"
    tail -q -n 2 /run/client.log /run/server.log | sed 's/^/    /'
    [[ $status == 0 || $2 == plain || ${plain:-0} != 0 && $row != mckey* ]] || { failures=$((failures + 1)); echo "FAILED"; }
  done < /run/rows
}

case " ${LAB_GROUPS:-} " in *" nvme "* | *" nfs "* | *" pyverbs "* | *" faults "*) keep_order ;; esac
for group in ${LAB_GROUPS:-perftest pingpong cm ucx fi errors}; do
  rows_$group | sed "s/^/$group\t/"
done | grep -E -- "${LAB_ONLY:-.}" | grep -vE -- "${LAB_EXCEPT:-^$}" > /run/rows || { echo "FAILED: no program is left to run"; exit 1; }
lan_mtu 4200
for delay in $delays; do
  for scheme in $schemes; do
    started=$SECONDS number=0
    if [[ $scheme == plain ]]; then
      plain on; link $delay 0% 200mbit
      export LAB_LINK="delay $delay limit 200000 rate 200mbit"
      run_rows $delay plain
      plain off
    else
      link $delay 0% 200mbit
      gateways ${scheme//:/ } || exit 1
      link $delay $loss 200mbit
      export LAB_LINK="delay $delay limit 200000 rate 200mbit loss $loss"
      run_rows $delay "${scheme//:/ }"
      for side in a b; do
        empty $side && left=0 || { left=1; failures=$((failures + 1)); }
        printf '%s\t%s\t%s\t%s\t%d\t1\n' $delay "${scheme//:/ }" "after it all" "gateway $side is empty" $left >> $results
      done
      stop_gateways || failures=$((failures + 1))
    fi
    echo "$delay, $scheme: $((SECONDS - started)) s"
  done
done
echo "$(wc -l < $results) runs, $failures failures of the gateways, $again tried twice"
(( failures == 0 ))
