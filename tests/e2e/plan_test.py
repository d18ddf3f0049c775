"""`quire plan` as a person calls it: figures, formulas, errors and exit codes."""
import json
import os
import subprocess
import unittest

BINARY = os.environ["QUIRE_BINARY"]
SMOLLM2 = os.environ["QUIRE_SMOLLM2"]


def plan(*args):
    return subprocess.run([BINARY, "plan", *args], capture_output=True, text=True, timeout=60)


class PlanTest(unittest.TestCase):
    def shows(self, args, *parts):
        done = plan(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in parts:
            self.assertIn(part, done.stdout)

    def test_figures_are_shown_with_formula_and_inputs(self):
        self.shows(["llama-2-7b", "--memory", "24GiB"], "524,288 B (512 KiB)", "2.00 GiB", "13.48 GB", "at 25,705 tokens",
                   "32 layers x 2 (k, v) x 32 heads x 128 x 2 B", "nothing reserved", "by Quire's rule", "activations")
        self.shows(["llama-2-70b"], "327,680 B (320 KiB)")
        self.shows(["deepseek-v3"], "70,272 B", "61 layers x (512 latent + 64 rope) x 2 B", "4,997,120 B")
        self.shows(["qwen3.5-35b-a3b", "--context", "256K"], "20,480 B (20.00 KiB)", "5.37 GB")
        self.shows(["deepseek-v4-flash", "--context", "1M"], "7,584 B", "7.95 GB", "5.81 GB", "44,032 B")
        self.shows(["gpt2", "--kv-dtype", "f32"], "73,728 B (72.00 KiB)")

    def test_sequences_that_fit_on_24_gib(self):
        done = plan("llama-2-7b", "--memory", "24GiB", "--context", "4096", "--json")
        (model,) = json.loads(done.stdout)
        self.assertEqual(model["nothing_reserved"]["sequences"], 5)
        self.assertEqual(model["quire"]["sequences"], 4)

    def test_a_gguf_file_is_read_without_its_weights(self):
        (model,) = json.loads(plan(SMOLLM2, "--json").stdout)
        self.assertEqual(model["parameters"], 134515008)
        self.assertEqual(model["bytes_per_token"], 30 * 2 * 3 * 64 * 2)

    def test_models_side_by_side(self):
        done = plan("llama-2-7b", "deepseek-v3")
        self.assertRegex(done.stdout.splitlines()[0], r"llama-2-7b +deepseek-v3")

    def test_transformers_rule(self):
        (model,) = json.loads(plan("llama-3.1-8b", "--memory", "80GiB", "--rule", "transformers", "--json").stdout)
        self.assertEqual(model["transformers"]["max_batch_tokens"], 8192)
        self.assertNotIn("quire", model)

    def test_errors(self):
        for args, code, part in [
            (["no-such-model"], 1, "built in:"),
            (["llama-2-7b", "--memory", "24Gib"], 2, "memory=24Gib"),
            (["llama-2-7b", "--rule", "x"], 2, "rule=x"),
            ([], 2, "--list"),
        ]:
            done = plan(*args)
            self.assertEqual(done.returncode, code, args)
            self.assertIn(part, done.stderr)
        self.assertIn("llama-2-7b\n", plan("--list").stdout)


if __name__ == "__main__":
    unittest.main()
