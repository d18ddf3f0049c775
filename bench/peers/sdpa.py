"""Our prefill attention beside torch's scaled_dot_product_attention, in turns in one run.

    sdpa.py --bench build/release/attention_bench [--tokens 512,1024,2048] [--head-dims 64,128]
            [--heads 16] [--kv-heads 16] [--threads 2] [--rounds 5] [--json FILE]

Causal, one sequence, keys and values in bfloat16. torch gets queries, keys and values of one type
in its own layout, contiguous, with keys and values of grouped heads repeated before the clock
starts, and no_grad; ours reads pages of 16 tokens, rounds float32 queries itself and writes float32.
In each round each case is timed by torch, then by attention_bench in a process of its own; torch's
threads sleep then (a pause lets them). The median of the rounds' own ratios is printed, above 1 if
ours is faster, of the best runs and of the medians; GFLOP/s without softmax.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import machine


def parse():
    def numbers(text):
        return [int(n) for n in text.split(",")]

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--bench", required=True, metavar="FILE", help="attention_bench")
    p.add_argument("--tokens", type=numbers, default=[512, 1024, 2048],
                   help="of these, prefill loads that attention_bench has")
    p.add_argument("--head-dims", type=numbers, default=[64, 128])
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--kv-heads", type=int, default=16)
    p.add_argument("--kernel", default="flash")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.3, help="of each figure in each round")
    p.add_argument("--nice", type=int, default=0, help="of both; below 0 needs root, and takes the "
                   "cores from whatever else runs")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def operations(tokens, heads, head_dim):
    """2 per multiply-add of visible pairs, twice: scores and values."""
    return 4 * heads * head_dim * tokens * (tokens + 1) // 2


class Torch:
    def __init__(self, options):
        # Before torch is loaded: it reads it then.
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        import torch
        torch.set_num_threads(options.threads)
        self.torch, self.options, self.inputs = torch, options, {}

    def describe(self):
        parts = self.torch.__config__.show().splitlines()
        cpu = [line.strip(" -") for line in parts if "CPU capability" in line or "oneDNN" in line
               or "MKL-DNN" in line]
        return f"torch {self.torch.__version__}; {'; '.join(cpu)}"

    def run(self, tokens, head_dim):
        """Seconds of each call."""
        torch, o = self.torch, self.options
        if (tokens, head_dim) not in self.inputs:
            torch.manual_seed(1)
            q = torch.randn(1, o.heads, tokens, head_dim)
            k, v = (torch.randn(1, o.kv_heads, tokens, head_dim)
                    .repeat_interleave(o.heads // o.kv_heads, dim=1) for _ in range(2))
            self.inputs[tokens, head_dim] = [x.to(torch.bfloat16).contiguous() for x in (q, k, v)]
        inputs = self.inputs[tokens, head_dim]
        sdpa = torch.nn.functional.scaled_dot_product_attention
        times, begin = [], time.perf_counter()
        with torch.no_grad():
            sdpa(*inputs, is_causal=True)
            while len(times) < 3 or time.perf_counter() - begin < o.seconds:
                start = time.perf_counter()
                sdpa(*inputs, is_causal=True)
                times.append(time.perf_counter() - start)
        return times


def ours(options, tokens, head_dim):
    """best and median seconds, by the row of attention_bench."""
    done = subprocess.run(
        [options.bench, "--json", f"--filter=prefill {tokens}", "--types=BF16", "--dot=BF16",
         f"--kernels={options.kernel}", f"--heads={options.heads}",
         f"--kv-heads={options.kv_heads}", f"--head-dim={head_dim}",
         f"--threads={options.threads}", f"--seconds={options.seconds}"],
        capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return pick(json.loads(done.stdout), tokens)


def pick(report, tokens):
    """attention_bench's filter is a part of the name: "prefill 512 at 1536" fits, too."""
    rows = [r for r in report["rows"] if r["load"] == f"prefill {tokens}"]
    if len(rows) != 1:
        sys.exit(f"attention_bench has {len(rows)} rows of prefill {tokens}")
    return rows[0]["best_us"] * 1e-6, rows[0]["median_us"] * 1e-6


def summary(case, rounds):
    """rounds: (torch best, torch median, our best, our median), seconds."""
    ratios = {"best": [t / o for t, _, o, _ in rounds], "median": [t / o for _, t, _, o in rounds]}
    return {
        **case,
        "torch_us": 1e6 * statistics.median(r[1] for r in rounds),
        "torch_best_us": 1e6 * min(r[0] for r in rounds),
        "our_us": 1e6 * statistics.median(r[3] for r in rounds),
        "our_best_us": 1e6 * min(r[2] for r in rounds),
        "ratio": statistics.median(ratios["median"]),
        "ratio_of_best": statistics.median(ratios["best"]),
        "least_ratio": min(ratios["median"]),
        "most_ratio": max(ratios["median"]),
    }


def main():
    options = parse()
    if options.heads % options.kv_heads:
        sys.exit(f"kv-heads={options.kv_heads} must divide heads={options.heads}")
    machine.set_nice(options.nice)  # threads and processes started from now on have it
    peer = Torch(options)
    print(machine.describe(), peer.describe(), sep="\n")
    print(f"{options.heads} heads, {options.kv_heads} kv heads, {options.threads} threads, "
          f"{options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    cases = [{"head_dim": d, "tokens": t} for d in options.head_dims for t in options.tokens]
    rounds = [[] for _ in cases]
    with machine.Use() as use:
        for _ in range(options.rounds):
            for case, of_case in zip(cases, rounds):
                times = peer.run(case["tokens"], case["head_dim"])
                time.sleep(0.1)
                best, median = ours(options, case["tokens"], case["head_dim"])
                of_case.append((min(times), statistics.median(times), best, median))
    print(f"cores that others used meanwhile: {use.result['other_cores']}")
    print("head_dim tokens   torch us  GFLOP/s     our us  GFLOP/s   ratio (of rounds)      of best")
    results = []
    for case, of_case in zip(cases, rounds):
        r = summary(case, of_case)
        results.append(r)
        work = operations(case["tokens"], options.heads, case["head_dim"]) * 1e-3
        print(f"{r['head_dim']:8} {r['tokens']:6} {r['torch_us']:10.0f} {work / r['torch_us']:8.0f} "
              f"{r['our_us']:10.0f} {work / r['our_us']:8.0f} {r['ratio']:7.2f} "
              f"({r['least_ratio']:.2f} to {r['most_ratio']:.2f}) {r['ratio_of_best']:12.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine.describe(), "torch": peer.describe(),
                       "options": vars(options), "use": use.result, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
