"""Writes kv_int8.safetensors and kv_int8.json beside this file.

pip install numpy==2.4.6 safetensors==0.8.0

Keys and values of one sequence as an int8 cache keeps them, one scale for each token and kv head, and
attention over what the cache gives back, in float64. All of it in numpy; nothing is shared with the
daemon. For a row x of float32:

    scale = the smallest float16 with 127 * scale >= max |x|      codes = rint(x / scale), in float32

<case>.k [n, kv_heads, dim], .k_codes int8, .k_scale float16 [n, kv_heads], the same for v; .q [n, heads,
dim], .out [n, heads, dim_v], .lse [n, heads]: causal, scale 1 / sqrt(dim), float64 rounded to float32.
tolerance_abs: of attention in float32, relative to the largest value if that is above 1.
A second run gives the same bytes.
"""
import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
rng = np.random.default_rng(2026)


def quantise(x):
    """[n, heads, dim] -> codes, scales [n, heads]."""
    largest = np.abs(x).max(-1)
    scale = (largest.astype(np.float64) / 127).astype(np.float16)
    short = scale.astype(np.float64) * 127 < largest
    scale = np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)
    by = np.where(scale > 0, scale, 1).astype(np.float32)[..., None]
    return np.rint(x / by).astype(np.int8), scale


def attend(q, k, v):
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    q, k, v = (a.astype(np.float64) for a in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(np.float64(np.float32(dim)))
    s[:, ~np.tril(np.ones((n, n), bool))] = -np.inf
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", e / total, v), (np.log(total) + top)[..., 0].T


def rows(name, n, kv, dim):
    x = rng.standard_normal((n, kv, dim), dtype=np.float32)
    if name == "outliers":  # a few channels are large, as those of keys in real models
        x *= np.where(rng.random(dim) < 0.1, 20, 1).astype(np.float32)
    if name == "magnitudes":  # from subnormal float16 scales to the largest; some rows are zero
        x *= np.float32(10.0) ** rng.integers(-7, 6, (n, kv, 1)).astype(np.float32)
        x[3], x[7, 0] = 0, 0
    if name == "halves":  # codes that are halves: ties go to the even one
        x = rng.integers(-254, 255, x.shape).astype(np.float32) / 2
        x[..., 0] = 127
    return x


tensors, cases = {}, []
for name, heads, kv, dim, dim_v, n in [("plain", 4, 2, 16, 16, 40), ("odd", 6, 2, 37, 51, 33), ("outliers", 7, 1, 64, 64, 50),
                                       ("magnitudes", 2, 2, 20, 12, 24), ("halves", 3, 3, 8, 24, 20)]:
    t = {"q": rng.standard_normal((n, heads, dim), dtype=np.float32), "k": rows(name, n, kv, dim), "v": rows(name, n, kv, dim_v)}
    back = {}
    for x in "kv":
        t[f"{x}_codes"], t[f"{x}_scale"] = quantise(t[x])
        back[x] = t[f"{x}_codes"].astype(np.float64) * t[f"{x}_scale"].astype(np.float64)[..., None]
        assert np.abs(t[f"{x}_codes"].astype(int)).max() <= 127
    if name == "magnitudes":  # attention over huge keys says little; the codes are the case
        t["q"] *= np.float32(1e-5)
    if name == "halves":
        t["q"] *= np.float32(0.02)
    out, lse = attend(t["q"], back["k"], back["v"])
    t["out"], t["lse"] = out.astype(np.float32), lse.astype(np.float32)
    tensors.update({f"{name}.{x}": np.ascontiguousarray(a) for x, a in t.items()})
    cases.append({"name": name, "heads": heads, "kv_heads": kv, "dim": dim, "dim_v": dim_v, "tokens": n,
                  "tolerance_abs": 2e-6 * max(1.0, float(np.abs(back["v"]).max()))})
save_file(tensors, HERE / "kv_int8.safetensors")
(HERE / "kv_int8.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
