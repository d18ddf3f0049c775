"""How tokens are searched for, on the real model: beams, best_of, guesses, logprobs of prompts and
of asked tokens, priorities. HARD-CASES D01, D05."""
import json
import math
import random
import signal
import subprocess
import threading
import unittest
from concurrent import futures

import grpc

from daemon import BINARY, FLOAT32, REFERENCE, Daemon, collect, environment, eventually, greedy, pb, run

GOLDEN = json.loads((REFERENCE / "smollm2" / "golden.json").read_text())
PROMPT = next(p for p in GOLDEN["prompts"] if p["kind"] == "raw")["input_ids"]


def beams(ids, max_tokens, width, outputs=None, **more):
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        beam=pb.BeamParams(beam_width=width, num_return_sequences=outputs or width, **more),
        stopping=pb.StoppingOptions(max_tokens=max_tokens),
        response=pb.ResponseOptions(token_ids=True, num_logprobs=0))


def outputs_of(result):
    """[(ids, logprobs, score)] by output_index."""
    return [(list(o.token_ids), [e.logprob for e in o.logprobs], o.finished.score)
            for o in result.outputs]


def prompt_logprobs(daemon, ids, k, max_tokens=1):
    """(token, logprob, rank, top) of each position from the second on, and the last event."""
    request = greedy(ids, max_tokens)
    request.response.prompt_logprobs = k
    entries, last, began = [], None, False
    for event in daemon.generation.Generate(request):
        if event.HasField("prompt_logprobs"):
            assert not began, "after the first delta"
            assert event.prompt_logprobs.first_position == len(entries) + 1
            entries += [(e.token_id, e.logprob, e.rank, [(t.token_id, t.logprob) for t in e.top])
                        for e in event.prompt_logprobs.logprobs]
        began = began or event.HasField("delta")
        last = event
    return entries, last


class DecodingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def assert_idle(self):
        self.assertTrue(eventually(lambda: self.daemon.blocks().live_requests == 0
                                   and self.daemon.blocks().used_blocks == 0),
                        self.daemon.blocks())

    def refused(self, request, *parts, code=grpc.StatusCode.INVALID_ARGUMENT):
        with self.assertRaises(grpc.RpcError) as error:
            self.daemon.generation.GenerateUnary(request)
        self.assertEqual(error.exception.code(), code, error.exception.details())
        for part in parts:
            self.assertIn(part, error.exception.details())

    def test_beams_are_ordered_and_their_scores_are_their_logprobs(self):
        for penalty in [1.0, 0.0, -0.5]:
            found = outputs_of(self.daemon.generation.GenerateUnary(
                beams(PROMPT, 12, 4, length_penalty=penalty)))
            self.assertEqual(len(found), 4)
            scores = [score for _, _, score in found]
            self.assertEqual(scores, sorted(scores, reverse=True))
            self.assertEqual(len({tuple(ids) for ids, _, _ in found}), 4)
            for ids, logprobs, score in found:
                self.assertEqual(len(ids), len(logprobs))
                expected = sum(logprobs) / len(ids) ** penalty
                self.assertTrue(math.isclose(score, expected, rel_tol=1e-5), (score, expected))
        self.assert_idle()

    def test_one_beam_is_greedy(self):
        found = outputs_of(self.daemon.generation.GenerateUnary(beams(PROMPT, 16, 1)))
        ids, logprobs, _, _ = collect(self.daemon.generation.Generate(greedy(PROMPT, 16)))
        self.assertEqual(found[0][0], ids[:len(found[0][0])])
        for a, b in zip(found[0][1], logprobs):
            self.assertAlmostEqual(a, b, places=5)

    def test_beams_are_the_same_bits_again_and_in_company(self):
        request = beams(PROMPT, 24, 4)
        alone = outputs_of(self.daemon.generation.GenerateUnary(request))
        self.assertEqual(outputs_of(self.daemon.generation.GenerateUnary(request)), alone)
        draw = random.Random(3)
        others = [self.daemon.generation.Generate(
            greedy([draw.randrange(300, 40000) for _ in range(9)], 2000, temperature=0.9, seed=i))
            for i in range(6)]
        for other in others:
            next(other)  # runs
        steps = self.daemon.blocks().scheduler.beam_steps
        self.assertEqual(outputs_of(self.daemon.generation.GenerateUnary(request)), alone)
        self.assertGreater(self.daemon.blocks().scheduler.beam_steps, steps)
        self.assertGreaterEqual(self.daemon.blocks().live_requests, 6)  # all the time
        for other in others:
            other.cancel()
        self.assert_idle()

    def test_streamed_beams_are_the_unary_ones(self):
        request = beams(PROMPT, 10, 3, outputs=2)
        ids, scores = [[], []], [None, None]
        for event in self.daemon.generation.Generate(request):
            if event.HasField("delta"):
                ids[event.delta.output_index] += event.delta.token_ids
            if event.HasField("finished"):
                scores[event.finished.output_index] = event.finished.score
        unary = outputs_of(self.daemon.generation.GenerateUnary(request))
        self.assertEqual([(i, s) for i, _, s in unary], list(zip(ids, scores)))

    def test_killed_client_of_beams_gives_its_blocks_back(self):
        self.assert_idle()
        steps = self.daemon.blocks().scheduler.beam_steps
        client = subprocess.Popen(
            [BINARY, "generate", "--port", str(self.daemon.port), "--raw", "--beam-width", "4",
             "--ignore-eos", "--max-tokens", "2000", "Tell me a long story"], env=environment())
        self.assertTrue(eventually(lambda: self.daemon.blocks().scheduler.beam_steps > steps + 3))
        self.assertGreater(self.daemon.blocks().used_blocks, 0)
        client.kill()
        client.wait()
        self.assert_idle()
        self.assertLess(self.daemon.blocks().scheduler.beam_steps, steps + 2000)  # it was let go
        self.assertIsNone(self.daemon.process.poll())

    def test_best_of_returns_the_likeliest(self):
        def ask(**sampling):
            return self.daemon.generation.GenerateUnary(pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=PROMPT),
                sampling=pb.SamplingParams(seed=11, temperature=0.9, **sampling),
                stopping=pb.StoppingOptions(max_tokens=12),
                response=pb.ResponseOptions(token_ids=True, num_logprobs=0)))
        every = sorted(outputs_of(ask(n=6)), key=lambda o: -sum(o[1]) / len(o[1]))
        best = outputs_of(ask(n=2, best_of=6))
        self.assertEqual([o[:2] for o in best], [o[:2] for o in every[:2]])
        for _, logprobs, score in best:
            self.assertAlmostEqual(score, sum(logprobs) / len(logprobs), places=5)
        self.assertGreater(best[0][2], best[1][2])

    def test_asked_tokens_are_told_as_among_the_best(self):
        request = greedy(PROMPT, 4)
        request.response.num_logprobs = 20
        first = next(e for e in self.daemon.generation.Generate(request) if e.HasField("delta"))
        top = {t.token_id: t.logprob for t in first.delta.logprobs[0].top}
        asked = sorted(top)[:5]
        request = greedy(PROMPT, 4)
        request.response.num_logprobs = 0
        request.sampling.logprob_token_ids.extend(asked)
        ids, n = [], 0
        for event in self.daemon.generation.Generate(request):
            for entry in event.delta.logprobs:
                self.assertEqual([t.token_id for t in entry.asked], asked)
                self.assertEqual(len(entry.top), 0)
                self.assertEqual(entry.rank, 1)  # greedy
                if n == 0:
                    self.assertEqual([t.logprob for t in entry.asked], [top[i] for i in asked])
                n += 1
        self.assertEqual(n, 4)

    def test_prompt_logprobs_are_those_of_the_output_and_of_the_reference(self):
        compared = 0
        with Daemon(*FLOAT32) as float32:
            for prompt in [p for p in GOLDEN["prompts"] if p["kind"] == "raw"]:
                for daemon in [self.daemon, float32]:
                    ids, logprobs, _, _ = collect(daemon.generation.Generate(
                        greedy(prompt["input_ids"], 12)))
                    entries, _ = prompt_logprobs(daemon, prompt["input_ids"] + ids, 5)
                    told = entries[len(prompt["input_ids"]) - 1:]
                    # As a prompt the same tokens have the same logprobs, bit by bit.
                    self.assertEqual([(t, p) for t, p, _, _ in told], list(zip(ids, logprobs)))
                    for token, _, rank, top in told:
                        self.assertEqual((rank, top[0][0]), (1, token))
                for i, (_, _, _, top) in enumerate(told):  # in float32
                    if ids[:i] != prompt["greedy"][:i]:
                        break
                    for (_, value), expected in zip(top, prompt["top5"][i]["logprobs"]):
                        self.assertAlmostEqual(value, expected, delta=0.05)
                        compared += 1
        self.assertGreater(compared, 200)

    def test_refusals(self):
        adapter = greedy(PROMPT, 1)
        adapter.lora_name = "sql"
        self.refused(adapter, "lora_name=sql", "no adapters are served")
        stop = beams(PROMPT, 4, 2)
        stop.stopping.stop.append("x")
        self.refused(stop, "stopping.stop", "beam_width=2")
        self.refused(greedy(PROMPT, 4, best_of=4), "sampling.best_of=4", "temperature")
        draft = greedy(PROMPT, 4)
        draft.spec.method = pb.SPECULATION_METHOD_DRAFT
        self.refused(draft, "spec.method=draft", "draft model")

    def test_guesses_change_no_bit(self):
        # A text that repeats itself, so that lookups find something.
        prompt = self.daemon.generation.Tokenize(pb.TokenizeRequest(
            text="red green blue yellow black white " * 8)).token_ids
        plain = greedy(prompt, 48)
        plain.spec.method = pb.SPECULATION_METHOD_NONE
        ids, logprobs, _, last = collect(self.daemon.generation.Generate(plain))
        self.assertEqual(last.usage.draft_tokens, 0)
        for method in [pb.SPECULATION_METHOD_NGRAM, pb.SPECULATION_METHOD_SUFFIX]:
            guessed = greedy(prompt, 48)
            guessed.spec.method = method
            # Whether a guess pays is judged by measured times, so a busy machine may make none for a
            # while; the bits are the same each time.
            for _ in range(20):
                found = collect(self.daemon.generation.Generate(guessed))
                self.assertEqual(found[:2], (ids, logprobs))
                usage = found[3].usage
                self.assertGreaterEqual(usage.draft_tokens, usage.accepted_draft_tokens)
                if usage.accepted_draft_tokens > 0:
                    break
            self.assertGreater(usage.accepted_draft_tokens, 0, method)

    def test_command_line(self):
        port = ["--port", str(self.daemon.port)]
        found = run("generate", *port, "--raw", "--beam-width", "3", "--num-return-sequences", "2",
                    "--length-penalty", "0.5", "--max-tokens", "6", "--stats", "Once upon a time")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("[0] ", found.stdout)
        self.assertIn("[1] ", found.stdout)
        self.assertRegex(found.stderr, r"scores -\d\.\d+, -\d\.\d+")
        best = run("generate", *port, "--raw", "--best-of", "3", "--temperature", "0.8", "--seed",
                   "1", "--max-tokens", "6", "--priority", "5", "--tenant", "me", "Once")
        self.assertEqual(best.returncode, 0, best.stderr)
        prompt = run("generate", *port, "--raw", "--prompt-logprobs", "1", "--max-tokens", "1",
                     "--speculation", "ngram", "--stats", "The capital of France is")
        self.assertEqual(prompt.returncode, 0, prompt.stderr)
        self.assertEqual(prompt.stdout, " Paris\n")
        self.assertEqual(prompt.stderr.count("prompt "), 4 + 1)  # 5 tokens, and the counts
        self.assertIn("guesses right", prompt.stderr)


class PromptLogprobsTest(unittest.TestCase):
    """HARD-CASES D01 and D05: chunks and prefix hits change no bit and lose no entry."""

    def test_chunks_and_hits_change_no_bit(self):
        draw = random.Random(6)
        prompt = [draw.randrange(300, 40000) for _ in range(117)]
        other_tail = prompt[:80] + [draw.randrange(300, 40000) for _ in range(37)]
        cold = None
        for args in [["--no-enable-prefix-caching"], ["--max-num-batched-tokens", "7",
                                                      "--max-num-seqs", "7"],
                     ["--max-num-batched-tokens", "37", "--max-num-seqs", "16"], []]:
            with Daemon(*args) as daemon:
                found = [prompt_logprobs(daemon, p, 3)[0] for p in (prompt, other_tail)]
                for entries, tokens in zip(found, (prompt, other_tail)):
                    self.assertEqual([e[0] for e in entries], tokens[1:])
                cold = cold or found
                self.assertEqual(found, cold, args)
                self.assertNotEqual(found[0][80:], found[1][80:])
                # Now its blocks are certainly there: others find them.
                _, _, _, last = collect(daemon.generation.Generate(greedy(prompt, 2)))
                if args[:1] != ["--no-enable-prefix-caching"]:
                    self.assertGreater(last.usage.cached_tokens, 0)
                again, last = prompt_logprobs(daemon, prompt, 3, max_tokens=2)
                self.assertEqual(again, cold[0], args)
                # Documented: what is asked for is computed, cached or not.
                self.assertEqual(last.usage.cached_tokens, 0)
                daemon.terminate(signal.SIGTERM)
                self.assertEqual(daemon.wait(), 0)

    def test_every_prompt_length_and_chunk(self):
        draw = random.Random(7)
        prompt = [draw.randrange(300, 40000) for _ in range(37)]
        cold = None
        for chunk in [1, 16, 36, 37, 64]:
            with Daemon("--max-num-batched-tokens", str(chunk), "--max-num-seqs",
                        str(min(chunk, 16))) as daemon:
                entries, _ = prompt_logprobs(daemon, prompt, 3)
                self.assertEqual(len(entries), 36)
                cold = cold or entries
                self.assertEqual(entries, cold, chunk)
                self.assertEqual(prompt_logprobs(daemon, prompt[:1], 3)[0], [])


class PriorityTest(unittest.TestCase):
    def test_priority_by_metadata(self):
        with Daemon("--scheduling-policy", "priority", "--max-num-seqs", "1") as daemon:
            first = greedy([1, 2, 3], 3000)
            first.scheduling.priority = 1000
            running = daemon.generation.Generate(first)
            next(running)
            order, threads = [], []

            def ask(name, metadata):
                for event in daemon.generation.Generate(greedy([4, 5, 6], 3), metadata=metadata):
                    if event.HasField("accepted"):
                        order.append(name)
            for i, (name, metadata) in enumerate([
                    ("low", [("x-priority", "-100")]), ("none", []),
                    ("high", [("x-priority", "100"), ("x-tenant-id", "blue")])]):
                threads.append(threading.Thread(target=ask, args=(name, metadata)))
                threads[-1].start()
                self.assertTrue(eventually(lambda: daemon.blocks().queued_requests == i + 1))
            running.cancel()
            for thread in threads:
                thread.join()
            self.assertEqual(order, ["high", "none", "low"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
