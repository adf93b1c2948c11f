# metrics.sh - part of two-sites.sh and four-gateways.sh, whose `metrics` asks a gateway.
metric() { metrics $1 | awk -v name="$2" '$1 == name || index($1, name "{") == 1 {sum += $2} END {printf "%.0f\n", sum}'; }

empty() { # a|b|a1...: flows, buffers and timers that should be gone are gone, within 50 s: who met silence is answered nothing for 30 s
  local name left
  for _ in {1..250}; do
    left=0
    for name in longhaul_flows longhaul_buffers longhaul_timers; do left=$((left + $(metric $1 $name))); done
    (( left == 0 )) && return 0
    sleep 0.2
  done
  echo "FAILED: gateway $1 still holds flows $(metric $1 longhaul_flows), buffers $(metric $1 longhaul_buffers), timers $(metric $1 longhaul_timers)"
  return 1
}
