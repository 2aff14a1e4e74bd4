#!/bin/bash
# Makes a volume with sectors of 16 KiB, on a machine whose pages are as large (mkfs.btrfs 6.2 takes
# them from there), and copies it while it is mounted, so that a log is left in it:
#
#   sectors-16k.sh OUT     # OUT gets volume.img, names.txt, sums.txt
#
# sectors-16k.tar.xz has been made by it under Linux 6.12 of arm64 (scripts/with-kernel.sh):
#   tar -cJSf sectors-16k.tar.xz volume.img names.txt sums.txt
set -e
out=$1 image=$(mktemp) at=$(mktemp -d)
truncate -s 256M "$image"
mkfs.btrfs -q -f -s 16384 -n 16384 -m single -L sectors "$image"
mount -o loop,max_inline=4096 "$image" "$at"
btrfs subvolume create "$at/s"
cd "$at/s"
words() { for n in $(seq 1 "$1"); do echo "line $n of $2, as long as it takes"; done; }
for c in none zlib lzo zstd; do
  mkdir $c
  [ $c = none ] || btrfs property set $c compression $c
  words 20 $c >$c/inline
  words 300 $c >$c/small
  words 9000 $c >$c/large
  { head -c 16384 /dev/urandom; words 400 $c; } >$c/mixed
done
sync
truncate -s 1000003 none/holes
dd if=/dev/urandom of=none/holes bs=16384 seek=7 count=1 conv=notrunc
fallocate -l 200000 none/preallocated
words 100 there | dd of=none/preallocated bs=1000 seek=50 conv=notrunc
words 1 start >none/grown
sync
cp --reflink=always zlib/large zlib/clone
setfattr -n user.note -v sixteen lzo/small
ln lzo/small link
ln -s lzo/large sym
mkfifo fifo
btrfs subvolume snapshot -r . ../before
for c in none zlib lzo zstd; do words 10 again | dd of=$c/large bs=1 seek=100000 conv=notrunc; done
words 50 later >lzo/small
truncate -s 12000 none/grown
cp --reflink=always lzo/large lzo/clone
btrfs subvolume snapshot -r . ../after
words 600 logged >logged
head -c 20000 /dev/urandom >logged.random
words 3000 packed >lzo/logged
mv none/inline none/renamed
# Inline data of nearly a sector, and now of less than 4 KiB.
words 60 shorter >zlib/small
truncate -s 5000 zstd/small
for name in logged logged.random lzo/logged none/renamed zlib/small zstd/small; do dd if=/dev/null of=$name conv=notrunc,fsync; done
cp "$image" "$out/volume.img"
cd "$at"
find . -mindepth 1 -printf '%P %y %s %b %n %m\n' | LC_ALL=C sort >"$out/names.txt"
find . -type f | LC_ALL=C sort | xargs sha256sum >"$out/sums.txt"
cd /
umount "$at"
rm "$image"
