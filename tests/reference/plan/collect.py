"""Collects what plan_shapes_test needs of a folder of reference checkpoints: each config, the number of parameters that
transformers counts, and the shapes of the cache tensors that it filled for a prompt of 70 tokens.

    python3 collect.py <folder with <name>/config.json, golden.json and model.safetensors> > models.json
"""
import json
import pathlib
import struct
import sys

UNUSED = {"transformers_version", "id2label", "label2id", "architectures", "model_type"}


def vision_parameters(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    total = 0
    for name, tensor in header.items():
        if name.startswith("model.visual."):
            size = 1
            for dim in tensor["shape"]:
                size *= dim
            total += size
    return total


def layers(cache):
    return [{name: tensor["shape"] for name, tensor in layer["tensors"].items()} for layer in cache["layers"]]


out = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if not (folder / "golden.json").exists():
        continue
    golden = json.loads((folder / "golden.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in UNUSED | {"vision_config"}}
    config["architectures"] = golden["architectures"]
    cache = golden["cache_after_prefill"]
    out[folder.name] = {
        "config": config,
        "parameters": golden["parameters"] - vision_parameters(folder / "model.safetensors"),
        "cache": layers(cache.get("self", cache)),
        "cross": layers(cache["cross"]) if "cross" in cache else [],
        "tokens": len(golden["prompts"][3]["input_ids"]),
    }
print("{")
print(",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True, separators=(',', ':'))}" for k, v in out.items()))
print("}")
