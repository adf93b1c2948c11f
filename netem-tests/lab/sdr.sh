# sdr.sh - SDR programs on Soft-RoCE's unreliable connections, over a link that loses packets, in bursts too, and puts them out of order.
# Messages go without a layer and with each one, contents checked; the C program and the Rust one talk to each other.
# Beside them plain UC writes, each of which is lost as a whole with a packet of it. No gateway takes part.
#
#   LAB_SDR       the Rust program: cargo build --release -p sdr --example sdr_bw --features verbs
#   LAB_SDR_C     the C program, linked with libraries that have the feature verbs; without it, that part is left out
#   LAB_MESSAGES  40   of 256 KiB, for each kind
LAB_LONGHAUL=${LAB_LONGHAUL:-none}
. /mnt/two-sites.sh
rust=${LAB_SDR:?the sdr_bw of Rust} messages=${LAB_MESSAGES:-40}
size=262144 failures=0
options=(-s $size -c 16384 -f 8 -n $messages -m 1024 -r 40 -t 25000 -v)
plain on; lan_mtu 4200

netem() { tc -n gwa qdisc change dev wa root netem limit 200000 "$@"; tc -n gwb qdisc change dev wb root netem limit 200000 "$@"; }

# A name, the server's program, the client's program, and options of both. The server is at 10.0.1.1 on rxe1.
during() {
  local name=$1 server=$2 client=$3 status; shift 3
  timeout 60 $server -a 10.0.1.1 -d rxe1 "${options[@]}" "$@" > /run/server.log 2>&1 &
  sleep 0.3
  timeout 60 $client -a 10.0.0.1 -d rxe0 "${options[@]}" "$@" 10.0.1.1 > /run/client.log 2>&1
  status=$?
  wait $! || status=1
  echo "$name: $(grep -h -E 'whole' /run/client.log; grep -h -o -E '[0-9.]+ Gbit/s' /run/client.log)"
  (( status == 0 )) || fail "$name" "ended with an error"
}

fail() { echo "FAILED: $1: $2"; tail -n 3 /run/client.log /run/server.log; failures=$((failures + 1)); }

# Whether all messages were whole: what a layer has to achieve.
whole() { grep -q "^$messages whole, 0 chunks lost" /run/client.log || fail "$1" "not every message is whole"; }

# Whether some were not, and most chunks were there all the same.
partial() { awk -v most=$((messages * size / 16384 / 2)) '/whole/ { exit !($3 > 0 && $3 < most) }' /run/client.log || fail "$1" "the link lost nothing, or too much"; }

while read -r link words; do
  netem $words
  during "$link, no layer" $rust $rust -S none -C 2; partial "$link, no layer"
  for layer in rto nack mds:8,3 xor:8,4; do
    during "$link, $layer" $rust $rust -S $layer -C 2; whole "$link, $layer"
  done
  python3 /mnt/plain-uc.py $messages $size || failures=$((failures + 1))
done <<LINKS
loss delay 10ms loss 1%
bursts delay 10ms loss gemodel 0.4% 20%
order delay 10ms 1ms loss 1%
LINKS

netem delay 10ms loss 1%
if [[ -n ${LAB_SDR_C:-} ]]; then
  during "C to Rust" $rust $LAB_SDR_C; partial "C to Rust"
  during "Rust to C" $LAB_SDR_C $rust; partial "Rust to C"
  during "C to C" $LAB_SDR_C $LAB_SDR_C; partial "C to C"
  for layer in rto nack mds:8,3 xor:8,4; do
    during "C to C, $layer" $LAB_SDR_C $LAB_SDR_C -S $layer; whole "C to C, $layer"
  done
  during "C to Rust, mds:8,3" $rust $LAB_SDR_C -S mds:8,3; whole "C to Rust, mds:8,3"
  during "Rust to C, nack" $LAB_SDR_C $rust -S nack; whole "Rust to C, nack"
fi
(( failures == 0 ))
