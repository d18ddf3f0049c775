"""The real daemon on the real model, asked by a Python gRPC client: right tokens, alone and in
company; health and reflection for clients that know nothing of Quire; clients that are killed.
HARD-CASES N04."""
import json
import random
import signal
import subprocess
import unittest
from concurrent import futures

import grpc

from daemon import BINARY, FLOAT32, REFERENCE, Daemon, collect, environment, eventually, greedy, messages_of
from daemon import pb, public_protos, run

GOLDEN = json.loads((REFERENCE / "smollm2" / "golden.json").read_text())
SAFE_MARGIN = 0.01  # of golden.json's rule: equal up to the first step below it


class GenerateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*FLOAT32)  # answers are compared with the reference's

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def assert_idle(self, daemon=None):
        daemon = daemon or self.daemon
        self.assertTrue(eventually(lambda: daemon.blocks().live_requests == 0
                                   and daemon.blocks().used_blocks == 0), daemon.blocks())
        stats = daemon.blocks()
        self.assertEqual(stats.cached_blocks + stats.empty_blocks, stats.total_blocks)

    def test_greedy_tokens_equal_the_reference(self):
        compared = 0
        with Daemon(*FLOAT32) as daemon:
            for prompt in GOLDEN["prompts"]:
                ids, _, _, last = collect(daemon.generation.Generate(
                    greedy(prompt["input_ids"], GOLDEN["new_tokens"])))
                self.assertEqual(len(ids), GOLDEN["new_tokens"])
                safe = next((i for i, m in enumerate(prompt["margins"]) if m < SAFE_MARGIN),
                            len(prompt["margins"]))
                self.assertEqual(ids[:safe], prompt["greedy"][:safe], prompt["text"][:60])
                self.assertEqual(last.finished.reason, pb.FINISH_REASON_LENGTH)
                compared += safe
        self.assertGreater(compared, 600)

    def test_chat_is_rendered_and_tokenized_as_the_reference(self):
        chats = [p for p in GOLDEN["prompts"] if p["kind"] == "chat"]
        self.assertGreater(len(chats), 0)
        for prompt in chats:
            chat = pb.ChatInput(messages=[pb.ChatMessage(**m) for m in prompt["source"]])
            tokens = self.daemon.generation.Tokenize(pb.TokenizeRequest(chat=chat))
            self.assertEqual(tokens.rendered_text, prompt["text"])
            self.assertEqual(list(tokens.token_ids), prompt["input_ids"])
            request = greedy([], 8)
            request.chat.CopyFrom(chat)
            tokens = greedy(prompt["input_ids"], 8)
            told, _, _, last = collect(self.daemon.generation.Generate(request))
            self.assertEqual(told, collect(self.daemon.generation.Generate(tokens))[0])
            self.assertEqual(last.usage.prompt_tokens, len(prompt["input_ids"]))
            with Daemon(*FLOAT32) as daemon:
                ids, _, _, _ = collect(daemon.generation.Generate(request))
            self.assertEqual(ids, prompt["greedy"][:8])

    def test_streamed_text_is_the_unary_text(self):
        request = pb.GenerateRequest(
            text="Once upon a time", sampling=pb.SamplingParams(seed=7, temperature=0.8, n=2),
            stopping=pb.StoppingOptions(max_tokens=24))
        texts = ["", ""]
        for event in self.daemon.generation.Generate(request):
            texts[event.delta.output_index] += event.delta.text
        unary = self.daemon.generation.GenerateUnary(request)
        self.assertEqual([o.text for o in unary.outputs], texts)
        self.assertNotEqual(texts[0], texts[1])

    def test_prefix_hit_changes_no_token(self):
        prompt = GOLDEN["prompts"][0]["input_ids"] * 3
        cold, cold_logprobs, _, _ = collect(
            self.daemon.generation.Generate(greedy(prompt, 8)))
        warm, warm_logprobs, _, last = collect(
            self.daemon.generation.Generate(greedy(prompt, 8)))
        self.assertGreater(last.usage.cached_tokens, 0)
        self.assertEqual((warm, warm_logprobs), (cold, cold_logprobs))

    def test_killed_client_gives_its_blocks_back(self):
        self.assert_idle()
        client = subprocess.Popen(
            [BINARY, "generate", "--port", str(self.daemon.port), "--raw", "--temperature", "0.9",
             "--ignore-eos", "--max-tokens", "4000", "Tell me a long story"],
            stdout=subprocess.PIPE, env=environment())
        self.assertTrue(client.stdout.read(8))
        self.assertGreater(self.daemon.blocks().used_blocks, 0)
        client.kill()
        client.wait()
        client.stdout.close()
        self.assert_idle()
        # Far from its end: it was let go, it didn't finish.
        info = self.daemon.admin.GetServerInfo(pb.GetServerInfoRequest())
        self.assertGreater(info.requests.cancelled, 0)
        self.assertIsNone(self.daemon.process.poll())

    def test_cancel_and_deadline(self):
        call = self.daemon.generation.Generate(greedy([1, 2, 3], 4000))
        next(call)
        call.cancel()
        with self.assertRaises(grpc.RpcError) as error:
            list(call)
        self.assertEqual(error.exception.code(), grpc.StatusCode.CANCELLED)
        with self.assertRaises(grpc.RpcError) as error:
            collect(self.daemon.generation.Generate(greedy([1, 2, 3], 4000), timeout=0.5))
        self.assertEqual(error.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assert_idle()

    def test_refusals(self):
        for request, code, parts in [
                (greedy([1], 4, temperature=float("nan")), grpc.StatusCode.INVALID_ARGUMENT,
                 ["sampling.temperature=nan"]),
                (greedy([1] * 9000, 1), grpc.StatusCode.INVALID_ARGUMENT,
                 ["prompt has 9000 tokens", "max_model_len=8192"]),
                (greedy([49152], 1), grpc.StatusCode.INVALID_ARGUMENT, ["49152", "49151"]),
                (pb.GenerateRequest(model="other", text="x"), grpc.StatusCode.NOT_FOUND,
                 ["model=other"])]:
            with self.assertRaises(grpc.RpcError) as error:
                list(self.daemon.generation.Generate(request))
            self.assertEqual(error.exception.code(), code)
            for part in parts:
                self.assertIn(part, error.exception.details())

    def test_health(self):
        proto = public_protos()
        check = self.daemon.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=proto("grpc.health.v1.HealthCheckResponse").FromString)
        request = proto("grpc.health.v1.HealthCheckRequest")
        for service in ["", "quire.v1.Generation"]:
            self.assertEqual(check(request(service=service)).status, 1)  # SERVING
        with self.assertRaises(grpc.RpcError) as error:
            check(request(service="quire.v1.Admin"))  # which has a listener of its own
        self.assertEqual(error.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_client_that_knows_only_reflection(self):
        proto = public_protos()
        request = proto("grpc.reflection.v1.ServerReflectionRequest")
        for version in ["v1", "v1alpha"]:  # the same messages on the wire
            ask = self.daemon.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=proto(
                    "grpc.reflection.v1.ServerReflectionResponse").FromString)
            answers = list(ask(iter([
                request(list_services=""),
                request(file_containing_symbol="quire.v1.Generation"),
                request(file_by_filename="no/such.proto")])))
            names = {s.name for s in answers[0].list_services_response.service}
            self.assertLessEqual({"quire.v1.Generation", "grpc.health.v1.Health"}, names)
            self.assertNotIn("quire.v1.Admin", names)
            self.assertEqual(answers[2].error_response.error_code, 5)  # NOT_FOUND
            files = list(answers[1].file_descriptor_response.file_descriptor_proto)
            message, pool = messages_of(files)
            method = pool.FindServiceByName("quire.v1.Generation").FindMethodByName("Generate")
            generate = self.daemon.channel.unary_stream(
                "/quire.v1.Generation/Generate",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=message(method.output_type.full_name).FromString)
            prompt = GOLDEN["prompts"][0]
            asked = message(method.input_type.full_name)()
            asked.token_ids.ids.extend(prompt["input_ids"])
            asked.sampling.temperature = 0
            asked.stopping.max_tokens = 4
            asked.response.token_ids = True
            ids = [i for event in generate(asked) for i in event.delta.token_ids]
            self.assertEqual(ids, prompt["greedy"][:4])

    def test_command_line_clients(self):
        port = ["--port", str(self.daemon.port)]
        answer = run("generate", *port, "--temperature", "0", "--max-tokens", "7", "--stats",
                     "What is the capital of France?")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(answer.stdout, "The capital of France is Paris.\n")
        self.assertIn("tokens/s", answer.stderr)
        raw = run("generate", *port, "--raw", "--temperature", "0", "--max-tokens", "1",
                  "The capital of France is")
        self.assertEqual(raw.stdout, " Paris\n")
        bench = run("bench", "serve", *port, "--workload", "W1", "--json")
        self.assertEqual(bench.returncode, 0, bench.stderr)
        row = json.loads(bench.stdout)[0]
        self.assertEqual((row["workload"], row["requests"], row["output_tokens"]), ("W1", 1, 128))
        self.assertGreater(row["output_tokens_per_s"], 0)
        nobody = run("generate", "--port", "1", "x")
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("is `quire serve` running there?", nobody.stderr)

    def test_no_prompt_and_no_answer_in_the_log(self):
        secret = "xylophone zebra quartz"
        self.daemon.generation.GenerateUnary(pb.GenerateRequest(
            text=secret, stopping=pb.StoppingOptions(max_tokens=4), request_id="log-test"))
        self.assertTrue(eventually(lambda: "id=log-test" in self.daemon.read_log()))
        self.assertNotIn("xylophone", self.daemon.read_log())


class CompanyTest(unittest.TestCase):
    """64 requests at once over one connection: each answer is, bit for bit, its solo answer."""

    def solo_and_together(self, daemon, requests, solo):
        if solo is None:
            solo = [collect(daemon.generation.Generate(r))[:2] for r in requests]
        with futures.ThreadPoolExecutor(len(requests)) as pool:
            together = list(pool.map(
                lambda r: collect(daemon.generation.Generate(r))[:2], requests))
        for i, (alone, beside) in enumerate(zip(solo, together)):
            self.assertEqual(beside, alone, f"request {i}")
        return solo

    def test_company_changes_no_bit(self):
        draw = random.Random(5)
        shared = [draw.randrange(300, 40000) for _ in range(40)]
        requests = []
        for i in range(64):
            own = [draw.randrange(300, 40000) for _ in range(draw.randrange(1, 30))]
            prompt = shared + own if i % 2 else own
            sampling = {"temperature": 0.9, "seed": i} if i % 3 == 0 else {}
            requests.append(greedy(prompt, 10 + i % 7, **sampling))
        solo = None
        for args, expect in [
                (["--no-enable-prefix-caching"], lambda s: self.assertEqual(s.cached_tokens, 0)),
                ([], lambda s: self.assertGreater(s.cached_tokens, 0)),
                (["--num-blocks", "64", "--max-model-len", "512"],
                 lambda s: self.assertGreater(s.preemptions, 0))]:
            with Daemon(*args) as daemon:
                solo = self.solo_and_together(daemon, requests, solo)
                expect(daemon.blocks())
                self.assertEqual(daemon.blocks().used_blocks, 0)
                daemon.terminate(signal.SIGTERM)
                self.assertEqual(daemon.wait(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
