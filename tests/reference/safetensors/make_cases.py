"""Writes cases.json beside this file: small safetensors files, good and hostile, and what the
reference library says of each.

pip install numpy==2.4.6 safetensors==0.8.0

A case: name, pieces (the file's bytes: [hex, times] each), accepted (whether
safe_open opens it and gives each tensor). A second run gives the same bytes.
"""
import json
import pathlib
import struct
import tempfile

from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
CASES = []


def case(name, header, data=0, length=None):
    pieces = header if isinstance(header, list) else [(header, 1)]
    pieces = [(p if isinstance(p, bytes) else p.encode(), times) for p, times in pieces]
    text_bytes = sum(len(p) * times for p, times in pieces)
    prefix = struct.pack("<Q", text_bytes if length is None else length % 2**64)
    pieces = [(prefix, 1), *pieces, (b"\0", data)]
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as f:
        f.write(b"".join(p * times for p, times in pieces))
        f.flush()
        try:
            with safe_open(f.name, framework="np") as s:
                for key in s.keys():
                    s.get_slice(key).get_shape()
            accepted = True
        except Exception:
            accepted = False
    CASES.append({"name": name, "pieces": [[p.hex(), times] for p, times in pieces],
                  "accepted": accepted})


def one(shape, offsets, dtype="F32", name="w"):
    return json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def two(a, b):
    return json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": a},
                       "b": {"dtype": "F32", "shape": [1], "data_offsets": b}})


case("control", one([2, 3], [0, 24]), 24)
case("control scalar", one([], [0, 4]), 4)
case("control empty tensor", one([0, 5], [0, 0]))
case("control no tensors", "{}")
case("control trailing spaces", one([1], [0, 4]) + "     ", 4)
case("control metadata", '{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
case("control order", two([4, 8], [0, 4]), 8)
# Shape against offsets.
case("shape larger than range", one([1000, 1000], [0, 4]), 4)
case("range larger than file", one([1000, 1000], [0, 4000000]), 4)
case("begin after end", one([1], [4, 0]), 4)
case("negative", one([1], [-4, 0]), 4)
case("three offsets", one([1], [0, 4, 8]), 8)
case("one offset", one([1], [0]), 4)
case("float offsets", '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0.0,4.0]}}', 4)
case("offset 2^63", one([1], [2**63, 2**63 + 4]), 4)
case("offset 2^64", one([1], [2**64, 2**64 + 4]), 4)
case("offset wraps", one([1], [2**64 - 4, 0]), 4)
case("shape -1", one([-1], [0, 4]), 4)
case("shape float", '{"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', 4)
case("product wraps", one([2**32, 2**32, 1], [0, 0]), 0)
case("product wraps to size", one([2**62 + 1], [0, 4]), 4)
case("product wraps twice", one([2**33, 2**31, 2], [0, 0]), 0)
case("dtype not a string", one([1], [0, 4], 5), 4)
case("tensor not an object", '{"w":[0,4]}', 4)
case("no dtype", '{"w":{"shape":[1],"data_offsets":[0,4]}}', 4)
case("no shape", '{"w":{"dtype":"F32","data_offsets":[0,4]}}', 4)
case("no offsets", '{"w":{"dtype":"F32","shape":[1]}}', 4)
case("gap at start", one([1], [4, 8]), 8)
case("gap between", two([0, 4], [8, 12]), 12)
case("overlap", two([0, 4], [2, 6]), 6)
case("same place", two([0, 4], [0, 4]), 4)
case("one byte short", one([1], [0, 4]), 3)
case("one byte long", one([1], [0, 4]), 5)
# Header length and text.
good = one([1], [0, 4])
for name, n in {"2^64-1": -1, "2^63": 2**63, "10^8+1": 10**8 + 1, "size-7": len(good) + 8 + 4 - 7,
                "0": 0, "1": 1}.items():
    case("header length " + name, good, 4, n)
case("not JSON", "hello, world")
case("array", "[]")
case("null", "null")
case("not UTF-8", b'{"\xff\xfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
case("10^5 nested", [("[", 100000)])
case("nested objects", [('{"a":', 20000)])
case("nested shape", '{"w":{"dtype":"F32","shape":' + "[" * 500 + "]" * 500 + ',"data_offsets":[0,4]}}', 4)
case("leading spaces", "   " + good, 4)
case("duplicate key", '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
case("duplicate key, two ranges", '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8)
case("metadata not strings", '{"__metadata__":{"a":1},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
case("metadata not an object", '{"__metadata__":"x","w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
case("trailing text", good + "x", 4)
case("trailing NUL", good + "\0\0", 4)
case("empty file header", "")
case("unknown dtype", one([1], [0, 4], "Q9"), 4)

(HERE / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, CASES)) + "\n]\n")
