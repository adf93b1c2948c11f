# local.sh - `completion = "local"` beside "remote", at 10 ms each way with 1 % loss: programs end well, messages sent one at a time show by
# their bandwidth what they have waited for, READs and atomics wait for the target in either case, and the gateways end empty.
#
#   LAB_SCHEMES  "sr"
. /mnt/two-sites.sh
round_trip=0.020 size=16384
failures=0

fail() {
  local site
  echo "FAILED: $*"; failures=$((failures + 1))
  tail -q -n 3 /run/client.log /run/server.log
  for site in a b; do tail -n 3 /run/gateway-$site.log | sed "s/^/  gateway-$site: /"; done
}

# Which figure perftest shows in this column.
figure() { awk -v column=$1 '/^ +[0-9]+ +[0-9]+ +[0-9.]+/ { print $column }' /run/client.log; }

# Runs a program whose figures count. Before each run perftest measures its clock, and on a busy machine that can fail
# (get_clock.c: "Correlation coefficient"). It then shows 0 in every column, which says nothing, and is asked again.
measured() { # PROGRAM ARGS...
  local attempt
  for attempt in 1 2 3 4 5; do
    pair "$@" > /run/client.log 2>&1 || { fail "$completion: $* ended with $?"; return 1; }
    grep -q 'Correlation coefficient' /run/client.log || return 0
    echo "$completion: $*: perftest could not measure its clock (attempt $attempt)"
  done
  fail "$completion: $*: perftest never measured its clock"; return 1
}

# A message is posted when the one before it has completed. The shortest time that one took (perftest's peak) is a round trip at least with "remote", and with "local"
# less than half of one: nothing of it can have reached the target.
one_by_one() { # PROGRAM ARGS...
  local shortest
  measured "$@" -s $size -n 50 -t 1 || return
  shortest=$(figure 3 | awk -v size=$size '$1 > 0 { printf "%.4f", size / $1 / 2 ^ 20 }')
  echo "$completion: $*: a message in ${shortest:-no} s at best"
  if [[ $completion == remote ]]; then
    awk "BEGIN { exit !(${shortest:-0} >= $round_trip) }"
  else
    awk "BEGIN { exit !(${shortest:-9} < $round_trip / 2) }"
  fi || fail "$completion: $*: the shortest took ${shortest:-no} s"
}

# What brings something back always waits for it: the least time in us.
waits() { # PROGRAM ARGS...
  local least
  measured "$@" -n 20 || return
  least=$(figure 3)
  echo "$completion: $*: $least us at least"
  awk "BEGIN { exit !(${least:-0} >= 1000000 * $round_trip) }" || fail "$completion: $*: took $least us"
}

well() { # PROGRAM ARGS...
  local run=(pair "$@")
  case $1 in rping) run=(rping_pair "${@:2}") ;; ibv_*) run=(pingpong "$@") ;; esac
  if "${run[@]}" > /run/client.log 2>&1; then echo "$completion: $*: ok"; else fail "$completion: $* ended with $?"; fi
}

pingpong() { # PROGRAM ARGS...
  timeout 60 "$@" -d rxe1 -g 1 > /run/server.log 2>&1 & local server=$!
  listening 18515 || sleep 1
  timeout 60 "$@" -d rxe0 -g 1 10.0.1.1 && wait $server
}

lan_mtu 4200; plain off
for scheme in ${LAB_SCHEMES:-sr}; do
  for completion in remote local; do
    link 10ms 0% 200mbit
    LAB_COMPLETION=$completion gateways ${scheme//:/ } || exit 1
    link 10ms 1% 200mbit
    one_by_one ib_write_bw
    one_by_one ib_send_bw -e
    if [[ $completion == local ]]; then
      waits ib_read_lat -s 4096
      waits ib_atomic_lat -A FETCH_AND_ADD
      well ib_write_bw -s 1048576 -q 4 -n 10 -b
      well ib_write_lat -s 4096 -n 20
      # These two check their data.
      well rping -V -C 10 -S 65000
      well ibv_rc_pingpong -m 4096 -s 65537 -n 20 -c
      for side in a b; do empty $side || failures=$((failures + 1)); done
    fi
    stop_gateways || failures=$((failures + 1))
  done
done
echo "$failures failures"
(( failures == 0 ))
