# nvme.sh BLOCK_SIZE IO_DEPTH - NVMe over RDMA between the kernels of both sites: nvmet-rdma at 10.0.1.1:4420 exports 64 MiB of memory (null_blk), nvme-rdma connects
# from 10.0.0.1, and fio reads and writes at random on two queues, with a crc32c in each block that it reads back, pass after pass of LAB_PASS (default 4M) until
# LAB_SECONDS (default 15) are over; then it disconnects. Of 4 KiB, data travel to the target within the command's SEND; of more, the target READs them. What
# is read from it comes by WRITE, and its completion by SEND with Invalidate.
#
# Prints fio's counts of each pass, and what the kernel logged. Exit status 0: connected, verified, disconnected; 1: not; 3: all the data were right, but the
# connection was lost meanwhile and made anew (the kernel's error recovery hides that from fio).
block=${1:?block size} depth=${2:?I/O depth}
. /mnt/modules.sh
nvmet=/sys/kernel/config/nvmet memory=/sys/kernel/config/nullb/lab

target() {
  mkdir $memory && echo 64 > $memory/size && echo 1 > $memory/memory_backed && echo 4096 > $memory/blocksize && echo 1 > $memory/power || return 1
  mkdir $nvmet/subsystems/lab && echo 1 > $nvmet/subsystems/lab/attr_allow_any_host || return 1
  mkdir $nvmet/subsystems/lab/namespaces/1 && echo -n /dev/lab > $nvmet/subsystems/lab/namespaces/1/device_path || return 1
  echo 1 > $nvmet/subsystems/lab/namespaces/1/enable || return 1
  mkdir $nvmet/ports/1 && echo rdma > $nvmet/ports/1/addr_trtype && echo ipv4 > $nvmet/ports/1/addr_adrfam || return 1
  echo 10.0.1.1 > $nvmet/ports/1/addr_traddr && echo 4420 > $nvmet/ports/1/addr_trsvcid || return 1
  ln -s $nvmet/subsystems/lab $nvmet/ports/1/subsystems/lab
}

clear_away() {
  nvme disconnect -n lab > /dev/null 2>&1
  rm -f $nvmet/ports/1/subsystems/lab
  [[ ! -e $nvmet/ports/1 ]] || rmdir $nvmet/ports/1
  [[ ! -e $nvmet/subsystems/lab/namespaces/1 ]] || rmdir $nvmet/subsystems/lab/namespaces/1
  [[ ! -e $nvmet/subsystems/lab ]] || rmdir $nvmet/subsystems/lab
  [[ ! -e $memory ]] || { echo 0 > $memory/power; rmdir $memory; }
}

device() { # the namespace's block device, as soon as there is one
  local found
  for _ in {1..100}; do
    found=$(echo /dev/nvme*n1); [[ ! -b $found ]] || { echo $found; return 0; }
    sleep 0.1
  done
  return 1
}

load configfs null_blk nvmet nvmet-rdma nvme-rdma || exit 1
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config || exit 1
trap 'dmesg | tail -n 30; clear_away' EXIT
dmesg -C
target || { echo "no target"; exit 1; }
nvme connect -t rdma -a 10.0.1.1 -s 4420 -n lab -w 10.0.0.1 --nr-io-queues=2 --queue-size=32 || { echo "nvme connect ended with $?"; exit 1; }
disk=$(device) || { echo "no block device"; exit 1; }
began=$SECONDS passes=0
while (( passes == 0 || SECONDS - began < ${LAB_SECONDS:-15} )); do
  passes=$((passes + 1))
  fio --name=pass-$passes --filename=$disk --rw=randrw --bs=$block --size=${LAB_PASS:-4M} --randseed=$passes --direct=1 --ioengine=libaio --iodepth=$depth \
    --verify=crc32c --verify_fatal=1 --output-format=json > /run/fio.json || { echo "fio ended with $?"; exit 1; }
  awk -v pass=$passes '/"error"/ { error = error $3 } /"total_ios"/ { sum = sum " " $3 } END { print "pass " pass ": error " error " total_ios" sum }' /run/fio.json
done
nvme disconnect -n lab | grep 'disconnected 1 ' || { echo "nvme disconnect did not end well"; exit 1; }
echo "$passes passes in $((SECONDS - began)) s"
! dmesg | grep -qE 'nvme.*(error recovery|[Rr]econnect)|keep-alive timer .*expired' || exit 3
