"""The package quire-client, installed by pip from clients/python, against the real daemon. Run by the
Python of its environment (deploy/client-venv.sh)."""
import asyncio
import json
import pathlib
import subprocess
import sys
import threading
import unittest

import quire_client
from quire_client import (AsyncClient, Client, DeadlineExceededError, FinishReason, Params,
                          QuireError, Tls)

from daemon import Daemon, eventually, pb, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "clients" / "python" / "examples"
GREEDY = Params(max_tokens=12, temperature=0, token_ids=True)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is snow white?"}]


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-num-seqs", "8", "--max-queued-requests", "64")
        cls.address = f"127.0.0.1:{cls.daemon.port}"
        # Where Admin listens, if it is not the port of clients.
        cls.admin = next(iter(getattr(cls.daemon, "admin_addresses", [])), None)
        cls.client = Client(cls.address, timeout=300, admin_address=cls.admin)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.__exit__()

    def assert_idle(self):
        self.assertTrue(eventually(lambda: self.daemon.blocks().live_requests == 0))
        self.assertEqual(self.daemon.blocks().used_blocks, 0)

    # ---- answers ----

    def test_a_streamed_answer_is_the_unary_one(self):
        prompts = ["The capital of France is", "def f(x):\n    return", "Привет, мир", "日本の首都は",
                   "🙂 emoji 🎉 and", [504, 260, 3575, 282, 4649]]
        for prompt in prompts:
            for params in (GREEDY, Params(max_tokens=20, temperature=0.9, seed=7, n=3, token_ids=True,
                                          logprobs=2)):
                whole = self.client.generate(prompt, params)
                with self.client.stream(prompt, params) as stream:
                    texts = {}
                    for delta in stream:
                        texts[delta.output_index] = texts.get(delta.output_index, "") + delta.text
                    streamed = stream.answer()
                self.assertEqual([o.text for o in whole.outputs],
                                 [texts.get(o.index, "") for o in whole.outputs])
                self.assertEqual(streamed.outputs, whole.outputs)
                self.assertEqual(len(whole.outputs), params.n or 1)
                self.assertEqual(streamed.usage.completion_tokens, whole.usage.completion_tokens)
                self.assertEqual(streamed.request_id, stream.request_id)
        self.assert_idle()

    def test_chat_is_the_template_s_text(self):
        answer = self.client.chat(CHAT, GREEDY)
        ids, text = self.client.tokenize_chat(CHAT)
        self.assertIn("Why is snow white?", text)
        self.assertEqual(ids, self.client.tokenize(text, add_special_tokens=False))
        self.assertEqual(answer.outputs, self.client.generate(ids, GREEDY).outputs)
        self.assertEqual(self.client.stream_chat(CHAT, GREEDY).answer().outputs, answer.outputs)
        self.assertEqual(answer.text, answer.outputs[0].text)

    def test_tokens_there_and_back(self):
        for text in "Hello, world!", "naïve café — ½", "数学 🙂":
            self.assertEqual(self.client.detokenize(self.client.tokenize(text)), text)

    def test_what_was_asked_for_comes_back(self):
        answer = self.client.generate("One, two, three, four,", Params(
            max_tokens=30, temperature=0, logprobs=3, prompt_logprobs=1, token_ids=True))
        output = answer.outputs[0]
        self.assertEqual(len(output.token_ids), output.completion_tokens)
        self.assertEqual([entry.token_id for entry in output.logprobs], list(output.token_ids))
        for entry in output.logprobs:
            self.assertEqual(len(entry.top), 3)
            self.assertEqual((entry.rank, entry.top[0].token_id), (1, entry.token_id))
        self.assertEqual(len(answer.prompt_logprobs), answer.usage.prompt_tokens - 1)
        self.assertEqual(output.finish_reason, FinishReason.LENGTH)
        stopped = self.client.generate("One, two, three, four,",
                                       Params(max_tokens=30, temperature=0, stop=["seven"]))
        self.assertEqual(stopped.outputs[0].finish_reason, FinishReason.STOP)
        self.assertEqual(stopped.outputs[0].stop_string, "seven")
        self.assertNotIn("seven", stopped.text)
        self.assertTrue(output.text.startswith(stopped.text) or not output.text)
        person = json.loads(self.client.chat(CHAT, Params(temperature=0, max_tokens=60, json_schema={
            "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
            "additionalProperties": False})).text)
        self.assertIsInstance(person["ok"], bool)
        self.assertIn(self.client.generate("Yes or no?", Params(choice=["yes", "no"])).text,
                      ("yes", "no"))
        beams = self.client.generate("The sea is", Params(max_tokens=5, beam_width=3,
                                                          num_return_sequences=2))
        self.assertGreaterEqual(beams.outputs[0].score, beams.outputs[1].score)
        # What Params does not have.
        edited = self.client.generate("The sea is", Params(
            max_tokens=3, temperature=0, edit=pb.GenerateRequest(
                sampling=pb.SamplingParams(logprob_token_ids=[5, 6]),
                response=pb.ResponseOptions(num_logprobs=0))))
        self.assertEqual([e.token_id for e in edited.outputs[0].logprobs[0].asked], [5, 6])

    # ---- ends ----

    def test_leaving_a_stream_frees_what_it_held(self):
        long = Params(max_tokens=1500, ignore_eos=True)
        with self.client.stream("Once upon a time", long) as stream:
            next(stream)
            self.assertGreater(self.daemon.blocks().used_blocks, 0)
        self.assert_idle()
        with self.assertRaises(quire_client.CancelledError):
            list(stream)
        stream = self.client.stream("Once upon a time", long)
        next(stream)
        stream.cancel()
        self.assert_idle()
        stream = self.client.stream("Once upon a time", long)
        next(stream)
        del stream  # forgotten
        self.assert_idle()

    def test_abort_ends_another_s_request(self):
        stream = self.client.stream("Once upon a time",
                                    Params(max_tokens=1500, ignore_eos=True, request_id="mine"))
        next(stream)
        self.assertEqual([r.request_id for r in self.client.admin.requests()], ["mine"])
        self.assertEqual(self.client.abort("mine", "nobody's"), ["mine"])
        with self.assertRaises(quire_client.CancelledError):
            stream.answer()
        self.assertEqual(self.client.abort_all(), [])
        self.assert_idle()

    def test_deadlines(self):
        long = Params(max_tokens=1900, ignore_eos=True)
        with self.assertRaises(DeadlineExceededError):
            self.client.generate("Once upon a time", long, timeout=0.3)
        with self.assertRaises(DeadlineExceededError):
            self.client.stream("Once upon a time", long, timeout=0.3).answer()
        with self.assertRaises(DeadlineExceededError):
            self.client.generate("Once upon a time", Params(
                max_tokens=1900, ignore_eos=True, total_timeout_ms=200))
        with Client(self.address, timeout=0.3) as hasty:
            with self.assertRaises(DeadlineExceededError):
                hasty.generate("Once upon a time", long)
        self.assert_idle()

    # ---- errors ----

    def test_errors_have_types(self):
        refused = [(quire_client.InvalidArgumentError, Params(temperature=-1), "temperature=-1"),
                   (quire_client.InvalidArgumentError, Params(max_tokens=1 << 30), "max_tokens"),
                   (quire_client.NotFoundError, Params(model="another"), "another")]
        for kind, params, part in refused:
            with self.assertRaises(kind) as caught:
                self.client.generate("a", params)
            self.assertIn(part, caught.exception.message)
            self.assertFalse(caught.exception.retryable)
            with self.assertRaises(kind):
                self.client.stream("a", params).answer()
        for wrong in (Params(speculation="magic"), Params(stop="text"),
                      Params(regex="a", choice=["b"])):
            with self.assertRaises(ValueError):
                self.client.generate("a", wrong)
        with self.assertRaises(ValueError):
            self.client.chat([{"role": "user", "content": "a", "name": "b"}])
        with self.assertRaises(ValueError):
            Client(self.address, tls=Tls(certificate=b"x"))
        with Client("127.0.0.1:1", timeout=20) as nobody:
            with self.assertRaises(quire_client.UnavailableError) as caught:
                nobody.generate("a")
            self.assertTrue(caught.exception.retryable)
        with Client(self.address, tls=True, timeout=20) as encrypted:  # the server speaks plain HTTP/2
            with self.assertRaises(quire_client.UnavailableError):
                encrypted.generate("a")
        self.assert_idle()

    def test_a_full_queue_is_retryable(self):
        self.client.admin.rpc.Pause(pb.PauseRequest())
        try:
            streams = []
            with self.assertRaises(quire_client.ResourceExhaustedError) as caught:
                for _ in range(200):
                    streams.append(self.client.stream("a", Params(max_tokens=1)))
                    # One at a time: what is refused is refused at once.
                    eventually(lambda: self.daemon.blocks().live_requests == len(streams)
                               or not streams[-1]._call.is_active())
                    if not streams[-1]._call.is_active():
                        streams[-1].answer()
            self.assertTrue(caught.exception.retryable)
            self.assertEqual(len(streams), 65)
        finally:
            self.client.admin.rpc.Resume(pb.ResumeRequest())
        for stream in streams[:-1]:
            self.assertEqual(stream.answer().usage.completion_tokens, 1)
        self.assert_idle()

    def test_a_daemon_that_dies_is_no_answer(self):
        with Daemon() as daemon, Client(f"127.0.0.1:{daemon.port}") as client:
            stream = client.stream("Once upon a time", Params(max_tokens=1900, ignore_eos=True))
            next(stream)
            daemon.process.kill()
            with self.assertRaises(quire_client.UnavailableError):
                stream.answer()

    # ---- async ----

    def test_async_concurrency(self):
        prompts = [f"{i} plus {i} is" for i in range(24)]
        expected = [self.client.generate(p, GREEDY).outputs for p in prompts]

        async def main():
            async with AsyncClient(self.address, timeout=300) as client:
                unary = asyncio.gather(*(client.generate(p, GREEDY) for p in prompts))
                streamed = asyncio.gather(*(client.stream(p, GREEDY).answer() for p in prompts))
                chat = await client.chat(CHAT, GREEDY)
                stream = client.stream_chat(CHAT, GREEDY)
                text = "".join([delta.text async for delta in stream])
                self.assertEqual(text, chat.text)
                ids = await client.tokenize("Hello")
                self.assertEqual(await client.detokenize(ids), "Hello")
                self.assertEqual((await client.tokenize_chat(CHAT))[0],
                                 self.client.tokenize_chat(CHAT)[0])
                return await unary, await streamed
        for answers in asyncio.run(main()):
            self.assertEqual([a.outputs for a in answers], expected)
        self.assert_idle()

    def test_async_ends(self):
        long = Params(max_tokens=1900, ignore_eos=True, request_id="long")

        async def main():
            async with AsyncClient(self.address, admin_address=self.admin) as client:
                with self.assertRaises(DeadlineExceededError):
                    await client.generate("Once upon a time", long, timeout=0.3)
                with self.assertRaises(quire_client.InvalidArgumentError):
                    await client.stream("a", Params(top_p=2)).answer()
                async with client.stream("Once upon a time", long) as stream:
                    await stream.__anext__()
                task = asyncio.create_task(client.generate("Once upon a time", Params(
                    max_tokens=1900, ignore_eos=True)))
                while not await client.admin.requests():
                    await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                info = await client.admin.server_info()
                self.assertEqual(info.max_num_seqs, 8)
                self.assertEqual((await client.admin.config()).max_num_seqs, 8)
                self.assertGreater((await client.admin.model_info()).vocab_size, 1000)
        asyncio.run(main())
        self.assert_idle()

    # ---- operators ----

    def test_admin(self):
        admin = self.client.admin
        prompt = list(range(1000, 1064))
        self.client.generate(prompt, Params(max_tokens=1, cache_salt="pinned"))
        pin = admin.pin(prompt, cache_salt="pinned")
        self.assertEqual(pin.num_tokens, 64)
        self.assertEqual(admin.block_stats().pinned_blocks, 4)
        admin.unpin(pin.pin_id)
        self.assertEqual(admin.flush_prefix_cache("pinned").flushed_nodes, 4)
        admin.flush_prefix_cache()
        self.assertEqual(admin.block_stats().cached_blocks, 0)
        self.assertEqual(admin.server_info().version, run("--version").stdout.split()[-1])
        self.assertEqual(admin.memory_profile().num_blocks, admin.block_stats().total_blocks)
        self.assertEqual(admin.config().max_num_seqs, 8)
        with self.assertRaises(QuireError):
            admin.pin([1] * 64, cache_salt="nothing of it")

    def test_threads_share_a_client(self):
        expected = self.client.generate("The sky is", GREEDY).outputs
        outputs = []
        threads = [threading.Thread(target=lambda: outputs.append(
            self.client.stream("The sky is", GREEDY).answer().outputs)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(outputs, [expected] * 12)

    # ---- the package ----

    def test_examples_run(self):
        for name, part in [("complete.py", "tokens, first after"), ("chat.py", "Name a colour. -> "),
                           ("many.py", "15: "), ("structured.py", "years old"),
                           ("status.py", "blocks used")]:
            more = [self.admin] if name == "status.py" and self.admin else []
            result = subprocess.run([sys.executable, str(EXAMPLES / name), self.address, *more],
                                    capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}")
            self.assertIn(part, result.stdout)
        self.assertEqual(sorted(p.name for p in EXAMPLES.glob("*.py")),
                         ["chat.py", "complete.py", "many.py", "status.py", "structured.py"])

    def test_it_is_typed_and_lives_beside_other_stubs(self):
        package = pathlib.Path(quire_client.__file__).parent
        self.assertNotIn(str(ROOT / "clients"), str(package))  # installed, not the checkout
        self.assertTrue((package / "py.typed").exists())
        self.assertTrue((package / "_pb" / "quire_pb2.pyi").exists())
        # daemon.py has imported stubs of the same proto from elsewhere: both work, as one.
        self.assertIsNot(sys.modules["quire.v1.quire_pb2"], sys.modules["quire_client._pb.quire_pb2"])
        for name in quire_client.__all__:
            self.assertTrue(hasattr(quire_client, name), name)


if __name__ == "__main__":
    unittest.main()
