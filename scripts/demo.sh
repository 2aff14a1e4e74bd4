#!/usr/bin/env bash
# make demo: a volume is made, mounted, filled with a real tree, unmounted, checked and looked into;
# then the kernel and btrfs-progs say what they think of it, where they are there. Then a volume of
# XFS, made by mkfs.xfs, is read. Everything happens in a private directory that goes away.
set -euo pipefail
cd "$(dirname "$0")/.."

source_tree=${1:-/usr/share/doc}
tree_mib_max=300

bold() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }
note() { printf 'demo: %s\n' "$*"; }
show() { printf '$ %s\n' "$*" | sed "s#$work/##g; s#$cowshed#cowshed#"; "$@"; }

if [ -z "${COWSHED:-}" ]; then
  note "building (release); the first time takes some minutes"
  scripts/cargo.sh build --release -p cowshed
fi
cowshed=$(realpath "${COWSHED:-target/release/cowshed}")

work=$(mktemp -d "${TMPDIR:-/tmp}/cowshed-demo.XXXXXX")
image=$work/volume.img mnt=$work/mnt
kernel_mounted=
cleanup() {
  set +e
  if mountpoint -q "$mnt"; then
    if [ -n "$kernel_mounted" ]; then umount "$mnt"; else "$cowshed" umount "$mnt"; fi
  fi
  rm -rf "$work"
}
trap cleanup EXIT
mkdir "$mnt"

bold "A volume, made in an image file"
show "$cowshed" mkfs -L demo -b 1g "$image"

# As much of the tree as the demo has patience for: whole directories until the limit is reached.
[ -d "$source_tree" ] || source_tree=/usr/share
list=$work/list
budget=$((tree_mib_max * 1024))
while read -r kib path; do
  [ "$kib" -le "$budget" ] || continue
  budget=$((budget - kib))
  printf '%s\n' "${path#"$source_tree"/}"
done < <(du -skx "$source_tree"/* 2>/dev/null || true) >"$list"

bold "Mounted, with a real tree on it"
can_fuse=
if [ "$(id -u)" = 0 ]; then
  [ -e /dev/fuse ] && can_fuse=1
elif [ -w /dev/fuse ] && command -v fusermount3 >/dev/null; then
  can_fuse=1
fi
if [ -n "$can_fuse" ] && show "$cowshed" mount "$image" "$mnt"; then
  if [ -w "$mnt" ]; then
    note "copying from $source_tree with tar ($(wc -l <"$list") directories)"
    copy() { tar -C "$source_tree" -cf - -T "$list" 2>/dev/null | tar -C "$mnt" -xf - 2>/dev/null; }
    time copy || note "some files could not be read; the rest is there"
    printf '%s\n' "entries: $(find "$mnt" | wc -l)"
    df -h "$mnt"
    note "comparing with the source"
    while read -r name; do
      diff -rq --no-dereference "$source_tree/$name" "$mnt/$name" 2>/dev/null || true
    done <"$list" | head -n 5
  else
    note "the top directory of a fresh volume is root's, and you are not root: nothing is copied"
  fi
  bold "Unmounted: everything is on disk when this returns"
  show "$cowshed" umount "$mnt"
else
  note "FUSE cannot be used here (no /dev/fuse, no fusermount3, or no permission): the volume stays empty"
fi

bold "Checked by Cowshed's own checker, data included"
show "$cowshed" check --check-data-csum "$image"

bold "What is inside, without mounting"
show "$cowshed" ls -l "$image" / | head -n 10
show "$cowshed" inspect chunk "$image"
show "$cowshed" inspect super "$image" | head -n 12

bold "What Linux thinks of it"
if command -v btrfs >/dev/null; then
  show btrfs check --check-data-csum "$image"
else
  note "btrfs-progs are not here"
fi
modprobe -q btrfs 2>/dev/null || true
if [ "$(id -u)" = 0 ] && grep -qw btrfs /proc/filesystems && show mount -t btrfs -o loop "$image" "$mnt"; then
  kernel_mounted=1
  printf '%s\n' "entries: $(find "$mnt" | wc -l)"
  show btrfs filesystem usage "$mnt" 2>/dev/null | head -n 12 || true
  if show btrfs scrub start -B "$mnt" 2>/dev/null; then :; fi
  show umount "$mnt"
  kernel_mounted=
else
  note "the kernel is not asked (that needs root and a kernel with btrfs)"
fi

# A volume of XFS: mkfs.xfs fills it with files of the demo's, by a list (mkfs.xfs(8), -p).
bold "A volume of XFS, as Linux makes it"
if command -v mkfs.xfs >/dev/null; then
  xfs=$work/xfs.img proto=$work/proto
  {
    printf '/dev/null\n0 0\nd--755 0 0\nscripts d--755 0 0\n'
    for file in scripts/*.sh; do printf '%s ---644 0 0 %s\n' "${file##*/}" "$PWD/$file"; done
    printf '$\nreadme l--777 0 0 README.md\nREADME.md ---644 0 0 %s\n$\n' "$PWD/README.md"
  } >"$proto"
  truncate -s 400M "$xfs"
  show mkfs.xfs -q -L demo -p "$proto" "$xfs"
  show "$cowshed" ls -l "$xfs" /scripts
  show "$cowshed" check "$xfs"
  show "$cowshed" inspect super "$xfs" | head -n 12
  if [ -n "$can_fuse" ] && show "$cowshed" mount -o ro "$xfs" "$mnt"; then
    diff -r scripts "$mnt/scripts" && note "the files are equal"
    df -h "$mnt"
    show "$cowshed" umount "$mnt"
  fi
else
  note "xfsprogs are not here: no volume of XFS is shown"
fi
bold "Done."
