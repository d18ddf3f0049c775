#!/usr/bin/env bash
# Static checks and sanitizer runs. Each prints what it did and exits non-zero on the first finding.
#   deploy/check.sh format            clang-format would change nothing
#   deploy/check.sh tidy [BASE]       clang-tidy on the .cc files changed since BASE (default HEAD~1); BASE=all: every file
#   deploy/check.sh asan              Address + UndefinedBehavior on everything below server/
#   deploy/check.sh tsan              Thread on queue, engine and reactors
#   deploy/check.sh all               the full matrix, dev and complete sanitizer runs included (about an hour on two cores)
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

format() {
  git ls-files '*.cc' '*.h' '*.cu' | xargs clang-format --dry-run --Werror
  echo "format: ok"
}

tidy() {
  local base=${1:-HEAD~1} files
  if [ "$base" = all ]; then
    files=$(git ls-files '*.cc' | grep -v '^tests/reference/')
  else
    git rev-parse -q --verify "$base^{commit}" >/dev/null || base=$(git rev-list --max-parents=0 HEAD | tail -n 1)
    files=$(git diff --name-only --diff-filter=d "$base" -- '*.cc')
  fi
  cmake --preset tidy -DQUIRE_SERVER=ON >/dev/null
  # Generated sources (protobuf) must exist before anything that includes them is read.
  ninja -C build/tidy proto_sources >/dev/null
  local known
  known=$(python3 -c 'import json; print("\n".join(e["file"] for e in json.load(open("build/tidy/compile_commands.json"))))')
  local list=() f
  for f in $files; do grep -qxF "$PWD/$f" <<<"$known" && list+=("$f"); done
  if [ ${#list[@]} -gt 0 ]; then
    printf '%s\n' "${list[@]}" | xargs -P "$jobs" -n 1 clang-tidy --quiet -p build/tidy 2>/dev/null
  fi
  echo "tidy: ok, ${#list[@]} files"
}

# A build directory of its own, so that a run without the server does not undo one with it.
asan() {
  cmake --preset asan -B build/asan-core -DQUIRE_SERVER=OFF >/dev/null
  cmake --build build/asan-core -j "$jobs"
  ctest --test-dir build/asan-core --output-on-failure -j "$jobs"
}

# gcc 12's TSan can't map its shadow under high address-space randomisation.
run_tsan() { setarch "$(uname -m)" -R env TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1" "$@"; }

tsan() {
  cmake --preset tsan >/dev/null
  cmake --build --preset tsan -j "$jobs" --target thread_pool_test bounded_queue_test pool_toucher_test engine_test engine_chaos_test server_test connection_limit_test server_faults_test http_stream_test http_daemon_test kv_event_hub_test
  run_tsan ctest --test-dir build/tsan --output-on-failure -R '^(thread_pool|bounded_queue|pool_toucher|engine|engine_chaos|server|connection_limit|server_faults|http_stream|http_daemon|kv_event_hub)_test$'
}

all() {
  format
  tidy all
  for preset in release dev asan; do
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset" -j "$jobs"
    ctest --preset "$preset"
  done
  tsan
}

"$@"
