"""Makes chains.json: block hashes by Python's hashlib over PyPI's cbor2 (6.3.0), canonical.

Needs: pip install cbor2==6.3.0. Run in this folder: python3 make_chains.py
"""
import hashlib
import json
import random

import cbor2

rng = random.Random(20261130)


def sha(value):
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def token():
    edge = rng.choice([0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1])
    return rng.choice([edge, rng.randrange(32), rng.randrange(151936), rng.randrange(2**31)])


def text(n):
    return "".join(rng.choice("ab/ -_.0é中😀") for _ in range(n))


chains = []
for case in range(40):
    block_size = rng.choice([1, 2, 8, 16, 23, 24, 32, 64, 128])
    seed = rng.choice(["vllm-none-hash", "0", "", text(30), text(300)])
    lora = rng.choice([None, None, [text(rng.randrange(1, 40)), text(rng.randrange(300))]])
    salt = rng.choice(["", "", text(rng.randrange(1, 30)), text(24 * rng.randrange(1, 12))])
    tokens = [token() for _ in range(block_size * rng.randrange(1, 4) + rng.randrange(block_size))]
    parent, hashes = sha(seed), []
    for at in range(0, len(tokens) - block_size + 1, block_size):
        keys = [["lora", *lora]] if lora else []
        if salt and at == 0:
            keys.append(["cache_salt", salt])
        parent = sha([parent, tokens[at:at + block_size], keys or None])
        hashes.append(parent.hex())
    chains.append({"block_size": block_size, "seed": seed, "lora": lora, "salt": salt,
                   "tokens": tokens, "hashes": hashes,
                   "last_int": int.from_bytes(parent, "big") & (2**64 - 1)})
with open("chains.json", "w") as f:
    json.dump(chains, f, ensure_ascii=False, separators=(",", ":"))
