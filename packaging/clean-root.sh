# clean-root.sh - part of try-package, try-unit and try-container: a clean Debian root in $root, and two sites in name spaces of their own.
#
#   make_root [PACKAGES]   what Debian calls essential, apt, and these
#   two_sites              a gateway (ga, gb) and a host (ha, hb) for each of the sites a and b; their interfaces are lan, wan and rdma
#   name PLACE             the name space of one of them
#   cross                  one RoCE packet from a host of site a to one of site b
#   wait_for WHAT COMMAND... fails after 60 s
packaging=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
root=$(mktemp -d)
names=(ga gb ha hb)
id=$$
jobs_started=()
name() { echo "lh$id-$1"; }

finish() {
  for job in "${jobs_started[@]}"; do kill "$job" 2> /dev/null || true; done
  wait || true
  for each in "${names[@]}"; do ip netns delete "$(name "$each")" 2> /dev/null || true; done
  umount "$root/proc" "$root/sys" 2> /dev/null || true
  rm -rf --one-file-system "$root"
}
trap finish EXIT

make_root() {
  local mirror packages
  # The mirror that this machine's apt uses, if it has Debian's.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 2> /dev/null | sed -n 1p)
  packages=$(IFS=,; echo "$*")
  mmdebstrap --quiet --skip=cleanup/apt/lists --variant=minbase ${packages:+--include="$packages"} bookworm "$root" \
    "${DEBIAN_MIRROR:-${mirror:-http://deb.debian.org/debian}}"
}

# link A B INTERFACE-A INTERFACE-B: a cable between two name spaces.
link() {
  ip link add "$3" netns "$(name "$1")" type veth peer name "$4" netns "$(name "$2")"
  ip -n "$(name "$1")" link set "$3" up
  ip -n "$(name "$2")" link set "$4" up
}

lan() { # SITE: the cable to its host
  local net
  net=$([[ $1 == a ]] && echo 10.0.0 || echo 10.0.1)
  link "g$1" "h$1" lan rdma
  ip -n "$(name "g$1")" address add "$net.254/24" dev lan
  ip -n "$(name "h$1")" address add "$net.1/24" dev rdma
  ip -n "$(name "h$1")" route add default via "$net.254"
}

two_sites() {
  local each
  for each in "${names[@]}"; do ip netns add "$(name "$each")"; ip -n "$(name "$each")" link set lo up; done
  link ga gb wan wan
  ip -n "$(name ga)" address add 192.0.2.1/24 dev wan
  ip -n "$(name gb)" address add 192.0.2.2/24 dev wan
  lan a
  lan b
}

cross() {
  local receiver
  ip netns exec "$(name hb)" python3 "$packaging/roce-packet" receive 10.0.1.1 &
  receiver=$!
  ip netns exec "$(name ha)" python3 "$packaging/roce-packet" send 10.0.0.1 10.0.1.1
  wait "$receiver"
}

wait_for() {
  local what=$1 _
  shift
  for _ in {1..600}; do "$@" > /dev/null 2>&1 && return 0; sleep 0.1; done
  echo "$what: not within 60 s"
  return 1
}
