#!/usr/bin/env bash
# Installs what building and testing need, through the system's package manager, and says what it does.
# Debian, Ubuntu and Fedora (and their kin); elsewhere it names what is missing.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }

# command (or commands of which one is enough):debian package:fedora package
needs=(
  cc:gcc:gcc
  git:git:git
  btrfs:btrfs-progs:btrfs-progs
  compsize:btrfs-compsize:compsize
  mkfs.xfs:xfsprogs:xfsprogs
  fusermount3:fuse3:fuse3
  setfattr:attr:attr
  setfacl:acl:acl
  filefrag:e2fsprogs:e2fsprogs
  rsync:rsync:rsync
  losetup:util-linux:util-linux
  fio:fio:fio
  fs_mark:fsmark:fs_mark
  stress-ng:stress-ng:stress-ng
  dpkg-deb:dpkg:dpkg
  sqlite3:sqlite3:sqlite
  python3:python3:python3
  dbench:dbench:dbench
  man:man-db:man-db
  sfdisk:fdisk:util-linux
  fakeroot:fakeroot:fakeroot
  systemd-repart:systemd:systemd-repart
  lsattr:e2fsprogs:e2fsprogs
  xz:xz-utils:xz
  umoci:umoci:umoci
  skopeo:skopeo:skopeo
  btrbk:btrbk:btrbk
  partclone.btrfs:partclone:partclone
  grub-fstest,grub2-fstest:grub-common:grub2-tools-extra
)

missing_deb=() missing_rpm=() missing_cmd=()
for need in "${needs[@]}"; do
  IFS=: read -r cmd deb rpm <<<"$need"
  found=
  for name in ${cmd//,/ }; do
    if PATH="$PATH:/usr/sbin:/sbin" command -v "$name" >/dev/null 2>&1; then found=1; fi
  done
  if [ -z "$found" ]; then
    missing_cmd+=("$cmd") missing_deb+=("$deb") missing_rpm+=("$rpm")
  fi
done

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then say "needs root: sudo $*"; sudo "$@"
  else say "please run as root: $*"; return 1
  fi
}

if [ ${#missing_cmd[@]} -gt 0 ]; then
  if command -v apt-get >/dev/null; then
    say "installing with apt-get: ${missing_deb[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing_deb[@]}" >/dev/null
  elif command -v dnf >/dev/null; then
    say "installing with dnf: ${missing_rpm[*]}"
    as_root dnf install -y -q "${missing_rpm[@]}"
  else
    say "no apt-get and no dnf here; please install: ${missing_cmd[*]}"
    exit 1
  fi
fi

# Rust: the edition needs 1.90; a system package that is older does not do.
export PATH="$HOME/.cargo/bin:$PATH"
wanted=1.90
have=$(cargo --version 2>/dev/null | awk '{print $2}' || true)
if [ -z "$have" ] || [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" != "$wanted" ]; then
  say "cargo ${have:-is missing}, $wanted or newer is needed"
  if ! command -v rustup >/dev/null; then
    if command -v apt-get >/dev/null && apt-cache show rustup >/dev/null 2>&1; then
      say "installing rustup with apt-get"
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rustup >/dev/null
    elif command -v dnf >/dev/null; then
      say "installing rustup with dnf"
      as_root dnf install -y -q rustup && rustup-init -y --profile minimal
    else
      say "please install Rust $wanted or newer: https://rustup.rs"
      exit 1
    fi
  fi
  say "installing the stable toolchain with rustup"
  rustup toolchain install stable --profile minimal -c clippy -c rustfmt
  rustup default stable
fi
