"""bench/peers/sdpa.py without torch: how it picks and sums up."""
import contextlib
import io
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench" / "peers"))
import sdpa  # noqa: E402


class SdpaTest(unittest.TestCase):
    def test_operations_are_those_of_visible_pairs(self):
        # 3 queries see 1 + 2 + 3 keys; 5 heads of 7: a product of 7 with each key and with each value.
        self.assertEqual(sdpa.operations(3, 5, 7), 2 * 2 * (1 + 2 + 3) * 5 * 7)

    def test_a_filter_may_fit_more_than_one_load(self):
        rows = [{"load": "prefill 512", "best_us": 3.0, "median_us": 4.0},
                {"load": "prefill 512 at 1536", "best_us": 9.0, "median_us": 9.0}]
        best, median = sdpa.pick({"rows": rows}, 512)
        self.assertAlmostEqual(best, 3e-6)
        self.assertAlmostEqual(median, 4e-6)
        for wrong in ({"rows": rows[1:]}, {"rows": rows[:1] * 2}):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                sdpa.pick(wrong, 512)

    def test_ratios_are_of_rounds_and_above_one_if_ours_is_faster(self):
        # The second round was disturbed as a whole, which changes no ratio.
        r = sdpa.summary({"tokens": 1}, [(2e-3, 4e-3, 1e-3, 1e-3), (20e-3, 40e-3, 10e-3, 10e-3),
                                         (2e-3, 3e-3, 1e-3, 2e-3)])
        self.assertAlmostEqual(r["ratio"], 4)
        self.assertAlmostEqual(r["least_ratio"], 1.5)
        self.assertAlmostEqual(r["most_ratio"], 4)
        self.assertAlmostEqual(r["ratio_of_best"], 2)
        self.assertAlmostEqual(r["torch_us"], 4000)
        self.assertAlmostEqual(r["torch_best_us"], 2000)
        self.assertAlmostEqual(r["our_us"], 2000)
        self.assertAlmostEqual(r["our_best_us"], 1000)
        self.assertEqual(r["tokens"], 1)


if __name__ == "__main__":
    unittest.main()
