# modules.sh - source it inside the lab machine: `load NAME...` loads modules of the machine's kernel, whose files are in the host's cache.
lab_cache=$(sed 's/.*lab_cache=\([^ ]*\).*/\1/' /proc/cmdline)

load() {
  local name options
  for name in "$@"; do
    options=''; [[ $name != null_blk ]] || options=nr_devices=0
    modprobe -d "$lab_cache/root" "$name" $options || { echo "no module $name"; return 1; }
  done
}
