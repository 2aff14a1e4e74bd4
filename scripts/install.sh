#!/usr/bin/env bash
# make install PREFIX=/usr/local [DESTDIR=...]: the binary, manual pages, shell completions. Builds nothing.
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

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$binary" man "$pages"
install -Dm755 "$binary" "$root/bin/cowshed"
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
