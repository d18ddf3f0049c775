"""vLLM behind engines.Worker: vllm_worker.py MODEL_DIRECTORY [eager|compile]"""
import json
import os
import sys
import time


def main():
    import vllm
    eager = "eager" in sys.argv[2:]
    llm = vllm.LLM(sys.argv[1], dtype="bfloat16", max_model_len=2048, max_num_seqs=64,
                   enforce_eager=eager, enable_prefix_caching=True)
    how = "eager" if eager else "compiled"
    print(json.dumps({"version": f"vllm {vllm.__version__} {how}"}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        prompts = [vllm.TokensPrompt(prompt_token_ids=p) for p in order["prompts"]]
        params = vllm.SamplingParams(temperature=0, max_tokens=order["new"],
                                     min_tokens=order["new"], ignore_eos=True)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)
    os._exit(0)  # its own way out waits for workers


if __name__ == "__main__":
    main()
