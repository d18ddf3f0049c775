"""OpenVINO GenAI's continuous batching behind engines.Worker: openvino_worker.py MODEL [KEY=VALUE]

Its cache for prefixes is on, as it is needed for the warm shared prefix.
"""
import json
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


def main():
    properties = {"INFERENCE_NUM_THREADS": 2}
    properties.update(arg.split("=", 1) for arg in sys.argv[2:])
    scheduling = genai.SchedulerConfig()
    scheduling.enable_prefix_caching = True
    scheduling.cache_size = 2
    scheduling.dynamic_split_fuse = True
    scheduling.max_num_batched_tokens = 512
    scheduling.max_num_seqs = 256
    pipe = genai.ContinuousBatchingPipeline(sys.argv[1], scheduling, "CPU", properties)
    print(json.dumps({"version": f"openvino-genai {genai.get_version()}"}), flush=True)
    count = 0
    for line in sys.stdin:
        order = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens = order["new"]
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        start = time.perf_counter()
        handles = []
        for prompt in order["prompts"]:
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipe.add_request(count, ids, config))
            count += 1
        while pipe.has_non_finished_requests():
            pipe.step()
        seconds = time.perf_counter() - start
        tokens = sum(len(h.read_all()[0].generated_ids) for h in handles)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
