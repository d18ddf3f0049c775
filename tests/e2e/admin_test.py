"""`quire admin` against a running daemon, as an operator at a terminal uses it."""
import json
import tempfile
import unittest

from daemon import Daemon, collect, eventually, greedy, run

PROMPT = [i % 900 + 100 for i in range(70)]


class AdminTest(unittest.TestCase):
    def admin(self, daemon, *args):
        result = run("admin", args[0], "--port", str(daemon.port), *args[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def json(self, daemon, *args):
        return json.loads(self.admin(daemon, *args, "--json"))

    def cached(self, daemon):
        return collect(daemon.generation.Generate(greedy(PROMPT, 4)))[3].usage.cached_tokens

    def test_a_night_shift(self):
        with tempfile.TemporaryDirectory() as folder, \
                Daemon("--num-blocks", "200", "--max-num-blocks", "400",
                       "--cache-directory", folder) as daemon:
            self.assertEqual(self.cached(daemon), 0)
            stats = self.json(daemon, "stats")
            self.assertEqual(stats["total_blocks"], 200)
            self.assertEqual(stats["cached_blocks"], 4)  # 70 + 3 tokens in blocks of 16
            self.assertEqual(stats["used_blocks"] + stats["cached_blocks"] + stats["empty_blocks"], 200)
            self.assertIn("200 = 0 used (0.0%) + 4 cached + 196 empty", self.admin(daemon, "stats"))

            tree = self.json(daemon, "tree")
            self.assertEqual(len(tree["nodes"]), 4)
            self.assertTrue(all(not node["token_ids"] for node in tree["nodes"]))
            self.assertIn("0..64 tokens: 4 blocks", self.admin(daemon, "tree"))
            tokens = [t for node in self.json(daemon, "tree", "--tokens")["nodes"]
                      for t in node["token_ids"]]
            self.assertEqual(tokens, PROMPT[:64])
            self.assertEqual(len(self.json(daemon, "blocks", "--state", "cached")["blocks"]), 4)
            self.assertIn("cached", self.admin(daemon, "blocks"))

            elsewhere = greedy([5, 6, 7], 2000)
            elsewhere.kv.cache_salt = "elsewhere"
            stream = daemon.generation.Generate(elsewhere)
            next(stream)
            requests = self.json(daemon, "requests")["requests"]
            self.assertEqual(len(requests), 1)
            self.assertEqual(requests[0]["branches"][0]["state"], "BRANCH_STATE_RUNNING")
            self.assertIn("running", self.admin(daemon, "requests", "--tables"))
            stream.cancel()
            self.assertTrue(eventually(lambda: daemon.blocks().live_requests == 0))
            self.admin(daemon, "flush", "--salt", "elsewhere")  # as many blocks as it got to
            self.assertEqual(self.json(daemon, "stats")["cached_blocks"], 4)

            pin = self.json(daemon, "pin", "--ids", ",".join(map(str, PROMPT)))
            self.assertEqual(pin["num_tokens"], 64)
            self.assertEqual(self.json(daemon, "pins")["pinned_blocks"], 4)
            self.assertIn("1 pins ended", self.admin(daemon, "unpin", pin["pin_id"]))

            self.assertIn("pool 0: 300 blocks", self.admin(daemon, "resize", "300"))
            self.assertEqual(self.json(daemon, "memory")["pools"][0]["num_blocks"], 300)
            self.assertIn("weights", self.admin(daemon, "memory"))

            self.assertEqual(self.json(daemon, "config")["scheduling_policy"], "fcfs")
            changed = self.admin(daemon, "config", "set", "scheduling_policy=fair",
                                 "max_num_seqs=8", "watermark=0.05", "num_blocks=250")
            for line in ["scheduling_policy=fair\n", "max_num_seqs=8\n", "watermark=0.05\n",
                         "pool 0: 250 blocks"]:
                self.assertIn(line, changed)
            self.assertEqual(changed, self.admin(daemon, "config"))
            self.assertIn("paused", self.admin(daemon, "pause"))
            self.assertIn("policy fair (paused), changed 1 times", self.admin(daemon, "stats"))
            stream = daemon.generation.Generate(greedy([5, 6, 7], 3))
            self.assertTrue(eventually(lambda: daemon.blocks().queued_requests == 1))
            self.assertIn("goes on", self.admin(daemon, "resume"))
            self.assertEqual(len(collect(stream)[0]), 3)

            self.assertIn("saved 4 prefix blocks, 64 tokens", self.admin(daemon, "save", "nightly"))
            self.assertIn("4 blocks of tokens forgotten", self.admin(daemon, "flush", "--all"))
            self.assertEqual(self.json(daemon, "stats")["cached_blocks"], 0)
            self.assertIn("loaded 4 prefix blocks, 64 tokens", self.admin(daemon, "load", "nightly"))
            self.assertEqual(self.cached(daemon), 64)

    def test_mistakes_are_one_clear_line(self):
        with Daemon("--num-blocks", "200") as daemon:
            for args, code, part in [
                    (["flush"], 2, "--all, or --salt"),
                    (["resize", "0"], 1, "num_blocks=0"),
                    (["config", "set", "max_seqs=1"], 2, "did you mean max_num_seqs?"),
                    (["config", "set", "max_num_seqs"], 2, "write max_num_seqs=VALUE"),
                    (["config", "set", "max_num_seqs=x"], 2, "max_num_seqs=x is not a whole number"),
                    (["config", "set", "watermark=1", "max_num_seqs=2"], 1, "watermark=1 is outside"),
                    (["config", "change"], 2, "quire admin config set NAME=VALUE"),
                    (["unpin", "7"], 1, "NOT_FOUND: pin_id=7"),
                    (["save", "x"], 1, "FAILED_PRECONDITION: cache_directory is not set"),
                    (["blocks", "--limit", "0"], 1, "limit=0 is outside [1, 100000]")]:
                result = run("admin", args[0], "--port", str(daemon.port), *args[1:])
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
                self.assertIn(part, result.stderr)
        gone = run("admin", "stats", "--port", str(daemon.port))
        self.assertEqual(gone.returncode, 1)
        self.assertIn("is `quire serve` running there?", gone.stderr)
        self.assertEqual(run("admin").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
