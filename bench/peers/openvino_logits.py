"""OpenVINO's logits for accuracy_bench: openvino_logits.py MODEL.gguf [KEY=VALUE...]

GenAI's pipelines show no logits, so the graph that its GGUF reader builds is compiled by itself:
the same weights, precisions and CPU plugin, with a cache inside the graph that is emptied for each
window in place of the paged one.

See bench/logit_source.h for the pipe's protocol.
"""
import os
import pathlib
import sys
import tempfile

import numpy as np

from logits_pipe import serve


def main():
    pipe = sys.stdout
    sys.stdout = sys.stderr  # what libraries say
    import openvino as ov
    import openvino_genai as genai
    properties = dict(arg.split("=", 1) for arg in sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        model_path = pathlib.Path(folder) / pathlib.Path(sys.argv[1]).name
        os.symlink(os.path.abspath(sys.argv[1]), model_path)
        genai.LLMPipeline(str(model_path), "CPU", enable_save_ov_model=True, ATTENTION_BACKEND="SDPA")
        graph = next(pathlib.Path(folder).rglob("openvino_model.xml"))
        core = ov.Core()
        compiled = core.compile_model(core.read_model(graph), "CPU",
                                      {"INFERENCE_NUM_THREADS": 2, **properties})
        request = compiled.create_infer_request()
        print(compiled.inputs, compiled.outputs, file=sys.stderr)

        def run(ids):
            n = len(ids)
            request.reset_state()
            inputs = {"input_ids": ids[None].astype(np.int64),
                      "attention_mask": np.ones((1, n), np.int64),
                      "position_ids": np.arange(n, dtype=np.int64)[None],
                      "beam_idx": np.zeros(1, np.int32)}
            names = {name for port in compiled.inputs for name in port.names}
            result = request.infer({k: v for k, v in inputs.items() if k in names})
            return np.asarray(result[compiled.output("logits")])[0]

        serve(pipe, run)


if __name__ == "__main__":
    main()
