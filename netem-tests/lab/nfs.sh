# nfs.sh VERSION [FILES] - NFS over RDMA between the kernels of both sites: nfsd at 10.0.1.1:20049 exports a tree in memory, a mount of it (proto=rdma) at 10.0.0.1 is
# read from and written to: a tree of so many files (default LAB_FILES, 300), empty to 300 kB, in four folders at a time, one way and then the other. The copies' checksums
# are taken where they arrived, of the one that was written on the server's own file system; then it is unmounted. With LAB_SECONDS it is all copied again until they are over.
#
# Both kernels are this one: what tells that the data went by way of both RDMA devices are their counts of packets, which are looked at.
#
# Prints what was copied, in what time, and how often the client connected. Exit status 0: mounted, equal, unmounted; 1: not; 3: equal, but the connection was lost
# meanwhile and made anew (the kernel hides that from the programs).
version=${1:?NFS version} files=${2:-${LAB_FILES:-300}}
. /mnt/modules.sh
here=/run/nfs-lab
pids=()

clear_away() {
  mountpoint -q $here/mount && umount -f -l $here/mount
  rpc.nfsd 0; exportfs -ua
  for pid in "${pids[@]}"; do kill $pid; wait $pid; done 2> /dev/null
  mountpoint -q $here/site1 && umount $here/site1
  rm -rf $here
}

make_tree() { # folder: files of many sizes, what is in them is not repeated
  local number
  mkdir -p $1/{0,1,2,3}
  for ((number = 0; number < files; number++)); do
    head -c $((number % 50 == 49 ? 300000 : number * 7919 % 20000)) /dev/urandom > $1/$((number % 4))/$number
  done
  : > $1/0/empty
}

copy() { # from, to: four folders at a time
  local folder copies=() status=0
  mkdir $2 || return 1
  for folder in 0 1 2 3; do cp -r $1/$folder $2/ & copies+=($!); done
  for folder in "${copies[@]}"; do wait $folder || status=1; done
  return $status
}

sums() { (cd $1 && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
equal() { [[ $(sums $1) == "$(sums $2)" ]] || { echo "$1 and $2 differ"; return 1; }; }
packets() { echo $(($(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/$1) + 0)); }

serve() {
  load nfsd rpcrdma nfs nfsv4 nfsv3 || return 1
  # A client of the same kernel would reach past RPC to the files otherwise.
  [[ ! -e /sys/module/nfs/parameters/localio_enabled ]] || echo N > /sys/module/nfs/parameters/localio_enabled
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd || return 1
  mkdir -p $here/site1 $here/mount && mount -t tmpfs site1 $here/site1 || return 1
  rpcbind -f & pids+=($!)
  # Nobody has anything to reclaim.
  echo 10 > /proc/fs/nfsd/nfsv4leasetime; echo 10 > /proc/fs/nfsd/nfsv4gracetime
  # From 10.0.1.1 as well: version 3 asks mountd by TCP, and that goes over lo.
  exportfs -i -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 10.0.0.1:$here/site1 10.0.1.1:$here/site1 || return 1
  rpc.mountd -F & pids+=($!)
  sleep 1
  rpc.nfsd --rdma=20049 4 || return 1
  echo Y > /proc/fs/nfsd/v4_end_grace || true
}

trap 'dmesg | tail -n 15; clear_away' EXIT
dmesg -C
serve || { echo "no server"; exit 1; }
make_tree $here/site1/tree || exit 1
case $version in
  3) path=$here/site1 options=vers=3,nolock,mountproto=tcp ;;
  *) path=/ options=vers=$version ;;
esac
# Nothing cached when it comes to be read: each copy's data goes over the link.
mount -t nfs -o $options,proto=rdma,port=20049,hard,timeo=600 10.0.1.1:$path $here/mount || { echo "mount ended with $?"; exit 1; }
sent=$(packets sent_pkts) received=$(packets rcvd_pkts) began=$SECONDS passes=0
there_and_back() {
  rm -rf $here/site0 $here/site1/back
  copy $here/mount/tree $here/site0 || { echo "reading: cp failed"; return 1; }
  equal $here/site1/tree $here/site0 || return 1
  read_in=$((SECONDS - began)) began=$SECONDS
  copy $here/site0 $here/mount/back || { echo "writing: cp failed"; return 1; }
  written_in=$((SECONDS - began)) began=$SECONDS passes=$((passes + 1))
}
there_and_back || exit 1
until (( SECONDS >= ${LAB_SECONDS:-0} )); do
  equal $here/site1/tree $here/site1/back || exit 1
  # What is read has to come over the link again.
  echo 3 > /proc/sys/vm/drop_caches
  there_and_back || exit 1
  echo "pass $passes: read in $read_in s, written in $written_in s"
done
connects=$(awk '/device .*nfs-lab/ { ours = 1 } ours && /xprt:/ { print $5; exit }' /proc/self/mountstats)
umount $here/mount || { echo "umount ended with $?"; exit 1; }
equal $here/site1/tree $here/site1/back || exit 1
bytes=$(du -bs $here/site0 | cut -f1)
sent=$(($(packets sent_pkts) - sent)) received=$(($(packets rcvd_pkts) - received))
echo "$((files + 1)) files, $bytes bytes: read in $read_in s, written in $written_in s, $connects connections; rxe0 sent $sent packets, got $received"
(( sent > bytes / 4096 && received > bytes / 4096 )) || { echo "the data did not go by way of rxe0"; exit 1; }
(( connects == 1 )) || exit 3
