#!/usr/bin/env bash
# The short set of benches, each under its command line. docs/kernels.md says what they show.
#   deploy/bench.sh MODEL [BUILD_FOLDER]
set -euo pipefail
model=${1:?a .gguf file or a model directory}
cd "$(dirname "$0")/.."
build=${2:-build/release}

run() {
  printf '\n== %s\n' "$*"
  "$build/$@"
}

run quire kernels
run linear_bench --short
run attention_bench --short
run attention_bench --short --heads=32 --kv-heads=8 --head-dim=128
run scaling_bench "$model" --rounds=3
run context_bench "$model" --rounds=5
run quire bench ops --model "$model" --workload W1,W2,W3
