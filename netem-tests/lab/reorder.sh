# reorder.sh - a link that puts packets out of order and loses none, as netem does it: a share of them goes at once, the others wait out the delay.
# Fails if a gateway takes that for loss, sends again what was not lost (beyond 1 % of its packets), or if the program does.
#
#   LAB_SECONDS  20   for each kind
# Small datagrams, so that a rate which two emulated processors carry with time to spare is many packets.
LAB_RATE=${LAB_RATE:-20 Mbit/s} LAB_WAN_MTU=${LAB_WAN_MTU:-1500}
. /mnt/two-sites.sh
seconds=${LAB_SECONDS:-20}
failures=0
plain off; lan_mtu 1500

# Of what the gateway at site a last told: a metric, of those with this in their labels.
told() { awk -v name="longhaul_$1" -v label="$2" 'index($1, name "{") == 1 && (label == "" || index($1, label)) { sum += $2 } END { print sum + 0 }' /run/told; }

# Its name, then netem's words. Of what is sent again, the program's beginning and end are part.
during() {
  local name=$1; shift
  link 5ms 0%; gateways sr || exit 1
  tc -n gwa qdisc change dev wa root netem delay 5ms limit 200000 "$@"; tc -n gwb qdisc change dev wb root netem delay 5ms limit 200000 "$@"
  pair ib_write_bw -s 65536 -q 2 -D $seconds > /run/client.log 2>&1 || { echo "FAILED: $name: ended with $?"; tail -n 3 /run/client.log /run/server.log; failures=$((failures + 1)); }
  local sent again late likely low high
  patient_metrics a > /run/told
  sent=$(told stream_sent_data_packets_total); again=$(told stream_sent_repair_packets_total); late=$(told path_reordered_ratio)
  low=$(told path_drop_ratio low); likely=$(told path_drop_ratio likely); high=$(told path_drop_ratio high)
  echo "$name: $(awk '/^ +[0-9]+ +[0-9]+ +[0-9.]+/ { print $4 }' /run/client.log) MiB/s, $sent packets, $again sent again; $late overtaken, loss $likely ($low to $high)"
  awk "BEGIN { exit !($sent > 1000 && $again <= 0.01 * $sent) }" || { echo "FAILED: $name: more than 1 % was sent again"; failures=$((failures + 1)); }
  awk "BEGIN { exit !($low == 0) }" || { echo "FAILED: $name: nothing was lost, and $low is said to be the least"; failures=$((failures + 1)); }
  # Or there was nothing to tell from loss.
  awk "BEGIN { exit !($late > 0.01) }" || { echo "FAILED: $name: hardly a packet was overtaken"; failures=$((failures + 1)); }
  stop_gateways || failures=$((failures + 1))
}

during "a quarter ahead" reorder 25% 50%
during "one in fifty behind" reorder 98%
during "by jitter" delay 5ms 1ms
(( failures == 0 ))
