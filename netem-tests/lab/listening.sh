# listening.sh - part of two-sites.sh and four-gateways.sh.
listening() { # port: waits until something listens, up to 5 s
  local hex; hex=$(printf '%04X' $1)
  for _ in {1..100}; do
    grep -qE "^ *[0-9]+: [0-9A-F]+:$hex 0+:0000 0A" /proc/net/tcp /proc/net/tcp6 && return 0
    sleep 0.05
  done
  return 1
}
