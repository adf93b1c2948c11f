#!/usr/bin/env bash
# boot.sh SCRIPT [SECONDS] - runs SCRIPT (of this folder, or a path) as root inside a throwaway virtual machine that has what most
# development machines lack: tc netem, and Soft-RoCE (rdma_rxe), i.e. real kernel verbs.
#
# The guest sees this machine's whole root file system (so every installed program and everything under target/
# runs as it is) with a layer in memory over it: it can write anywhere, nothing of it lasts. The scripts of this folder are on /mnt,
# with whatever SCRIPT leaves there: that is kept in LAB_OUT (default: a temporary folder, removed). SCRIPT's output goes to stdout as it
# comes; its exit status is this script's. Variables named LAB_* are handed on to SCRIPT.
# If SCRIPT leaves captures in judge/ (judged.sh), judge.py has the last word: exit status 1 if it finds a false completion, 2 if it cannot tell.
# Needs: qemu-system-x86, busybox-static, cpio, kmod, xz-utils. KVM is not used; software emulation (TCG) boots in about 10 s.
# Timings inside are for comparing runs inside one boot, never absolute figures.
set -euo pipefail
script=$1 limit=${2:-120}
here=$(cd "$(dirname "$0")" && pwd)
[[ -e $script ]] || script=$here/$script
cache=${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/longhaul-lab}

prepare_kernel() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"; flock 9
  if [[ ! -e $cache/vmlinuz ]]; then
    rm -rf "$cache/deb" "$cache/root" "$cache/init"; mkdir -p "$cache/deb"
    local package
    package=$(apt-cache depends linux-image-6.12-amd64 2>/dev/null | awk '/Depends:/ {print $2; exit}') || true
    [[ -n $package ]] || package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
    (cd "$cache/deb" && apt-get download -q "$package" >/dev/null && dpkg -x ./*.deb "$cache/root")
    rm -rf "$cache/deb"
    version=$(ls "$cache/root/lib/modules")
    depmod -b "$cache/root" "$version"
    # the initial file system: busybox and the modules that mount the host's root over 9p
    mkdir -p "$cache/init/bin" "$cache/init/mods"
    cp /bin/busybox "$cache/init/bin/"
    for module in 9pnet_virtio 9p virtio_pci overlay; do
      modprobe -d "$cache/root" -S "$version" --show-depends "$module" | awk '/^insmod/ {print $2}'
    done | awk '!seen[$0]++' | while read -r file; do
      name=$(basename "${file%.xz}")
      case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac > "$cache/init/mods/$name"
      echo "$name" >> "$cache/init/mods/order"
    done
    # The mark that all of this is there.
    cp "$cache/root/boot/vmlinuz-$version" "$cache/vmlinuz.new"
    mv "$cache/vmlinuz.new" "$cache/vmlinuz"
  fi
  cp "$here/init" "$cache/init/init"; chmod +x "$cache/init/init"
  # Of runs that were killed outright.
  find "$cache" -maxdepth 1 -name 'initrd.*.gz' -mmin +1440 -delete
  (cd "$cache/init" && find . | cpio -o -H newc 2>/dev/null | gzip -1 > "$cache/initrd.$$.gz")
  exec 9>&-
}

# Emulated instructions cost what their emulation costs: carry-less multiplication and 256-bit vectors, nearly free on a real processor, are
# the slowest way to do their work here, and so are `rep movsb` (erms: the kernel's copies to and from programs, byte by byte) and what guards
# or deepens each access to memory (smap, smep, pku, umip, la57). Without cx16 since QEMU 7.2 leaves stale flags behind cmpxchg16b, and a kernel
# interrupted there once in a while returns into the void.
# AES instructions are not: with them the gateways agree on AEGIS-128L, five times as fast as ChaCha20 here.
cpu=${LAB_CPU:-max,-vaes,-pclmulqdq,-vpclmulqdq,-avx2,-erms,-smap,-smep,-pku,-umip,-la57,-cx16}

share=${LAB_OUT:-}
[[ -n $share ]] || { share=$(mktemp -d); remove_share=$share; }
qemu='' follow=''
cleanup() {
  [[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true
  [[ -z $follow ]] || kill "$follow" 2>/dev/null || true
  rm -f "$cache/initrd.$$.gz"
  [[ -z ${remove_share:-} ]] || rm -rf "$remove_share"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

prepare_kernel
mkdir -p "$share"; rm -rf "$share/judge"
cp "$here"/*.sh "$here"/*.py "$share/"; [[ $(dirname "$(realpath "$script")") == "$here" ]] || cp "$script" "$share/"
# What scripts use of the source tree is where it is: the machine sees all of this one's files.
export LAB_TREE=${LAB_TREE:-$(realpath "$here/../..")}
export -p | grep -E ' LAB_' > "$share/.env" || :

start_machine() {
  rm -f "$share/.status" "$share/.console" "$share/.started"; : > "$share/.log"
  # The kernel neither clears pages before it fills them, nor guards against speculation that an emulator does not do, nor keeps accounts of what
  # this machine never asks about: a packet passes through hundreds of such checks, each emulated. Nor does it doubt the clock: a busy host makes it seem wrong, and
  # what the kernel then rewrites of its own code, the emulator at times runs half-written.
  # If this script is killed outright, the machine goes too.
  setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 \
    -accel tcg,thread=multi -cpu "$cpu" -smp 2 -m 3072 -M q35 -nographic -no-reboot -nic none \
    -kernel "$cache/vmlinuz" -initrd "$cache/initrd.$$.gz" \
    -append "console=ttyS0 quiet panic=-1 init_on_alloc=0 mitigations=off \
hardened_usercopy=off randomize_kstack_offset=off lsm= audit=0 psi=0 cgroup_disable=memory nowatchdog tsc=reliable lab_cache=$cache lab_script=$(basename "$script")" \
    -virtfs "local,path=/,mount_tag=root,security_model=none,multidevs=remap,readonly=on" \
    -virtfs "local,path=$share,mount_tag=work,security_model=none,multidevs=remap" \
    > "$share/.console" 2>&1 < /dev/null & qemu=$!
}

# Whether the machine came as far as the script. On a busy host an emulated processor at times never gets past the firmware, and once in some
# twenty boots the kernel meets an error of the emulation and panics.
has_started() {
  local waited
  for ((waited = 0; waited < 90; waited++)); do
    [[ -e $share/.started ]] && return 0
    kill -0 "$qemu" 2>/dev/null || return 1
    sleep 1
  done
  return 1
}

for attempt in 1 2 3; do
  start_machine
  has_started && break
  echo "the machine did not boot (attempt $attempt)" >&2
  grep -a -m 5 -E 'BUG|Oops|RIP:|Kernel panic' "$share/.console" >&2 || true
  kill "$qemu" 2>/dev/null || true
  wait "$qemu" || true
  qemu=''
done
tail -q -n +1 -f "$share/.log" & follow=$!
[[ -z $qemu ]] || wait "$qemu" || true
qemu=''; sleep 0.3
[[ -s $share/.log ]] || tail -20 "$share/.console"
status=$(cat "$share/.status" 2>/dev/null || echo 124)
if [[ -d $share/judge ]]; then
  # What programs that tell nothing do between two polls cannot be judged.
  some=(); [[ ${LAB_JUDGE:-identity} != all ]] || some=(--some)
  python3 "$here/judge.py" "${some[@]}" "$share"/judge/* || { judged=$?; (( status != 0 )) || status=$judged; }
fi
exit "$status"
