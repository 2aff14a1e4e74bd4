#!/usr/bin/env bash
# make install PREFIX=/usr/local [DESTDIR=...]: the binary, mount helpers, manual pages, shell completions. Builds nothing.
# BTRFS=1: also a link of the name btrfs, if no other program of that name is in the way.
# The installed binary has no debug information; that of target/ keeps its own.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
binary=${COWSHED:-target/release/cowshed}

say() { printf 'install: %s\n' "$*"; }

if [ ! -x "$binary" ]; then
  say "$binary is not there: run make build first"
  exit 1
fi
# The nearest directory that exists must be ours to write to.
near=$root
while [ ! -e "$near" ]; do near=$(dirname "$near"); done
if [ ! -w "$near" ]; then
  say "no permission to write to $near: run as root, or with PREFIX=\$HOME/.local"
  exit 1
fi

# Copies a program without symbols. Without any tool for it the program is installed as it is.
copy_stripped() {
  local tool
  for tool in strip llvm-strip eu-strip; do
    if command -v "$tool" >/dev/null && "$tool" -o "$2" "$1" 2>/dev/null; then return; fi
  done
  say "no strip, llvm-strip or eu-strip that works: the program keeps its debug information"
  cp "$1" "$2"
}

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$binary" man "$pages"
copy_stripped "$binary" "$pages/stripped"
install -Dm755 "$pages/stripped" "$root/bin/cowshed"
# mount(8) looks for its helpers in /sbin alone; an installation elsewhere has them beside the program.
helpers=$root/bin
case $prefix in /usr | /usr/local) helpers=${DESTDIR:-}/sbin ;; esac
if [ -d "$helpers" ] || mkdir -p "$helpers"; then
  for name in mount.cowshed mount.fuse.cowshed; do ln -sfn "$prefix/bin/cowshed" "$helpers/$name"; done
fi
if [ "${BTRFS:-}" = 1 ]; then
  link=$root/bin/btrfs
  if [ -e "$link" ] || [ -L "$link" ] && [ "$(readlink "$link")" != "$prefix/bin/cowshed" ]; then
    say "$link is there and stays: no link of that name is made"
  elif other=$(command -v btrfs) && [ "$(readlink -f "$other")" != "$(readlink -f "$root/bin/cowshed")" ]; then
    say "$other is there: no link of that name is made"
  else
    ln -sfn "$prefix/bin/cowshed" "$link"
    "$binary" completions --name btrfs bash >"$pages/bash-btrfs"
    install -Dm644 "$pages/bash-btrfs" "$root/share/bash-completion/completions/btrfs"
  fi
fi
for page in "$pages"/*.1; do
  install -Dm644 "$page" "$root/share/man/man1/$(basename "$page")"
done
"$binary" completions bash >"$pages/bash"
"$binary" completions zsh >"$pages/zsh"
"$binary" completions fish >"$pages/fish"
install -Dm644 "$pages/bash" "$root/share/bash-completion/completions/cowshed"
install -Dm644 "$pages/zsh" "$root/share/zsh/site-functions/_cowshed"
install -Dm644 "$pages/fish" "$root/share/fish/vendor_completions.d/cowshed.fish"
say "cowshed, its manual pages and completions are in $root"
