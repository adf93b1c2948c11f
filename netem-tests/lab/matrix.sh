# matrix.sh - the acceptance matrix, in one boot: every program below x scheme x loss x path MTU, at 10 ms each way and 200 Mbit/s.
#
#   LAB_SCHEMES  "plain sr mds:32:8"     plain is RC without gateways, for comparison: its failures do not count
#   LAB_LOSSES   "0 1 3"                 percent
#   LAB_MTUS     "4200 1500"             of the LAN: path MTU 4096 and 1024
#   LAB_CELLS    each loss with each MTU, LOSS:MTU
#   LAB_ROWS     all | short             short takes a sample of sizes, queue-pair counts and directions
#
# Writes results.tsv (scheme, path MTU, loss, program and options, exit status, MiB/s or us) beside itself. Exit status 0: no failure.
. /mnt/two-sites.sh
schemes=${LAB_SCHEMES:-plain sr mds:32:8} losses=${LAB_LOSSES:-0 1 3} mtus=${LAB_MTUS:-4200 1500}
cells=${LAB_CELLS:-$(for loss in $losses; do for mtu in $mtus; do echo $loss:$mtu; done; done)}
results=/mnt/results.tsv; : > $results
failures=0 again=0

# Enough messages to fill a window or two, no more (perftest wants at least 5).
all_rows() {
  local program size queues both count
  for program in ib_write_bw ib_send_bw ib_read_bw; do
    for size in 2 65536 1048576; do
      case $size in 2) count=50 ;; 65536) count=10 ;; *) count=5 ;; esac
      for queues in 1 8; do
        for both in "" -b; do echo "$program -s $size -q $queues -n $count $both"; done
      done
    done
  done
}

short_rows() {
  echo "ib_write_bw -s 65536 -q 1 -n 10"
  echo "ib_write_bw -s 1048576 -q 8 -n 5 -b"
  echo "ib_send_bw -s 2 -q 8 -n 50"
  echo "ib_send_bw -s 65536 -q 1 -n 10 -b"
  echo "ib_send_bw -s 1048576 -q 1 -n 5"
  echo "ib_read_bw -s 2 -q 1 -n 50"
  echo "ib_read_bw -s 65536 -q 8 -n 10"
  echo "ib_read_bw -s 1048576 -q 1 -n 5 -b"
}

common_rows() {
  echo "ib_write_bw -s 1048576 -q 4 -n 10"
  echo "ib_atomic_bw -A FETCH_AND_ADD -n 20"
  echo "ib_atomic_bw -A CMP_AND_SWAP -n 20"
  echo "ib_write_lat -s 64 -n 20"
  echo "ib_send_lat -s 64 -n 20"
  echo "rping -V -C 5 -S 4000"
}

# What is worth comparing, at sizes at which plain RC ends in reasonable time.
plain_rows() {
  echo "ib_write_bw -s 65536 -q 1 -n 10"
  echo "ib_write_bw -s 1048576 -q 4 -n 10"
  echo "ib_send_bw -s 1048576 -q 1 -n 5"
  echo "ib_write_lat -s 64 -n 20"
}

one() { # the row's words
  case $1 in
    rping) shift; rping_pair "$@" ;;
    *) pair "$@" -m $((mtu == 4200 ? 4096 : 1024)) ;;
  esac
}

# MiB/s of a bandwidth test (perftest's MB is 2^20), median us of a latency test.
figure() {
  awk -v program=$1 '/^ +[0-9]+ +[0-9]+ +[0-9.]+/ { print program ~ /_lat$/ ? $5 : $4; found = 1 } END { if (!found) print "-" }' /run/client.log
}

run_rows() { # scheme, loss
  local row status started=$SECONDS
  while read -r row; do
    one $row < /dev/null > /run/client.log 2>&1; status=$?
    if (( status != 0 )) && [[ $1 != plain ]]; then
      # Two programs that find each other by a TCP port fail at times for their own reasons. Once more, and said so.
      echo "again (ended with $status): $1, LAN MTU $mtu, loss $2 %: $row"; tail -n 2 /run/client.log | sed 's/^/  client: /'
      again=$((again + 1)); sleep 1
      one $row < /dev/null > /run/client.log 2>&1; status=$?
    fi
    printf '%s\t%d\t%s\t%s\t%d\t%s\n' "$1" $((mtu == 4200 ? 4096 : 1024)) "$2" "${row% }" $status "$(figure $row)" >> $results
    if (( status != 0 )) && [[ $1 != plain ]]; then
      failures=$((failures + 1))
      echo "FAILED ($status): $1, LAN MTU $mtu, loss $2 %: $row"
      for log in client server gateway-a gateway-b; do tail -n 4 /run/$log.log | sed "s/^/  $log: /"; done
      for side in a b; do metrics $side | grep -E '(failed|dropped|refused|rejected).* [1-9]' | sed 's/^/  /'; done
    fi
  done < /run/rows-$([[ $1 == plain ]] && echo plain || echo gateways)
  echo "$1: LAN MTU $mtu, loss $2 %: $((SECONDS - started)) s"
}

plain_rows > /run/rows-plain
{ ${LAB_ROWS:-all}_rows; common_rows; } > /run/rows-gateways
for scheme in $schemes; do
  link 10ms 0% 200mbit
  if [[ $scheme == plain ]]; then
    plain on
  else
    plain off
    gateways ${scheme//:/ } || exit 1
  fi
  for cell in $cells; do
    loss=${cell%:*} mtu=${cell#*:}
    link 10ms $loss% 200mbit; lan_mtu $mtu
    if [[ $scheme == plain ]]; then LAB_TIMEOUT=${LAB_PLAIN_TIMEOUT:-20} run_rows plain $loss; else run_rows "${scheme//:/ }" $loss; fi
  done
  if [[ $scheme != plain ]]; then
    for side in a b; do empty $side || failures=$((failures + 1)); done
    stop_gateways || failures=$((failures + 1))
  fi
done
rules=$(ip netns exec gwa ip rule; ip netns exec gwb ip rule)
[[ $rules != *blackhole* ]] || { echo "FAILED: a rule was left behind"; failures=$((failures + 1)); }
ran=$(wc -l < $results)
echo "$ran runs, $failures failures, $again needed a second try"
# The figures side by side.
{
  echo; echo "MiB/s (bandwidth) or median us (latency); - : did not end in time"
  awk -F'\t' '{ column = $1 " " $3 "%"; row = $2 " " $4; if (!(column in columns)) { columns[column] = ++n; names[n] = column }
    if (!(row in rows)) { rows[row] = ++m; lines[m] = row } cell[row, column] = $5 == 0 ? $6 : "-" }
    END { printf "| path MTU, program |"; for (i = 1; i <= n; i++) printf " %s |", names[i]
      printf "\n|---|"; for (i = 1; i <= n; i++) printf "---|"; print ""
      for (j = 1; j <= m; j++) { printf "| %s |", lines[j]; for (i = 1; i <= n; i++) printf " %s |", cell[lines[j], names[i]]; print "" } }' $results
} | tee /mnt/table.md
(( ran > 0 && failures == 0 ))
