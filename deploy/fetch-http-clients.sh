#!/usr/bin/env bash
# Puts OpenAI's Python client, by hashes, into build/http-clients/, for the tests of HTTP. Prints the
# folder. Does nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/build/http-clients
list=$root/deploy/http-clients-requirements.txt

if ! cmp --silent "$list" "$folder/requirements.txt"; then
  rm -rf "$folder"
  mkdir -p "$folder"
  # For the Python that the tests run with, whatever comes first in PATH.
  python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --target "$folder" -r "$list" >&2
  cp "$list" "$folder/requirements.txt"
fi
echo "$folder"
