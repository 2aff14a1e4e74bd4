#!/usr/bin/env bash
# Runs a command of this machine under another Linux: a virtual machine that boots the kernel of an
# unpacked Debian package (`dpkg -x linux-image-*.deb DIR`), with this machine's files as its root.
# What the command changes there is lost, but for the directory `--out DIR`.
#
#   scripts/with-kernel.sh [--mem MIB] [--cpus N] [--out DIR] [--path DIR]
#                          [--root DIR [--share DIR]...] DIR COMMAND [ARGUMENT...]
#
# `--path DIR` puts programs before others, such as newer xfsprogs. Needs qemu-system-x86_64,
# busybox (static), depmod, modprobe and cpio; no root of its own, if these files may be read.
# A kernel of arm64 needs qemu-system-aarch64, and files of that architecture: `--root DIR`, with
# busybox (static) among them. There, the command sees of this machine what `--share` names, and
# the working directory.
# The exit status is the command's; 125 where the virtual machine did not get as far.
set -euo pipefail

mem=4096 cpus=2 out='' path='' root=/ shared=()
while [ $# -gt 0 ]; do
  case $1 in
    --mem) mem=$2; shift 2 ;;
    --cpus) cpus=$2; shift 2 ;;
    --out) out=$(realpath "$2"); shift 2 ;;
    --path) path=$(realpath "$2"); shift 2 ;;
    --root) root=$(realpath "$2"); shift 2 ;;
    --share) shared+=("$(realpath "$2")"); shift 2 ;;
    -*) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 125 ;;
    *) break ;;
  esac
done
[ $# -ge 2 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 125; }
dir=$(realpath "$1"); shift
modules=$(ls -d "$dir"/lib/modules/* "$dir"/usr/lib/modules/* 2>/dev/null | head -n 1) || true
[ -n "$modules" ] || { echo "with-kernel: no modules below $dir" >&2; exit 125; }
version=$(basename "$modules")
kernel=$dir/boot/vmlinuz-$version
[ -e "$kernel" ] || kernel=$modules/vmlinuz

busybox=busybox
case $version in
  *arm64*) machine=(qemu-system-aarch64 -M virt) console=ttyAMA0 busybox=$root/bin/busybox ;;
  *) machine=(qemu-system-x86_64) console=ttyS0 ;;
esac
PATH="$PATH:/usr/sbin:/sbin"
for tool in "${machine[0]}" "$busybox" depmod modprobe cpio; do
  command -v "$tool" >/dev/null || { echo "with-kernel: $tool is missing" >&2; exit 125; }
done

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
exchange=${out:-$work/out}; mkdir -p "$exchange"

# The initial file system: busybox, and the modules that a root over 9p and the tests need.
init=$work/init; mkdir -p "$init"/{bin,proc,sys,dev,host,new,out,rw} "$init/lib/modules"
cp "$(command -v "$busybox")" "$init/bin/busybox"
cp -r "$modules" "$work/$version"; mkdir -p "$work/m/lib/modules"; mv "$work/$version" "$work/m/lib/modules/"
depmod -b "$work/m" "$version"
load() { # NAME...: the files of the modules and of what they need, in order; built-in ones have none
  for name; do
    modprobe -d "$work/m" -S "$version" --show-depends "$name" 2>/dev/null | awk '$1 == "insmod" { print $2 }' || true
  done
}
n=0
while read -r file; do
  n=$((n + 1)); to=$(printf '%s/lib/modules/%03d-%s' "$init" $n "$(basename "${file%.ko*}").ko")
  case $file in *.xz) xz -dc "$file" >"$to" ;; *.zst) zstd -qdc "$file" >"$to" ;; *.gz) gzip -dc "$file" >"$to" ;; *) cp "$file" "$to" ;; esac
done < <(load virtio_pci virtio_console virtio_blk 9pnet_virtio 9p overlay loop fuse cuse crc32c_generic crc32c libcrc32c xxhash_generic \
  sha256_generic blake2b_generic blake2b btrfs xfs dm-mod dm-log-writes dm-flakey | awk '!seen[$0]++')

{
  printf 'cd %q\nexport PATH=%q HOME=/root TERM=dumb\n' "$PWD" "${path:+$path:}$PATH"
  env | grep -E '^(COWSHED_|RUST_|CARGO_|CI=)' | while IFS= read -r line; do printf 'export %q\n' "$line"; done
  printf '%q ' "$@"; echo
} >"$exchange/.command"
if [ "$root" != / ]; then
  printf '%s\n' "$PWD" ${shared[@]+"${shared[@]}"} >"$exchange/.shared"
else
  rm -f "$exchange/.shared"
fi
cat >"$init/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
for d in proc:proc sysfs:sys devtmpfs:dev; do $b mount -t ${d%:*} none /${d#*:}; done
for m in /lib/modules/*.ko; do $b insmod $m 2>/dev/null; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /host || $b poweroff -f
$b mount -t tmpfs -o size=90% none /rw; $b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/host@ROOT@,upperdir=/rw/up,workdir=/rw/work none /new || $b poweroff -f
for d in proc sys dev; do $b mount -o move /$d /new/$d; done
# Of its own, as after each start of a machine: Linux lists some directories of 9p below an overlay
# without end.
$b mount -t tmpfs none /new/run
$b mkdir -p /new/dev/shm /new/dev/pts /new/run/out; $b mount -t tmpfs -o size=90% none /new/dev/shm
$b mount -t devpts none /new/dev/pts
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none out /new/run/out || $b poweroff -f
$b ip link set lo up 2>/dev/null
[ ! -e /new/run/out/.shared ] || while read -r dir; do
  $b mkdir -p "/new$dir" /rw/of"$dir" /rw/at"$dir"
  $b mount -t overlay -o "lowerdir=/host$dir,upperdir=/rw/of$dir,workdir=/rw/at$dir" none "/new$dir"
done </new/run/out/.shared
# Moved onto the root: a process below a mere chroot may make no user namespace.
cd /new; $b mount -o move . /
$b chroot . /bin/bash /run/out/.command <dev/null >dev/hvc0 2>&1
echo $? >run/out/.status
$b sync; $b poweroff -f
INIT
sed -i "s|@ROOT@|${root%/}|" "$init/init"
chmod +x "$init/init"
(cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

rm -f "$exchange/.status"
"${machine[@]}" -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$mem" -display none -no-reboot -monitor none \
  -kernel "$kernel" -initrd "$work/initrd" -append "console=$console panic=-1 quiet mitigations=off random.trust_cpu=on" \
  -serial file:"$exchange/.console" -device virtio-serial-pci -chardev stdio,id=out -device virtconsole,chardev=out \
  -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$exchange",mount_tag=out,security_model=none </dev/null
[ -e "$exchange/.status" ] || { echo "with-kernel: $version did not run the command:" >&2; tail -n 20 "$exchange/.console" >&2; exit 125; }
exit "$(cat "$exchange/.status")"
