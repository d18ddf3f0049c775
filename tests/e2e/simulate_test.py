"""`quire simulate` as a person calls it: reports, traces to files and back, errors and exit codes."""
import json
import os
import subprocess
import tempfile
import unittest

BINARY = os.environ["QUIRE_BINARY"]


def simulate(*args):
    return subprocess.run([BINARY, "simulate", *args], capture_output=True, text=True, timeout=60)


class SimulateTest(unittest.TestCase):
    def reports(self, *args):
        done = simulate("--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_equal_calls_give_equal_text(self):
        args = ("--json", "--trace", "chat", "--requests", "500", "--replicas", "2", "--routing", "least_loaded")
        first = simulate(*args)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, simulate(*args).stdout)
        self.assertNotEqual(first.stdout, simulate(*args, "--seed", "2").stdout)

    def test_configurations_side_by_side(self):
        given, small, both = self.reports("--requests", "300", "--rate", "2", "--compare", "max_num_batched_tokens=64",
                                          "--compare", "max_num_seqs=2,block_size=32")
        self.assertEqual(given["finished"], 300)
        self.assertLess(small["itl_p99_ms"], given["itl_p99_ms"] / 2)  # shorter steps
        self.assertGreater(both["queue_mean_ms"], 2 * given["queue_mean_ms"])
        self.assertEqual(both["config"]["block_size"], "32")
        text = simulate("--requests", "300", "--compare", "max_num_seqs=2").stdout
        self.assertRegex(text, r"\[2\] max_num_seqs=2\n")

    def test_a_trace_written_and_read_is_the_same_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            wanted = self.reports("--trace", "chat", "--requests", "400", "--tenants", "2")
            done = simulate("--trace", "chat", "--requests", "400", "--tenants", "2", "--write-trace", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.reports("--trace", path), wanted)
            self.assertEqual(set(wanted[0]["tenants"]), {"t0", "t1"})
            done = simulate("--trace", path, "--rate", "3")
            self.assertEqual(done.returncode, 2)
            self.assertIn("rate=3", done.stderr)
            with open(path, "a", encoding="utf-8") as file:
                file.write('{"arrival_ms": 1e9, "prompt_tokens": 0, "output_tokens": 1}\n')
            done = simulate("--trace", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn("trace.jsonl:401: prompt_tokens=0", done.stderr)

    def test_costs_come_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cost.json")
            names = ["fixed", *(f"tokens_{n}" for n in (2, 3, 4, 8, 16, 32, 64)), "token", "prefill_token", "seq", "row", "prefill_key", "decode_key", "copy"]
            cost = {"format": "quire step cost 2", "model": "m", **{f"{name}_us": 0 for name in names}, "fixed_us": 5000}
            with open(path, "w", encoding="utf-8") as file:
                json.dump(cost, file)
            (report,) = self.reports("--cost", path, "--requests", "50", "--rate", "0.1")
            self.assertEqual(report["itl_mean_ms"], 5)
            self.assertEqual(report["itl_p99_ms"], 5)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**cost, "fixed_us": -1}, file)
            done = simulate("--cost", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn("fixed_us=-1", done.stderr)

    def test_what_cannot_be_is_refused_by_name(self):
        for args, says in [(["--trace", "none"], "trace=none"), (["--rate", "0"], "rate=0"),
                           (["--max-num-seqs", "0"], "max_num_seqs=0"), (["--block-size", "12"], "block_size=12"),
                           (["--routing", "best"], "routing=best"), (["--compare", "x=1"], "x is not an option"),
                           (["--fit", "cost.json"], "model"), (["--prompt-min", "600"], "prompt_min=600")]:
            done = simulate(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(says, done.stderr)
        self.assertEqual(simulate("--cost", "no/such.json").returncode, 1)


if __name__ == "__main__":
    unittest.main()
