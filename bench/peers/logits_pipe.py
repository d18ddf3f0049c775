"""The engine's end of the pipe that bench/logit_source.h describes."""
import struct
import sys

import numpy as np


def serve(out, run):
    """run: int32 token ids [n] -> logits [n, vocab]. `out`: where our answers go."""
    while header := sys.stdin.buffer.read(4):
        count = struct.unpack("=i", header)[0]
        ids = np.frombuffer(sys.stdin.buffer.read(4 * count), np.int32)
        logits = run(ids)
        if logits.shape[0] != count:
            sys.exit(f"{logits.shape[0]} rows of logits for {count} tokens")
        out.buffer.write(np.ascontiguousarray(logits, np.float32).tobytes())
        out.buffer.flush()
