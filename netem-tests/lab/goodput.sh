# goodput.sh - ib_write_bw -s 1048576 -q 4 at 0 and 1 % loss, 10 ms each way, 200 Mbit/s, without gateways and with each scheme, in one boot; the losses
# alternate, so that both see the same machine. Prints medians, and what the loss costs.
#
#   LAB_SCHEMES  "plain sr mds:32:8"
#   LAB_REPEATS  5
#   LAB_MESSAGES 40, of each queue pair: enough for beginning and end not to count much
. /mnt/two-sites.sh
repeats=${LAB_REPEATS:-5}
lan_mtu 4200

median() { sort -n | awk '{ value[NR] = $1 } END { print NR ? value[int((NR + 1) / 2)] : "-" }'; }

for scheme in ${LAB_SCHEMES:-plain sr mds:32:8}; do
  link 10ms 0% 200mbit
  if [[ $scheme == plain ]]; then plain on; else plain off; gateways ${scheme//:/ } || exit 1; fi
  rm -f /run/at-*
  for ((round = 0; round < repeats; round++)); do
    for loss in 0 1; do
      link 10ms $loss% 200mbit
      pair ib_write_bw -s 1048576 -q 4 -n ${LAB_MESSAGES:-40} -m 4096 > /run/client.log 2>&1 || { echo "$scheme, $loss %: ended with $?"; grep -iE 'error|fail|syndrom' /run/client.log; continue; }
      awk '/^ +[0-9]+ +[0-9]+ +[0-9.]+/ { print $4 }' /run/client.log >> /run/at-$loss
    done
  done
  echo "$scheme: $(median < /run/at-0) MiB/s at 0 %, $(median < /run/at-1) at 1 % (each: $(paste -sd' ' /run/at-0); $(paste -sd' ' /run/at-1))"
  [[ $scheme == plain ]] || stop_gateways
done
