#!/usr/bin/env bash
# Puts the text that accuracy is measured on into build/texts/ and prints the file's path: Ambrose
# Bierce, The Devil's Dictionary (1911, public domain; 380 kB, prose with some verse), as Debian's
# package dict-devil 1.0-13.1 has it, without the index's own head. Does nothing if it is there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${QUIRE_TEXTS:-$root/build/texts}
file=$folder/devils-dictionary.txt
package=dict-devil=1.0-13.1
package_sha256=6a535684def2a1f70cd42da16d12d43f0e9dc3e54e4a329178eebab3170e3154
text_sha256=0b3b3952eb753c6c56fa1b06d20b9e062c9f68ad94af889b94adcca9c8d0af4f

check() { echo "$text_sha256  $file" | sha256sum --check --status; }

if [ ! -f "$file" ] || ! check; then
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # apt's own user can't write into the folder, so root downloads; that is worth no warning.
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2)
  echo "$package_sha256  $(echo "$work"/*.deb)" | sha256sum --check --status
  dpkg -x "$work"/*.deb "$work/x"
  # A .dz file is a gzip file with an index in its header.
  gzip -dc <"$work/x/usr/share/dictd/devil.dict.dz" | sed -n '/^ *PREFACE$/,$p' >"$work/text"
  mv "$work/text" "$file"
  if ! check; then
    echo "fetch-text: $file has another sha256 than $text_sha256; remove it and try again" >&2
    exit 1
  fi
fi
echo "$file"
