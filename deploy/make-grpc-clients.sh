#!/usr/bin/env bash
# Makes the virtual environment of the gRPC clients in the tests (70 MB of wheels, hashes checked)
# and prints its folder. Does nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
requirements=$root/deploy/grpc-clients-requirements.txt
target=${QUIRE_GRPC_CLIENTS:-$root/build/grpc-clients}

# Written last, so that what was interrupted is made again.
stamp=$(sha256sum <"$requirements")
if [ "$(cat "$target/made" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$target"
  mkdir -p "$(dirname "$target")"
  # The system's Python, whatever comes first in PATH. Without Debian's python3-venv an environment
  # can't get a pip of its own, so it is filled from outside. jinja2, for chat, is the system's.
  python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  "$python" -m venv --system-site-packages --without-pip "$target" >&2
  packages=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-deps --require-hashes --only-binary :all: --target "$packages" -r "$requirements" >&2
  echo "$stamp" >"$target/made"
fi
echo "$target"
