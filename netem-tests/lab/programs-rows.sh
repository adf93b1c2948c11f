# programs-rows.sh - sourced by programs.sh: what is run. A row is a program and its options, or, after a tab, why it is not run.
#
# perftest wants five iterations at least, and the machine is emulated: enough to fill a window, no more. Soft-RoCE's path MTU is 4096 here.

# Of each kind of test, all pairs of: found out of band or by rdma_cm (-R), 1 or 16 queue pairs, one or both ways, a size from 1 B to 8 MiB, inline (-I) or
# not, events (-e) or polling: not their whole product.
perftest_short() {
  local kind
  # RC WRITE: only local completions, so there are no events.
  echo "ib_write_bw -c RC -s 1 -q 1 -n 50"
  echo "ib_write_bw -c RC -s 1 -q 16 -n 20 -b -R -I 64"
  echo "ib_write_bw -c RC -s 7 -q 1 -n 50 -R -I 64"
  echo "ib_write_bw -c RC -s 1023 -q 16 -n 20"
  echo "ib_write_bw -c RC -s 4097 -q 1 -n 50 -b -R"
  echo "ib_write_bw -c RC -s 65535 -q 16 -n 5 -R"
  echo "ib_write_bw -c RC -s 65537 -q 16 -n 5 -b"
  echo "ib_write_bw -c RC -s 1048576 -q 1 -n 5 -b"
  echo "ib_write_bw -c RC -s 8388607 -q 1 -n 5 -R"
  echo "ib_write_bw -c RC -s 8388608 -q 1 -n 5"
  echo "ib_write_lat -c RC -s 1 -n 20 -I 64"
  echo "ib_write_lat -c RC -s 4095 -n 20 -R -I 0"
  echo "ib_write_lat -c RC -s 65537 -n 10"
  echo "ib_write_lat -c RC -s 8388608 -n 5 -R"
  echo "ib_send_bw -c RC -s 1 -q 1 -n 50 -e"
  echo "ib_send_bw -c RC -s 1 -q 16 -n 20 -b -R -I 64"
  echo "ib_send_bw -c RC -s 7 -q 1 -n 50 -R -I 64 -e"
  echo "ib_send_bw -c RC -s 1023 -q 16 -n 20 -b -e"
  echo "ib_send_bw -c RC -s 4097 -q 16 -n 10 -R -e"
  echo "ib_send_bw -c RC -s 65537 -q 1 -n 5 -b -R"
  echo "ib_send_bw -c RC -s 65535 -q 16 -n 5"
  echo "ib_send_bw -c RC -s 1048576 -q 1 -n 5 -b -e"
  echo "ib_send_bw -c RC -s 8388607 -q 1 -n 5 -R"
  echo "ib_send_bw -c RC -s 8388608 -q 1 -n 5 -e"
  echo "ib_send_bw -c RC -s 4096 -q 4 -n 20 --use-srq"
  echo "ib_send_lat -c RC -s 1 -n 20 -I 64 -e"
  echo "ib_send_lat -c RC -s 4095 -n 20 -R"
  echo "ib_send_lat -c RC -s 65537 -n 10 -R -e"
  echo "ib_send_lat -c RC -s 8388608 -n 5"
  echo "ib_read_bw -c RC -s 1 -q 1 -n 50 -e"
  echo "ib_read_bw -c RC -s 1 -q 16 -n 20 -b -R"
  echo "ib_read_bw -c RC -s 1023 -q 16 -n 20 -e"
  echo "ib_read_bw -c RC -s 4097 -q 1 -n 50 -b -R -e"
  echo "ib_read_bw -c RC -s 65537 -q 16 -n 5 -b"
  echo "ib_read_bw -c RC -s 1048577 -q 1 -n 5 -R"
  echo "ib_read_bw -c RC -s 8388608 -q 1 -n 5"
  echo "ib_read_lat -c RC -s 1 -n 20 -R -e"
  echo "ib_read_lat -c RC -s 4097 -n 20"
  echo "ib_read_lat -c RC -s 8388607 -n 5 -e"
  for kind in FETCH_AND_ADD CMP_AND_SWAP; do
    echo "ib_atomic_bw -A $kind -c RC -q 1 -n 50 -e"
    echo "ib_atomic_bw -A $kind -c RC -q 16 -n 10 -b -R"
    echo "ib_atomic_bw -A $kind -c RC -q 16 -n 10"
    echo "ib_atomic_bw -A $kind -c RC -q 1 -n 20 -b -R -e"
    echo "ib_atomic_lat -A $kind -c RC -n 20 -R"
    echo "ib_atomic_lat -A $kind -c RC -n 20 -e"
  done
  echo "ib_write_bw -c UC -s 1 -q 1 -n 50 -I 64"
  echo "ib_write_bw -c UC -s 4097 -q 16 -n 10 -b"
  echo "ib_write_bw -c UC -s 65537 -q 1 -n 10"
  echo "ib_write_bw -c UC -s 1048576 -q 1 -n 5 -b"
  echo "ib_write_bw -c UC -s 8388608 -q 1 -n 5"
  echo "ib_write_lat -c UC -s 1 -n 20"
  echo "ib_write_lat -c UC -s 65537 -n 10"
  echo "ib_send_bw -c UC -s 1 -q 1 -n 50 -I 64 -e"
  echo "ib_send_bw -c UC -s 4097 -q 16 -n 10 -b"
  echo "ib_send_bw -c UC -s 65537 -q 1 -n 10 -e"
  echo "ib_send_bw -c UC -s 1048576 -q 1 -n 5 -b"
  echo "ib_send_lat -c UC -s 1 -n 20 -e"
  echo "ib_send_lat -c UC -s 65537 -n 10"
  echo "ib_send_bw -c UD -s 1 -q 1 -n 50 -I 64 -e"
  echo "ib_send_bw -c UD -s 1023 -q 16 -n 10 -b"
  echo "ib_send_bw -c UD -s 4096 -q 1 -n 50 -b -R -e"
  echo "ib_send_bw -c UD -s 4095 -q 16 -n 10 -R"
  echo "ib_send_lat -c UD -s 1 -n 20 -R -I 64"
  echo "ib_send_lat -c UD -s 4096 -n 20 -e"
}

# The whole product of what perftest takes.
rows_product() {
  local test transport transports sizes size queues both cm events inline kind
  for test in write_bw send_bw read_bw write_lat send_lat read_lat; do
    case $test in write*) transports="RC UC" ;; send*) transports="RC UC UD" ;; *) transports=RC ;; esac
    for transport in $transports; do
      sizes="1 1023 4096 4097 65537 1048576 8388608"; [[ $transport != UD ]] || sizes="1 1023 4095 4096"
      for size in $sizes; do for queues in 1 16; do for both in "" " -b"; do for cm in "" " -R"; do for events in "" " -e"; do for inline in "" " -I 64"; do
        # One queue pair, to and fro, is what a latency test is. WRITEs show the target no completion to sleep for.
        [[ $test == *_bw || "$queues$both" == 1 ]] || continue
        [[ $test != write* || -z $events ]] || continue
        [[ -z $inline || ( $size -le 64 && $test != read* ) ]] || continue
        [[ $size -le 65537 || $queues == 1 ]] || continue
        [[ $transport != UC || -z $cm ]] || continue
        echo "ib_$test -c $transport -s $size$([[ $test != *_bw ]] || echo " -q $queues") -n $((size > 5000 ? 5 : 20))$both$cm$events$inline"
      done; done; done; done; done; done
    done
  done
  for kind in FETCH_AND_ADD CMP_AND_SWAP; do
    for cm in "" " -R"; do for events in "" " -e"; do
      for queues in 1 16; do for both in "" " -b"; do echo "ib_atomic_bw -A $kind -c RC -q $queues -n 20$both$cm$events"; done; done
      echo "ib_atomic_lat -A $kind -c RC -n 20$cm$events"
    done; done
  done
}

rows_perftest() {
  perftest_short
  printf 'ib_write_bw --write_with_imm\tperftest 4.5 does not have it\n'
  printf 'ib_write_bw -e, ib_write_lat -e\tperftest 4.5 does not have it\n'
  printf 'ib_read_bw -c UC, ib_atomic_bw -c UC\tUC has neither\n'
  printf 'ib_* -c UC -R\tlibrdmacm makes no UC connections, perftest says\n'
  printf 'ib_*_lat -q 16, ib_*_lat -b\tperftest refuses them\n'
}

rows_pingpong() {
  local kind
  for kind in rc uc; do
    echo "ibv_${kind}_pingpong -m 4096 -s 1 -n 50 -c"
    echo "ibv_${kind}_pingpong -m 4096 -s 4096 -n 50 -e -c"
    echo "ibv_${kind}_pingpong -m 1024 -s 65537 -n 20 -c"
    echo "ibv_${kind}_pingpong -m 256 -s 4097 -n 20 -c"
  done
  echo "ibv_rc_pingpong -m 4096 -s 1048576 -n 5 -c"
  echo "ibv_ud_pingpong -s 1 -n 50"
  echo "ibv_ud_pingpong -s 2048 -n 50 -e -c"
  echo "ibv_srq_pingpong -m 4096 -s 4096 -q 1 -n 20 -c"
  echo "ibv_srq_pingpong -m 1024 -s 4097 -q 16 -n 10 -e -c"
}

rows_cm() {
  echo "rping -V -C 10 -S 64"
  echo "rping -V -C 5 -S 4001"
  echo "rping -V -C 5 -S 65000 -q"
  echo "ucmatose -C 10 -S 100"
  echo "ucmatose -c 10 -C 10 -S 4097"
  echo "udaddy -C 10 -S 100"
  echo "udaddy -c 10 -C 10 -S 1024"
  echo "cmtime -c 1"
  echo "cmtime -c 50"
  # Its sender waits for no completion, and here is gone when only the first message of each of its queue pairs has left. Each receiver hears all senders, and waits for so
  # many messages.
  echo "mckey -c 1 -C 1 -S 100"
  echo "mckey -c 4 -C 4 -S 4096"
}

# Hosts with IPv6 addresses: a few of each, by what goes through other code than with IPv4.
rows_ipv6() {
  echo "ipv6 ib_write_bw -c RC -s 65537 -q 4 -n 10 -b"
  echo "ipv6 ib_send_bw -c RC -s 1 -q 1 -n 50 -e"
  echo "ipv6 ib_send_lat -c RC -s 4095 -n 20"
  echo "ipv6 ib_read_bw -c RC -s 1048577 -q 1 -n 5"
  echo "ipv6 ib_atomic_bw -A FETCH_AND_ADD -c RC -q 16 -n 10"
  echo "ipv6 ib_write_bw -c UC -s 65537 -q 1 -n 10"
  echo "ipv6 ib_send_bw -c UD -s 4096 -q 1 -n 50 -b"
  echo "ipv6 ib_send_lat -c UD -s 1 -n 20"
  echo "ipv6 ibv_rc_pingpong -m 4096 -s 65537 -n 20 -c"
  echo "ipv6 ibv_uc_pingpong -m 1024 -s 4096 -n 50 -c"
  echo "ipv6 ibv_ud_pingpong -s 2048 -n 50 -c"
  echo "ipv6 rping -V -C 5 -S 65000"
  echo "ipv6 ucmatose -c 10 -C 10 -S 4097"
  echo "ipv6 udaddy -c 10 -C 10 -S 1024"
  printf 'ipv6 ib_* -R\tperftest 4.5 takes no IPv6 address by rdma_cm\n'
}

# ucx_perftest 1.13 checks no data: it times, and ends well or not.
rows_ucx() {
  local test sizes size
  for test in tag_lat tag_bw tag_sync_lat ucp_put_lat ucp_put_bw ucp_get stream_lat stream_bw ucp_am_lat ucp_am_bw; do
    case ${LAB_ROWS:-short}$test in
      all*) sizes="1 8 4097 65537 4194304" ;;
      *_lat) sizes="8" ;;
      *) sizes="65537 4194304" ;;
    esac
    for size in $sizes; do
      echo "ucx_perftest -t $test -s $size -n $((size > 1000000 ? 3 : 10)) -w 1"
    done
  done
  for test in ucp_add ucp_fadd ucp_swap ucp_cswap; do
    for size in 4 8; do echo "ucx_perftest -t $test -s $size -n 10 -w 1"; done
  done
}

rows_fi() {
  local size
  for size in 1 4096 65536 1048576; do
    echo "fi_pingpong -p verbs;ofi_rxm -e rdm -I 5 -S $size -c"
  done
  echo "fi_pingpong -p verbs;ofi_rxm -e rdm -m tagged -I 5 -S 65536 -c"
  echo "fi_pingpong -p verbs -e msg -I 5 -S 4096 -c"
  [[ ${LAB_ROWS:-short} != all ]] || echo "fi_pingpong -p verbs;ofi_rxm -e rdm -I 5 -S all -c"
}

# Error paths, each ended by what both programs see (errors.py).
rows_errors() {
  local case
  for case in write_imm good_then_wrong_rkey write_wrong_rkey read_wrong_rkey atomic_wrong_rkey write_beyond read_beyond no_remote_access \
    send_too_long no_receive_0 no_receive_1 no_receive_7 late_receive_7 target_gone_64 target_gone_1000000; do
    echo "errors.py $case"
  done
}

# Blocks of 4 KiB go within commands, of 64 KiB by one READ or WRITE, of 1 MiB by several; so many under way.
rows_nvme() {
  echo "nvme.sh 4k 16"
  echo "nvme.sh 64k 8"
  echo "nvme.sh 1M 4"
}

rows_nfs() {
  echo "nfs.sh 4.2"
  echo "nfs.sh 3"
}

# One row, which brings one of each of its cases.
rows_pyverbs() { echo "verbs-suite.py ${LAB_CASES:-}"; }

# What happens in the midst of a stream of operations (faults.py).
rows_faults() {
  local fault operation
  for fault in killed host_gone cut_1s cut_long; do
    for operation in write send read; do echo "faults.py ${fault}_$operation"; done
  done
  # By rdma_cm it is 17 or more.
  echo "faults.py cut_1s_read 18"
}
