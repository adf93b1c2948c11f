# outages.sh - programs that run throughout, and what befalls the gateways and their link meanwhile: no program sees an error. Prints the longest stall of each.
#
#   LAB_DEEDS     "cut:1 cut:10 cut:60 control:60 renew:a renew:b upgrade:a:20 upgrade:b:20"
#                     cut:SECONDS       the long link carries nothing
#                     control:SECONDS   nothing of the control connection passes, bulk data do
#                     renew:SITE        a new certificate and key, taken at once
#                     upgrade:SITE:N    the gateway's place is taken by another process, N times in a row
#   LAB_PROGRAMS  "write send read bw rping nvme"   streams of outages.py; ib_write_bw; rping; fio over NVMe-oF (nvme.sh); and
#                     nfs    a tree of files copied there and back over NFS (nfs.sh)
#                     ucx    ucx_perftest, with UCX's own patience
#                     mpi    Open MPI's allreduce over UCX, whose sums are checked (allreduce.py). It wants a processor with cx16, which boot.sh says why it leaves out:
#                            LAB_CPU=max,-vaes,-pclmulqdq,-vpclmulqdq,-avx2,-erms,-smap,-smep,-pku,-umip,-la57
#   LAB_TIMEOUT   21      a try of a queue pair takes 4.096 us x 2^this, where a program can be told, and of READs twice as long; NVMe and rdma_cm have their own
#   LAB_DELAY, LAB_LOSS   10ms, 1%
#
# A row of the table: the deed, then for each program the longest time without a completion in seconds (streams), or whether it goes on. One that ended is begun anew
# for the next deed. nvme and nfs say as well whether the kernel connected anew; what fio reads, what is copied and each sum is checked as it goes.
# Exit status 0: all streams and ib_write_bw went on through all deeds, all data were right, and the gateways end empty.
LAB_RATE=${LAB_RATE:-20 Mbit/s} LAB_RESUME_FOR=${LAB_RESUME_FOR:-2 min}
. /mnt/two-sites.sh
. /mnt/modules.sh
patience=${LAB_TIMEOUT:-21} delay=${LAB_DELAY:-10ms} loss=${LAB_LOSS:-1%}
programs=${LAB_PROGRAMS:-write send read bw rping nvme}
state=/run/outages failures=0
. /mnt/throughout.sh

connections() { awk '/device .*nfs-lab/ { ours = 1 } ours && /xprt:/ { print $5; exit }' /proc/self/mountstats; }
recoveries() { dmesg | grep -cE 'nvme.*(error recovery|[Rr]econnect)|keep-alive timer .*expired'; }

both_links() { tc -n gwa qdisc change dev wa root netem "$@"; tc -n gwb qdisc change dev wb root netem "$@"; }

control() { # pass|drop
  if [[ $1 == drop ]]; then
    ip netns exec gwb nft 'add table inet lab; add chain inet lab in { type filter hook input priority 0; }
      add rule inet lab in udp dport 14791 drop; add rule inet lab in udp sport 14791 drop'
  else
    ip netns exec gwb nft delete table inet lab
  fi
}

upgrade() { # a|b
  GLIBC_TUNABLES=glibc.cpu.hwcaps=-SSSE3 ip netns exec gw$1 chrt --rr 10 "$longhaul" upgrade $etc/$1.toml > $state/upgrade.log 2>> /run/gateway-$1.log || return 1
  sed -n 's/.*process \([0-9]*\), took over.*/\1/p' $state/upgrade.log > /run/gateway-$1.pid
}

do_deed() { # kind, what more
  local kind=$1 nth; shift
  case $kind in
    cut) both_links delay $delay limit 200000 rate 20mbit loss 100%; sleep $1; link $delay $loss 20mbit ;;
    control) control drop; sleep $1; control pass ;;
    renew) "$longhaul" keys --dir $etc --force $1 > /dev/null && kill -HUP "$(cat /run/gateway-$1.pid)" ;;
    upgrade) for ((nth = 0; nth < $2; nth++)); do upgrade $1 && await_session || return 1; done ;;
  esac
}

# The programs have gone on for a while when a deed is over.
rest() { sleep ${LAB_REST:-12}; }

row() { # deed
  local name cells=() before=$recovered made=$connected
  for name in $programs; do
    case $name in
      nvme)
        recovered=$(recoveries)
        if ! runs nvme; then cells+=("nvme ended"); elif ((recovered > before)); then cells+=("nvme connected anew"); else cells+=("nvme goes on"); fi ;;
      write | send | read) runs $name && cells+=("$name $(stall $name "$1") s") || { cells+=("$name ENDED"); failures=$((failures + 1)); } ;;
      nfs)
        connected=$(connections)
        if ! runs nfs; then cells+=("nfs ended"); elif [[ $connected != "$made" ]]; then cells+=("nfs connected anew"); else cells+=("nfs goes on"); fi ;;
      mpi) runs mpi && cells+=("mpi $(stall mpi "$1") s") || cells+=("mpi ended") ;;
      ucx) runs ucx && cells+=("ucx goes on") || cells+=("ucx ended") ;;
      bw) runs bw && cells+=("bw goes on") || { cells+=("bw ENDED"); failures=$((failures + 1)); } ;;
      rping) runs rping && cells+=("rping goes on") || cells+=("rping ended") ;;
    esac
  done
  printf '%-14s' "$1"; printf ' | %s' "${cells[@]}"; echo
}

case " $programs " in *" nvme "* | *" nfs "*) keep_order ;; esac
# Open MPI wants a name for the machine.
hostname lab
load nf_tables || exit 1
plain off; lan_mtu 4200; link $delay 0% 20mbit
gateways ${LAB_SCHEME:-sr} || exit 1
link $delay $loss 20mbit
mkdir -p $state; touch $state/go; deed before
for name in $programs; do begin $name; done
rest
recovered=$(recoveries) connected=$(connections)
for deed in ${LAB_DEEDS:-cut:1 cut:10 cut:60 control:60 renew:a renew:b upgrade:a:20 upgrade:b:20}; do
  deed $deed
  do_deed ${deed//:/ } || { echo "FAILED: $deed"; failures=$((failures + 1)); tail -n 3 /run/gateway-?.log; }
  rest
  deed after $deed
  row $deed
  for name in $programs; do
    runs $name && continue
    wait ${pids[$name]}; echo "    $name ended with $?: $(tail -q -n 2 $state/$name*.log | tr '\n' ' ')"
    end $name; begin $name; sleep 2
  done
done
rm $state/go
for name in $programs; do
  case $name in
    write | send | read) wait ${pids[$name]} || failures=$((failures + 1)); tail -n 1 $state/$name.log ;;
    # Sums that are not right fail; that it ended does not.
    mpi) wait ${pids[mpi]}; tail -n 1 $state/mpi.log; ! grep -q 'allreduces, [1-9]' $state/mpi.log || failures=$((failures + 1)) ;;
    *) end $name ;;
  esac
done
cp $state/*.log /run/gateway-?.log /mnt/
for side in a b; do
  echo "gateway $side: $(metric $side longhaul_sessions_established_total) sessions, $(metric $side longhaul_sessions_resumed_total) of them resumed"
  empty $side || failures=$((failures + 1))
done
for side in a b; do kill -TERM "$(cat /run/gateway-$side.pid)"; done
echo "$failures failures"
(( failures == 0 ))
