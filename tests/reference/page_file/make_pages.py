"""Makes pages.json: two page files, written by docs/formats.md with struct, hashlib and PyPI's xxhash.

Needs: pip install xxhash==4.1.0. Run in this folder: python3 make_pages.py
"""
import hashlib
import json
import struct

import xxhash

FINGERPRINT = b"toy model, float32"
BLOCK_SIZE = 4
GROUP_BYTES = [40, 24]
ROOT = b"adapter=sql;salt=tenant-a\x00\xff"


def key_of(parent, tokens):
    ids = struct.pack("<%di" % len(tokens), *tokens)
    return hashlib.sha256(b"quire page 1\0" + parent + ids).digest()


def page(parent, depth, root, tokens, groups):
    key = key_of(parent, tokens)
    text = FINGERPRINT + root + struct.pack("<%di" % len(tokens), *tokens)
    text += struct.pack("<%dQ" % len(groups), *map(len, groups)) + b"".join(groups)
    size = 112 + len(text) + 16
    head = struct.pack("<8sIIQ32s32s6I", b"QUIREPG\n", 1, 0x01020304, size, key, parent, depth,
                       len(tokens), len(groups), len(FINGERPRINT), len(root), 0)
    body = head + text
    body += xxhash.xxh3_128_digest(body)  # big-endian: xxHash's canonical form
    assert len(head) == 112 and len(body) == size
    return key, {"key": key.hex(), "parent": parent.hex(), "depth": depth, "root": root.hex(),
                 "tokens": tokens, "groups": [g.hex() for g in groups], "file": body.hex()}


root_key = hashlib.sha256(b"quire root 1\0" + ROOT).digest()
first_key, first = page(root_key, 0, ROOT, [0, 7, 151643, 2**31 - 1],
                        [bytes(range(40)), bytes(range(100, 124))])
_, second = page(first_key, 1, b"", [5, 5, 5, 5], [b"", bytes(range(200, 224))])
with open("pages.json", "w") as f:
    json.dump({"fingerprint": FINGERPRINT.decode(), "block_size": BLOCK_SIZE,
               "group_bytes": GROUP_BYTES, "root": ROOT.hex(), "root_key": root_key.hex(),
               "pages": [first, second]}, f, indent=1)
