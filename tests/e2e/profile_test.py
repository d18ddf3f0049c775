"""`quire bench ops`, its trace, and `quire kernels`, as a person calls them. No time is looked at,
only that times add up."""
import bisect
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from decimal import Decimal

BINARY = os.environ["QUIRE_BINARY"]
PLUGINS = pathlib.Path(os.environ["QUIRE_PLUGINS"])
MODELS = pathlib.Path(__file__).resolve().parent.parent / "reference" / "models"


def run(*args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=120, env=env)


def bench(model, *args):
    return run("bench", "ops", "--model", str(MODELS / model), "--workload", "W1", "--num-blocks",
               "64", "--num-threads", "2", *args)


class ProfileTest(unittest.TestCase):
    def test_a_trace_nests_and_adds_up(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            done = bench("llama", "--trace-file", str(path))
            self.assertEqual(done.returncode, 0, done.stderr)
            trace = json.loads(path.read_text(), parse_float=Decimal)
        events = trace["traceEvents"]
        names = [e["args"]["name"] for e in events if e["ph"] == "M"]
        self.assertEqual(names, ["quire", "engine", "worker 1"])
        complete = [e for e in events if e["ph"] == "X"]
        self.assertEqual(len(complete) + 3, len(events))
        steps = [e for e in complete if e["cat"] == "step"]
        ops = [e for e in complete if e["cat"] == "op"]
        # 32 prompt tokens, then 127 single ones.
        self.assertEqual([s["args"]["tokens"] for s in steps], [32] + [1] * 127)
        end = Decimal(0)
        inside = 0
        for step in steps:
            self.assertGreaterEqual(step["ts"], end)
            end = step["ts"] + step["dur"]
            own = [o for o in ops if step["ts"] <= o["ts"] and o["ts"] + o["dur"] <= end
                   and o["name"] != "schedule"]
            self.assertEqual(sum(o["dur"] for o in own), step["dur"])
            self.assertEqual(sum(o["name"] == "attention" for o in own), 3)
            inside += len(own)
        between = sum(o["name"] == "schedule" for o in ops)
        self.assertEqual(inside + between, len(ops))
        for before, after in zip(ops, ops[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"])
        self.assertEqual({(e["pid"], e["tid"]) for e in steps + ops}, {(1, 1)})
        # Each worker's tasks lie inside an operation of their name.
        tasks = [e for e in complete if e["cat"] == "tasks"]
        self.assertEqual(len(tasks) + len(steps) + len(ops), len(complete))
        self.assertLessEqual({t["tid"] for t in tasks}, {1, 2})
        starts = [o["ts"] for o in ops]
        for task in tasks:
            op = ops[bisect.bisect_right(starts, task["ts"]) - 1]
            self.assertEqual(op["name"], task["name"])
            self.assertLessEqual(task["ts"] + task["dur"], op["ts"] + op["dur"])

    def test_figures_as_json(self):
        done = bench("llama", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual(figures["peaks"]["threads"], 2)
        self.assertGreater(figures["peaks"]["memory_gb_s"], 0)
        (run_,) = figures["runs"]
        self.assertEqual(run_["workload"], "W1")
        prefill, decode = run_["steps"]
        self.assertEqual((prefill["kind"], prefill["steps"], prefill["tokens"]), ("prefill", 1, 32))
        self.assertEqual((decode["kind"], decode["steps"], decode["tokens"]), ("decode", 127, 127))
        ops = {o["op"]: o for o in decode["ops"]}
        self.assertEqual(ops["qkv"]["calls"], 3 * 127)
        self.assertEqual(ops["gate_up"]["operations"], 3 * 127 * 2 * 48 * 128)
        for op in ops.values():
            self.assertAlmostEqual(op["bound_us"], max(op["bound_memory_us"], op["bound_math_us"]))
        self.assertEqual(sum(o["ns"] for o in decode["ops"] if o["op"] != "schedule"), decode["ns"])

    def test_a_table_for_people(self):
        done = bench("gemma3")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("W1: 32 prompt + 128 output tokens", "prefill steps: 1, 32.0 tokens",
                     "decode steps: 127, 1.0 tokens", "add_rows", "GFLOP/s"):
            self.assertIn(part, done.stdout)

    def test_a_kernel_of_ones_own(self):
        library = ("--attention-library", str(PLUGINS / "plain.so"))
        done = bench("gemma3", *library, "--attention", "full=plain,sliding=eager")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("attention full=plain,sliding=eager", done.stdout)
        done = run("kernels", "--no-bench", *library)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("one row at a time in double; batch invariant", done.stdout)
        for name in ("flash", "eager", "Q4_1", "BF16", "masks causal, window, chunk"):
            self.assertIn(name, done.stdout)

    def test_mistakes(self):
        for args, part in [
                (("--attention", "plain"), "attention=plain must be one of flash"),
                (("--attention", "full=flash,sldng=eager"), 'not "sldng=eager"'),
                (("--attention-library", "/no/such.so"), "attention_library=/no/such.so is not a file"),
                (("--attention-library", str(PLUGINS / "bad_version.so")), "has version 2"),
                (("--wrkload", "W1"), "did you mean --workload?"),
                (("--workload", "W9"), "W9")]:
            done = bench("llama", *args)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(part, done.stderr)
        done = bench("llama", "--trace-file", "/no/such/folder/t.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("trace_file=/no/such/folder/t.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
