# identity.sh - queue pairs whose partners are hard to tell (identity.py), by plain routing and through the gateways, all of it judged.
#
#   LAB_SCHEMES  "plain sr"
#   LAB_PARTS    "labels:12 labels:12:5 labels:64 labels:64:5 reconnect:500"
#
# Exit status 0: through the gateways all connected, and nothing was wrong. What judge.py finds comes after it.
. /mnt/two-sites.sh
failures=0
parts=${LAB_PARTS:-labels:12 labels:12:5 labels:64 labels:64:5 reconnect:500}
lan_mtu 1500; plain off
# The kernel's RDMA gives a neighbour a second to answer, and the LAN may lose that.
for side in 0 1; do
  ns=$([[ $side == 0 ]] && echo gwa || echo gwb)
  ip neigh replace 10.0.$side.254 dev v$side lladdr $(ip netns exec $ns cat /sys/class/net/g$side/address) nud permanent
  ip -n $ns neigh replace 10.0.$side.1 dev g$side lladdr $(cat /sys/class/net/v$side/address) nud permanent
done
for scheme in ${LAB_SCHEMES:-plain sr}; do
  started=$SECONDS
  link 10ms 0% 200mbit
  if [[ $scheme == plain ]]; then plain on; else plain off; gateways ${scheme//:/ } || exit 1; fi
  watch identity-${scheme//:/-}
  # Its polling leaves the NICs, which are threads, what processor time they want.
  nice -n 19 timeout 600 python3 /mnt/identity.py $evidence $parts > /run/identity.log 2>&1; status=$?
  unwatch
  sed "s/^/$scheme: /" /run/identity.log
  (( status == 0 )) || { echo "$scheme: ended with $status"; [[ $scheme == plain ]] || failures=$((failures + 1)); }
  if [[ $scheme == plain ]]; then plain off; else stop_gateways || failures=$((failures + 1)); fi
  echo "$scheme: $((SECONDS - started)) s"
done
echo "$failures failures"
(( failures == 0 ))
