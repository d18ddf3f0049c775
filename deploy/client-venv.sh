#!/usr/bin/env bash
# Installs clients/python, as pip does, into build/client-venv/ with what deploy/client-requirements.txt
# pins, and prints its Python. Does nothing if it is there and nothing of it has changed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${QUIRE_CLIENT_VENV:-$root/build/client-venv}
requirements=$root/deploy/client-requirements.txt
package=$root/clients/python

stamp=$(cd "$root" && find clients/python proto/quire "$requirements" -type f \
  -not -path '*/build/*' -not -path '*.egg-info/*' -not -path '*/__pycache__/*' -print0 |
  sort -z | xargs -0 sha256sum | sha256sum)
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  /usr/bin/python3 -m venv --without-pip "$venv"
  pip() {
    /usr/bin/python3 -m pip --python "$venv/bin/python" --quiet --disable-pip-version-check "$@" >&2
  }
  pip install --no-deps --require-hashes -r "$requirements"
  # The checkout stays as it is: the package is built from a copy.
  mkdir -p "$venv/source/clients" "$venv/source/proto/quire/v1"
  cp -r "$package" "$venv/source/clients/python"
  cp "$root/proto/quire/v1/quire.proto" "$venv/source/proto/quire/v1/"
  rm -rf "$venv/source/clients/python/build"
  PATH="$venv/bin:$PATH" pip install --no-deps --no-build-isolation "$venv/source/clients/python"
  echo "$stamp" >"$venv/stamp"
fi
echo "$venv/bin/python"
