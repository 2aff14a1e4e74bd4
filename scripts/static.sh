#!/usr/bin/env bash
# Builds the program without any shared library: one file that runs on every Linux of this
# architecture, in containers and in rescue systems that have no glibc. Prints where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'static: %s\n' "$*"; }
command -v cargo >/dev/null || export PATH="$HOME/.cargo/bin:$PATH"

target=$(uname -m)-unknown-linux-musl
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else say "needs root: sudo $*"; sudo "$@"; fi; }
if ! command -v musl-gcc >/dev/null; then
  if command -v apt-get >/dev/null; then
    say 'installing with apt-get: musl-tools'
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends musl-tools >/dev/null
  elif command -v dnf >/dev/null; then
    say 'installing with dnf: musl-gcc'
    as_root dnf install -y -q musl-gcc
  else
    say 'no apt-get and no dnf here; please install musl-gcc'
    exit 1
  fi
fi
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
  command -v rustup >/dev/null || { say "please install Rust's standard library for $target"; exit 1; }
  say "installing Rust's standard library for $target with rustup"
  rustup target add "$target"
fi

cc=CC_${target//-/_}
export "$cc=musl-gcc"
cargo build --release -p cowshed --target "$target"
say "${CARGO_TARGET_DIR:-target}/$target/release/cowshed"
