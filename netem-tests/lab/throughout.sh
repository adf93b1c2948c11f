# throughout.sh - part of outages.sh and members.sh: programs that run throughout, between two hosts.
#
#   patience, state     what the script that sources this has set: a try's time, and a folder
#   host_a, host_b      the addresses of rxe0 and rxe1
#   begin PROGRAM       starts it, with its server; runs PROGRAM; end PROGRAM
#   deed WHAT           says what befalls the programs from now on
#   stall PROGRAM WHAT  the longest time without a completion during that deed, as streams wrote it down
host_a=${host_a:-10.0.0.1} host_b=${host_b:-10.0.1.1}
# This script looks after the gateways, and the programs get what processor time is left, or it would learn nothing.
chrt -r -p 5 $$
low=(chrt --other 0 nice -n 10)
# UCX has to be told which of its addresses to speak from, and to take Soft-RoCE's word for where a UD packet was sent to.
ucx=(UCX_TLS=rc_verbs,ud_verbs:aux UCX_IB_GID_INDEX=1 UCX_UD_VERBS_ETH_DGID_CHECK=n)
declare -A pids

deed() { echo "$*" > $state/deed.new; mv $state/deed.new $state/deed; }

begin() { # program
  case $1 in
    write | send) "${low[@]}" python3 /mnt/outages.py $1 $patience $state > $state/$1.log 2>&1 & ;;
    # Nothing keeps a requester patient that waits for a READ.
    read) "${low[@]}" python3 /mnt/outages.py $1 $((patience + 1)) $state > $state/$1.log 2>&1 & ;;
    bw)
      "${low[@]}" ib_write_bw -d rxe1 -x 1 -F -u $patience -s 65536 -q 2 -t 4 --run_infinitely -D 5 > $state/bw-server.log 2>&1 & pids[bw-server]=$!
      listening 18515 || sleep 1
      "${low[@]}" ib_write_bw -d rxe0 -x 1 -F -u $patience -s 65536 -q 2 -t 4 --run_infinitely -D 5 $host_b > $state/bw.log 2>&1 & ;;
    rping)
      "${low[@]}" rping -s -a $host_b -S 4096 -V > $state/rping-server.log 2>&1 & pids[rping-server]=$!
      sleep 1
      "${low[@]}" rping -c -a $host_b -I $host_a -S 4096 -V -C 100000000 > $state/rping.log 2>&1 & ;;
    nvme) LAB_SECONDS=100000 "${low[@]}" bash /mnt/nvme.sh 4k 4 > $state/nvme.log 2>&1 & ;;
    nfs) LAB_SECONDS=100000 LAB_FILES=100 "${low[@]}" bash /mnt/nfs.sh 4.2 > $state/nfs.log 2>&1 & ;;
    ucx)
      local test=(ucx_perftest -t tag_bw -s 65536 -n 100000000 -w 1)
      "${low[@]}" env "${ucx[@]}" UCX_NET_DEVICES=rxe1:1 "${test[@]}" > $state/ucx-server.log 2>&1 & pids[ucx-server]=$!
      listening 13337 || sleep 1
      "${low[@]}" env "${ucx[@]}" UCX_NET_DEVICES=rxe0:1 "${test[@]}" $host_b > $state/ucx.log 2>&1 & ;;
    mpi)
      local at ranks=()
      for at in 0 1; do ranks+=(-np 1 -x UCX_NET_DEVICES=rxe$at:1 python3 /mnt/allreduce.py $state); (( at )) || ranks+=(:); done
      "${low[@]}" env "${ucx[@]}" mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca osc ^ucx --mca op ^avx \
        "${ranks[@]}" > $state/mpi.log 2>&1 & ;;
  esac
  pids[$1]=$!
}

runs() { kill -0 ${pids[$1]} 2> /dev/null; }

end() { # program, and its server
  local name
  for name in $1 $1-server; do
    [[ -n ${pids[$name]:-} ]] || continue
    kill ${pids[$name]} 2> /dev/null
    # What hangs in the kernel is left there.
    for _ in {1..50}; do runs $name || break; sleep 0.1; done
    kill -9 ${pids[$name]} 2> /dev/null; unset "pids[$name]"
  done
}

stall() { # program, deed: as soon as the program has written it down
  local found
  for _ in {1..100}; do
    found=$(awk -F'\t' -v deed="$2" '$1 == deed { found = $2 } END { print found }' $state/$1.tsv 2> /dev/null)
    [[ -z $found ]] || break
    sleep 0.1
  done
  echo ${found:-?}
}
