#!/usr/bin/env bash
# Puts XGrammar's source (deploy/third-party-requirements.txt, 2.7 MB) into build/third_party/ and
# prints the folder. The hash of the archive is checked, then deploy/xgrammar-fixes.py is applied. Does
# nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
requirements=$root/deploy/third-party-requirements.txt
version=$(sed -n 's/^xgrammar==\([^ ]*\) .*/\1/p' "$requirements")
sha256=$(sed -n 's/^xgrammar==.*sha256:\([0-9a-f]*\)$/\1/p' "$requirements")
fixes=$root/deploy/xgrammar-fixes.py
folder=${QUIRE_THIRD_PARTY:-$root/build/third_party}
target=$folder/xgrammar-$version

# Written last, so that what was interrupted is fetched again.
stamp="$sha256 $(sha256sum <"$fixes")"
if [ "$(cat "$target/fetched" 2>/dev/null)" != "$stamp" ]; then
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # pip asks a source archive's build backend for its name before it hands the archive over. The
  # real backend would first have to be installed, with a compiler for Python bindings; this one
  # knows the answer.
  mkdir -p "$work/backend/scikit_build_core"
  touch "$work/backend/scikit_build_core/__init__.py"
  cat >"$work/backend/scikit_build_core/build.py" <<PYTHON
import pathlib


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / "xgrammar-$version.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xgrammar\nVersion: $version\n")
    return info.name
PYTHON
  PYTHONPATH="$work/backend" python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary xgrammar --no-build-isolation --require-hashes -d "$work" -r "$requirements" >&2
  archive=$work/xgrammar-$version.tar.gz
  echo "$sha256  $archive" | sha256sum --check --status
  # What is built and its licence; the rest (bindings, documents, test libraries) is 20 times that.
  top=xgrammar-$version
  tar -xzf "$archive" -C "$work" --no-same-owner "$top/cpp" "$top/include" "$top/3rdparty/picojson" \
    "$top/3rdparty/dlpack/include" "$top/3rdparty/dlpack/LICENSE" "$top/LICENSE" "$top/NOTICE"
  python3 "$fixes" "$work/$top"
  rm -rf "$target"
  mv -T "$work/xgrammar-$version" "$target"
  echo "$stamp" >"$target/fetched"
fi
echo "$target"
