#!/usr/bin/env bash
# Makes the virtual environment of guidellm for its test (120 MB of wheels, hashes checked; 415 MB
# unpacked) and prints its Python. Does nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
requirements=$root/deploy/guidellm-requirements.txt
venv=${QUIRE_GUIDELLM_VENV:-$root/build/guidellm}

if ! cmp --silent "$requirements" "$venv/requirements.txt"; then
  rm -rf "$venv"
  # The system's Python, whatever comes first in PATH.
  python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  "$python" -m venv --without-pip "$venv"
  pip() {
    "$python" -m pip --python "$venv/bin/python" "$@" --quiet --disable-pip-version-check \
      --no-deps --only-binary :all: --require-hashes >&2
  }
  # Sixty packages: the time goes into waiting for the index, so several wait at a time.
  mkdir "$venv/parts" "$venv/wheels"
  split -n r/6 <(grep -v '^#' "$requirements") "$venv/parts/"
  downloads=()
  for part in "$venv"/parts/*; do
    pip download -d "$venv/wheels" -r "$part" &
    downloads+=($!)
  done
  for download in "${downloads[@]}"; do wait "$download"; done
  pip install --no-compile --no-index --find-links "$venv/wheels" -r "$requirements"
  rm -rf "$venv/parts" "$venv/wheels"
  cp "$requirements" "$venv/requirements.txt"  # last, so that what was interrupted is made again
fi
echo "$venv/bin/python"
