"""Writes quants.gguf, quants.safetensors and values.gguf beside this file, and ../models/llama-gguf/model.gguf.

pip install gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0

quants.gguf: one tensor per type, [3, 512], named by its type. Blocks are random bytes whose float16
scales (and minima) are finite: normal, negative, subnormal, zero and the largest. quants.safetensors:
the same names in float32, by gguf's own dequantiser; nothing here shares code with the daemon.

values.gguf: metadata only, one key for each type of value and of array element.

llama-gguf: ../models/llama in float32, with q and k permuted as GGUF's "llama" stores them. There a
head's rotated pairs are (2i, 2i + 1), in the hub's checkpoint (i, i + head_dim / 2), so that
row 2i + j of a head in GGUF is row i + j * head_dim / 2 of that head in the checkpoint.

A second run gives the same bytes.
"""
import json
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
T = gguf.GGMLQuantizationType
ROWS, COLS = 3, 512
# Byte offsets of the float16 fields within a block.
BLOCKS = {
    T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2), T.Q8_0: (0,),
    T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,),
}
# 2^-24 and 6e-8-sized subnormals, the largest subnormal, the smallest normal, zeros of both signs.
SPECIAL = np.array([0x0001, 0x8001, 0x0123, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x0000, 0x8000, 0x7BFF,
                    0xFBFF, 0x3C00, 0xBC00], dtype="<u2")


def scales(rng, n):
    values = (rng.standard_normal(n) * 0.02).astype("<f2").view("<u2")
    special = rng.random(n) < 0.4
    values[special] = rng.choice(SPECIAL, special.sum())
    values[: min(n, len(SPECIAL))] = SPECIAL[:n]
    return values


def quants():
    rng = np.random.default_rng(20240603)
    writer = gguf.GGUFWriter(HERE / "quants.gguf", "quants")
    expected = {}
    x = (rng.standard_normal((ROWS, COLS)) * 3).astype(np.float32)
    x[0, :4] = [0.0, -0.0, 1e-40, 65504.0]
    f16 = x.astype(np.float16)
    f16.view("<u2")[1, : len(SPECIAL)] = SPECIAL
    bf16 = (x.view("<u4") >> 16).astype("<u2")
    writer.add_tensor("F32", x)
    writer.add_tensor("F16", f16)
    writer.add_tensor("BF16", bf16.view(np.uint8), raw_dtype=T.BF16)
    expected["F32"], expected["F16"] = x, f16.astype(np.float32)
    expected["BF16"] = (bf16.astype("<u4") << 16).view("<f4")
    for qtype, fields in BLOCKS.items():
        size, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
        n = ROWS * COLS // size
        raw = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
        for at in fields:
            raw[:, at : at + 2] = scales(rng, n).view(np.uint8).reshape(n, 2)
        raw = raw.reshape(ROWS, COLS // size * block_bytes)
        writer.add_tensor(qtype.name, raw, raw_dtype=qtype)
        out = dequantize(raw, qtype)
        assert out.shape == (ROWS, COLS) and np.isfinite(out).all(), qtype
        expected[qtype.name] = out.astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, HERE / "quants.safetensors")


def values():
    V = gguf.GGUFValueType
    g = gguf.GGUFWriter(HERE / "values.gguf", "values")
    scalars = {
        V.UINT8: 200, V.INT8: -100, V.UINT16: 60000, V.INT16: -30000, V.UINT32: 4000000000,
        V.INT32: -2000000000, V.FLOAT32: 0.15625, V.BOOL: True, V.STRING: "zwölf \u732b",
        V.UINT64: 2**64 - 2, V.INT64: -(2**62), V.FLOAT64: 1e300,
    }
    for kind, value in scalars.items():
        g.add_key_value("scalar." + kind.name.lower(), value, kind)
        other = {V.STRING: "", V.BOOL: False}.get(kind, 1)
        g.add_key_value("array." + kind.name.lower(), [value, other, value], V.ARRAY, sub_type=kind)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.close()


def permute(w, num_heads):
    return w.reshape(num_heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def llama():
    source = HERE.parent / "models" / "llama"
    c = json.loads((source / "config.json").read_text())
    w = load_file(source / "model.safetensors")
    out = HERE.parent / "models" / "llama-gguf"
    out.mkdir(exist_ok=True)
    g = gguf.GGUFWriter(out / "model.gguf", "llama")
    g.add_name("llama")
    g.add_context_length(c["max_position_embeddings"])
    g.add_embedding_length(c["hidden_size"])
    g.add_block_count(c["num_hidden_layers"])
    g.add_feed_forward_length(c["intermediate_size"])
    g.add_head_count(c["num_attention_heads"])
    g.add_head_count_kv(c["num_key_value_heads"])
    g.add_key_length(c["head_dim"])
    g.add_value_length(c["head_dim"])
    g.add_rope_dimension_count(c["head_dim"])
    g.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    g.add_layer_norm_rms_eps(c["rms_norm_eps"])
    g.add_vocab_size(c["vocab_size"])
    g.add_bos_token_id(c["bos_token_id"])
    g.add_eos_token_id(c["eos_token_id"])
    g.add_pad_token_id(c["pad_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c["num_hidden_layers"])
    for name, value in w.items():
        if name.endswith("q_proj.weight"):
            value = permute(value, c["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            value = permute(value, c["num_key_value_heads"])
        g.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(value))
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


if __name__ == "__main__":
    quants()
    values()
    llama()
