#!/usr/bin/env bash
# Runs cargo, also where rustup put it into the home directory and the shell does not know yet.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo >/dev/null || export PATH="$HOME/.cargo/bin:$PATH"
exec cargo "$@"
