# judged.sh - part of two-sites.sh: what the NICs of both hosts send and get is captured, for judge.py to hold one against the other.
#
#   watch NAME                begins; a scenario that makes its connections itself writes them to $evidence (evidence.py)
#   unwatch                   ends, and leaves judge/NAME beside the script; boot.sh has it judged once the machine is gone
#   watched NAME COMMAND...   a command between both, and its status; with LAB_JUDGE=all only, and not within another
#
#   LAB_JUDGE           identity   which scenarios are judged: identity (identity.sh alone) or all
#   LAB_JUDGE_PACKETS   1000000    of one host at most, 144 bytes each in the machine's memory: a longer capture is not judged
judge_limit=${LAB_JUDGE_PACKETS:-1000000} judge_pids=() watches=0

watch() { # name
  local host
  judged=/run/judge/$1 evidence=/run/judge/$1/evidence
  rm -rf $judged; mkdir -p $judged
  { for host in 0 1; do echo "host $host 10.0.$host.1 $(lan6 $host)::1"; done
    echo "limit $judge_limit"
    [[ -z ${completion_told:-} ]] || echo "completion $completion_told"; } > $evidence
  for host in 0 1; do
    tcpdump -qni v$host -s 128 -B 65536 -c $judge_limit --time-stamp-precision=nano -w $judged/v$host.pcap \
      udp port 4791 2> $judged/v$host.log & judge_pids+=($!)
  done
  for host in 0 1; do
    for _ in {1..100}; do grep -q 'listening on' $judged/v$host.log && break; sleep 0.1; done
  done
  poll_partners > $judged/polls & judge_pids+=($!)
}

# Until it is killed. Queue pairs and their partners, as the kernel has them.
poll_partners() {
  local LC_ALL=C
  while :; do
    echo "poll $EPOCHREALTIME"; rdma resource show qp; echo "polled $EPOCHREALTIME"
    sleep 0.1
  done
}

unwatch() {
  echo "end $EPOCHREALTIME" >> $evidence
  # Time for what is in the captures' rings, whose blocks are handed out once a second.
  sleep 2
  kill "${judge_pids[@]}"; wait "${judge_pids[@]}" 2> /dev/null
  judge_pids=()
  mkdir -p /mnt/judge
  mv $judged /mnt/judge/
}

watched() { # name, command
  local name=$1 status; shift
  if [[ ${LAB_JUDGE:-identity} != all || ${#judge_pids[@]} != 0 ]]; then "$@"; return; fi
  watches=$((watches + 1))
  watch $watches-$name
  "$@"; status=$?
  unwatch
  return $status
}
