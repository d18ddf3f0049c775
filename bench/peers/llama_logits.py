"""llama.cpp's logits for accuracy_bench: llama_logits.py MODEL.gguf

Through llama-cpp-python, whose library may be another build (LLAMA_CPP_LIB_PATH). See
bench/logit_source.h for the pipe's protocol.
"""
import sys

import numpy as np

from logits_pipe import serve


def main():
    pipe = sys.stdout
    sys.stdout = sys.stderr  # what libraries say
    import llama_cpp
    model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_batch=512, n_ubatch=512, n_threads=2,
                            n_threads_batch=2, logits_all=True, flash_attn=True, verbose=False)
    vocab = model.n_vocab()

    def run(ids):
        model.reset()
        model.eval(ids.tolist())
        return np.asarray(model.scores[:len(ids), :vocab])

    serve(pipe, run)


if __name__ == "__main__":
    main()
