"""Writes the F32, F16, BF16, Q8_0 and Q4_0 variants of a GGUF model, for peers and for accuracy.

    make_variants.py MODEL.gguf FOLDER [f32 f16 bf16 q8_0 q4_0]

Needs PyPI `gguf`. Every matrix is dequantised to float32 first, so F32 is exactly the given model
and the others lose only what their own format loses. Vectors stay as they are; in Q4_0 the
embedding, which is the output head too where there is none, keeps Q8_0, as in common Q4 files.
Files are FOLDER/<type>.gguf; those that are there already are kept.
"""
import os
import pathlib
import sys

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from gguf.constants import GGUFValueType, LlamaFileType
from gguf.quants import dequantize, quantize

VARIANTS = {
    "f32": (Type.F32, LlamaFileType.ALL_F32),
    "f16": (Type.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (Type.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Type.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}
HEADS = ("token_embd.weight", "output.weight")


def copy_metadata(reader, writer, file_type):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue  # the writer's own
        if field.name == gguf.Keys.General.FILE_TYPE:
            writer.add_file_type(file_type)
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value_type, sub_type)


def write(source, path, variant):
    reader = gguf.GGUFReader(source)
    matrix_type, file_type = VARIANTS[variant]
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture)
    copy_metadata(reader, writer, file_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = Type.F32 if values.ndim == 1 else matrix_type
        if kind == Type.Q4_0 and tensor.name in HEADS:
            kind = Type.Q8_0
        if kind in (Type.F32, Type.F16):
            writer.add_tensor(tensor.name, values.astype(np.float16) if kind == Type.F16 else values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for variant in sys.argv[3:] or VARIANTS:
        path = folder / f"{variant}.gguf"
        if not path.exists():
            write(sys.argv[1], path, variant)
        print(f"{path} {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
