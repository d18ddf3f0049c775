"""VllmEngine as a router meets it: the stubs of PyPI's smg-grpc-proto, unchanged, against the daemon.
Expected tokens are those of quire.v1 for the same request. HARD-CASES N01, N04, N06, N13 by this
service."""
import hashlib
import io
import json
import random
import threading
import unittest
import zipfile

import grpc
import tokenizers
from google.protobuf import descriptor_pb2
from smg_grpc_proto import vllm_engine_pb2 as ve
from smg_grpc_proto import vllm_engine_pb2_grpc as ve_rpc
from smg_grpc_proto.generated import common_pb2 as smg

from daemon import MODEL, STUBS, Daemon, collect, eventually, pb
from tritonclient.grpc import model_config_pb2, service_pb2

PROMPT = "The capital of France is"


def request(text=PROMPT, ids=None, stream=True, request_id="", **sampling):
    r = ve.GenerateRequest(request_id=request_id, stream=stream,
                           sampling_params=ve.SamplingParams(**sampling))
    if ids is None:
        r.text = text
    else:
        r.tokenized.input_ids.extend(ids)
    return r


def greedy(**kwargs):
    return request(temperature=0, **kwargs)


class VllmEngineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-num-seqs", "8").__enter__()
        cls.stub = ve_rpc.VllmEngineStub(cls.daemon.channel)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def ids_of(self, text):
        return list(self.daemon.generation.Tokenize(pb.TokenizeRequest(text=text)).token_ids)

    def expected(self, max_tokens, n_logprobs=0, text=PROMPT, **stopping):
        events = self.daemon.generation.Generate(pb.GenerateRequest(
            text=text, sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StoppingOptions(max_tokens=max_tokens, **stopping),
            response=pb.ResponseOptions(token_ids=True, num_logprobs=n_logprobs)))
        return collect(events)

    def assert_refused(self, call, code, *parts):
        with self.assertRaises(grpc.RpcError) as caught:
            list(call)
        self.assertEqual(caught.exception.code(), code)
        for part in parts:
            self.assertIn(part, caught.exception.details())

    def test_stream_is_chunks_and_one_complete(self):
        ids, logprobs, _, last = self.expected(12)
        responses = list(self.stub.Generate(greedy(max_tokens=12, logprobs=2)))
        chunks = [r.chunk for r in responses if r.WhichOneof("response") == "chunk"]
        completes = [r.complete for r in responses if r.WhichOneof("response") == "complete"]
        self.assertEqual(responses[-1].WhichOneof("response"), "complete")
        self.assertEqual(len(completes), 1)
        self.assertEqual([t for c in chunks for t in c.token_ids], ids)
        self.assertEqual(sum(c.completion_tokens for c in chunks), len(ids))
        self.assertEqual({c.prompt_tokens for c in chunks}, {len(self.ids_of(PROMPT))})
        self.assertEqual([p for c in chunks for p in c.output_logprobs.token_logprobs], logprobs)
        for chunk in chunks:
            self.assertEqual(len(chunk.output_logprobs.top_logprobs), len(chunk.token_ids))
            for top in chunk.output_logprobs.top_logprobs:
                self.assertEqual(len(top.token_ids), 2)
        complete = completes[0]
        self.assertEqual(list(complete.output_ids), list(chunks[-1].token_ids))
        self.assertEqual(complete.finish_reason, "length")
        self.assertEqual(complete.prompt_tokens, last.usage.prompt_tokens)
        self.assertIsNone(complete.WhichOneof("matched_stop"))

    def test_not_streamed_is_one_complete_with_all(self):
        ids, logprobs, _, _ = self.expected(12)
        responses = list(self.stub.Generate(greedy(max_tokens=12, logprobs=0, stream=False)))
        self.assertEqual([r.WhichOneof("response") for r in responses], ["complete"])
        complete = responses[0].complete
        self.assertEqual(list(complete.output_ids), ids)
        self.assertEqual(complete.completion_tokens, 12)
        self.assertEqual(list(complete.output_logprobs.token_logprobs), logprobs)
        self.assertEqual(len(complete.output_logprobs.top_logprobs), 0)

    def test_token_ids_and_text_are_the_same_prompt(self):
        by_text = list(self.stub.Generate(greedy(max_tokens=6, stream=False)))
        by_ids = list(self.stub.Generate(
            greedy(ids=self.ids_of(PROMPT), max_tokens=6, stream=False)))
        self.assertEqual(by_ids[0].complete.output_ids, by_text[0].complete.output_ids)

    def test_prompt_logprobs_come_with_the_first_chunk(self):
        prompt = self.ids_of(PROMPT)
        responses = list(self.stub.Generate(greedy(max_tokens=3, prompt_logprobs=1)))
        chunks = [r.chunk for r in responses if r.WhichOneof("response") == "chunk"]
        first = chunks[0].input_logprobs
        self.assertEqual(list(first.token_ids), prompt)
        self.assertEqual(len(first.top_logprobs), len(prompt))
        self.assertFalse(first.token_logprobs[0].HasField("value"))
        self.assertTrue(all(p.value <= 0 and p.HasField("value")
                            for p in first.token_logprobs[1:]))
        self.assertFalse(any(c.HasField("input_logprobs") for c in chunks[1:]))

    def test_n_outputs_each_with_its_complete(self):
        responses = list(self.stub.Generate(request(max_tokens=5, n=3, seed=7, ignore_eos=True)))
        tokens = {0: 0, 1: 0, 2: 0}
        ends = []
        for r in responses:
            if r.WhichOneof("response") == "chunk":
                tokens[r.chunk.index] += r.chunk.completion_tokens
            else:
                ends.append(r.complete.index)
        self.assertEqual(sorted(ends), [0, 1, 2])
        self.assertEqual(tokens, {0: 5, 1: 5, 2: 5})

    def test_what_matched(self):
        ids, _, _, _ = self.expected(8)
        stop = ids[3]
        first = ids.index(stop)
        complete = list(self.stub.Generate(greedy(max_tokens=8, stop_token_ids=[stop],
                                                  stream=False)))[0].complete
        self.assertEqual(complete.matched_token_id, stop)
        self.assertEqual(complete.finish_reason, "stop")
        self.assertEqual(list(complete.output_ids), ids[:first + 1])
        text = self.expected(8)[2]
        word = text.split()[2]
        complete = list(self.stub.Generate(greedy(max_tokens=8, stop=[word],
                                                  stream=False)))[0].complete
        self.assertEqual(complete.matched_stop_str, word)
        # The model's own end is no match.
        chat = self.daemon.generation.Tokenize(pb.TokenizeRequest(chat=pb.ChatInput(
            messages=[pb.ChatMessage(role="user", content="Say hi.")]))).token_ids
        complete = list(self.stub.Generate(greedy(ids=chat, max_tokens=200,
                                                  stream=False)))[0].complete
        self.assertEqual(complete.finish_reason, "stop")
        self.assertIsNone(complete.WhichOneof("matched_stop"))

    def test_a_constraint_holds(self):
        complete = list(self.stub.Generate(greedy(
            max_tokens=20, stream=False,
            choice=ve.ChoiceConstraint(choices=["Paris", "Rome"]))))[0].complete
        text = self.daemon.generation.Detokenize(
            pb.DetokenizeRequest(token_ids=complete.output_ids)).text
        self.assertIn(text, ["Paris", "Rome"])

    def test_refusals_name_their_fields(self):
        bad = grpc.StatusCode.INVALID_ARGUMENT
        for r, parts in [
                (greedy(max_tokens=0), ["sampling_params.max_tokens=0"]),
                (request(temperature=-1), ["sampling_params.temperature"]),
                (request(top_p=2), ["sampling_params.top_p=2"]),
                (request(temperature=float("nan")), ["sampling_params.temperature"]),
                (greedy(logprobs=-1), ["sampling_params.logprobs=-1"]),
                (greedy(logprobs=99), ["sampling_params.logprobs=99"]),
                (request(ids=[10 ** 9]), ["tokenized.input_ids[0]"]),
                (request(ids=[]), ["0 tokens"]),
                (ve.GenerateRequest(), ["input"]),
                (greedy(truncate_prompt_tokens=0), ["truncate_prompt_tokens=0"]),
                (ve.GenerateRequest(text="x", data_parallel_rank=1), ["data_parallel_rank=1"]),
                (ve.GenerateRequest(text="x", kv_transfer_params_json="{}"),
                 ["kv_transfer_params_json"]),
                (ve.GenerateRequest(text="x", media_refs=ve.MediaRefs()), ["media_refs"]),
                (greedy(regex="("), ["regex"]),
                (request(ids=[5] * 10000, max_tokens=2), ["10000 tokens"])]:
            with self.subTest(parts=parts):
                self.assert_refused(self.stub.Generate(r), bad, *parts)
        self.assert_refused(
            self.stub.Generate(greedy(max_tokens=2), metadata=[("x-data-parallel-rank", "3")]),
            bad, "x-data-parallel-rank=3")
        self.assert_refused(
            self.stub.Generate(greedy(max_tokens=2), metadata=[("x-priority", "a")]), bad,
            "x-priority=a")

    def test_truncation_keeps_the_last_tokens(self):
        ids = self.ids_of(PROMPT)
        whole = list(self.stub.Generate(greedy(ids=ids[-3:], max_tokens=4, stream=False)))
        cut = list(self.stub.Generate(greedy(max_tokens=4, truncate_prompt_tokens=3,
                                             stream=False)))
        self.assertEqual(cut[0].complete.output_ids, whole[0].complete.output_ids)
        self.assertEqual(cut[0].complete.prompt_tokens, 3)

    def test_salts_do_not_share(self):
        text = "Salted " * 60
        cached = []
        for salt in ["a", "a", "b"]:
            responses = list(self.stub.Generate(greedy(text=text, max_tokens=1, stream=False),
                                                metadata=[("x-cache-salt", salt)]))
            cached.append(responses[0].complete.cached_tokens)
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 0)
        self.assertEqual(cached[2], 0)

    def test_abort_ends_with_a_complete(self):
        call = self.stub.Generate(greedy(max_tokens=1000, ignore_eos=True, request_id="to-abort"))
        first = next(call)
        self.assertEqual(first.WhichOneof("response"), "chunk")
        self.stub.Abort(ve.AbortRequest(request_ids=["to-abort", "unknown"]))
        rest = list(call)
        self.assertEqual(rest[-1].complete.finish_reason, "abort")
        self.assertTrue(eventually(lambda: self.daemon.blocks().used_blocks == 0))

    def test_cancel_is_an_abort(self):
        call = self.stub.Generate(greedy(max_tokens=1000, ignore_eos=True))
        next(call)
        call.cancel()
        self.assertTrue(eventually(lambda: self.daemon.blocks().used_blocks == 0))

    def test_ids_in_flight_are_unique(self):
        call = self.stub.Generate(greedy(max_tokens=1000, ignore_eos=True, request_id="twice"))
        next(call)
        self.assert_refused(self.stub.Generate(greedy(max_tokens=1, request_id="twice")),
                            grpc.StatusCode.INVALID_ARGUMENT, "request_id=twice")
        call.cancel()

    def test_what_is_told(self):
        info = self.stub.GetModelInfo(ve.GetModelInfoRequest())
        own = self.daemon.admin.GetModelInfo(pb.GetModelInfoRequest())
        self.assertEqual(info.served_model_name, own.served_model_name)
        self.assertEqual(info.vocab_size, own.vocab_size)
        self.assertEqual(info.max_context_length, own.max_model_len)
        self.assertTrue(set(own.eos_token_ids) <= set(info.eos_token_ids))
        self.assertTrue(info.is_generation)
        server = self.stub.GetServerInfo(ve.GetServerInfoRequest())
        self.assertEqual(server.max_num_seqs, 8)
        self.assertEqual(server.block_size, self.daemon.blocks().block_size)
        self.assertFalse(server.is_paused)
        self.daemon.admin.Pause(pb.PauseRequest())
        self.assertTrue(self.stub.GetServerInfo(ve.GetServerInfoRequest()).is_paused)
        self.daemon.admin.Resume(pb.ResumeRequest())
        self.assertTrue(self.stub.HealthCheck(ve.HealthCheckRequest()).healthy)

    def test_loads_rise_and_fall(self):
        def load():
            loads = self.stub.GetLoads(ve.GetLoadsRequest(
                include=["core", "disagg", "queues", "memory"]))
            self.assertEqual(loads.dp_rank_count, 1)
            return loads.loads[0]
        call = self.stub.Generate(greedy(max_tokens=1000, ignore_eos=True))
        next(call)
        self.assertEqual(load().num_running_reqs, 1)
        self.assertGreater(load().num_used_tokens, 0)
        self.assertGreater(load().max_total_num_tokens, load().num_used_tokens)
        self.assertGreater(load().gen_throughput, 0)
        call.cancel()
        self.assertTrue(eventually(lambda: load().num_running_reqs == 0))
        self.assertEqual(load().num_used_tokens, 0)
        self.assertTrue(eventually(lambda: load().gen_throughput == 0))

    def test_flush_forgets(self):
        text = "Flushed " * 60
        self.assertEqual(self.cached(text), 0)
        self.assertGreater(self.cached(text), 0)
        self.assertTrue(self.stub.FlushCache(smg.FlushCacheRequest()).success)
        self.assertEqual(self.cached(text), 0)

    def cached(self, text):
        return list(self.stub.Generate(
            greedy(text=text, max_tokens=1, stream=False)))[0].complete.cached_tokens

    def test_what_is_not_served_says_so(self):
        missing = grpc.StatusCode.UNIMPLEMENTED
        for call in [lambda: [self.stub.Embed(ve.EmbedRequest())],
                     lambda: [self.stub.StartProfile(smg.StartProfileRequest())],
                     lambda: [self.stub.StopProfile(smg.StopProfileRequest())]]:
            with self.assertRaises(grpc.RpcError) as caught:
                call()
            self.assertEqual(caught.exception.code(), missing)
            self.assertIn("not served", caught.exception.details())
        self.assert_refused(self.stub.SubscribeKvEvents(smg.SubscribeKvEventsRequest()), missing,
                            "kv_events=true")

    def files(self):
        chunks = list(self.stub.GetTokenizer(smg.GetTokenizerRequest()))
        data = b"".join(c.data for c in chunks)
        self.assertEqual(chunks[-1].sha256, hashlib.sha256(data).hexdigest())
        self.assertFalse(any(c.sha256 for c in chunks[:-1]))
        archive = zipfile.ZipFile(io.BytesIO(data))
        self.assertIsNone(archive.testzip())
        return {name: archive.read(name) for name in archive.namelist()}

    def test_tokenizer_of_a_gguf_file_gives_our_ids(self):
        files = self.files()
        for name in ["tokenizer.json", "tokenizer_config.json", "config.json",
                     "generation_config.json", "special_tokens_map.json"]:
            json.loads(files[name])
        theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        draw = random.Random(5)
        alphabets = ["abc XYZ", "0123 456.7", "\u00e4\u00f6\u00df\u00e9", "\u4e2d\u6587\u3042\u30ab",
                     "\u0440\u0443\u0441 \u03b5\u03bb", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
                     "\U0001f600\U0001f468\u200d\U0001f469", " \n\t\r", "'s 're {}[]()<>|", "\0\x7f"]
        texts = ["", " ", "Hello world", "<|im_start|>user\nhi<|im_end|>", "a" * 500]
        for _ in range(500):
            letters = "".join(draw.sample(alphabets, draw.randint(1, 4)))
            texts.append("".join(draw.choice(letters) for _ in range(draw.randint(1, 60))))
        for text in texts:
            self.assertEqual(theirs.encode(text).ids, self.ids_of(text), repr(text))
            ids = self.ids_of(text)
            self.assertEqual(
                theirs.decode(ids, skip_special_tokens=False),
                self.daemon.generation.Detokenize(
                    pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)).text)
        config = json.loads(files["tokenizer_config.json"])
        self.assertIn("<|im_start|>", config["chat_template"])
        self.assertEqual(config["eos_token"], "<|im_end|>")

    def test_many_at_once(self):
        expected = self.expected(16)[0]
        failures = []

        def client():
            for _ in range(4):
                tokens = []
                for r in self.stub.Generate(greedy(max_tokens=16)):
                    tokens += r.chunk.token_ids
                if tokens != expected:
                    failures.append(tokens)
        threads = [threading.Thread(target=client) for _ in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])


class NumbersTest(unittest.TestCase):
    """Our .proto files say what the published ones say: numbers, types, names, oneofs."""

    def ours(self):
        files = descriptor_pb2.FileDescriptorSet.FromString((STUBS / "others.desc").read_bytes())
        return {f.package: f for f in files.file if f.name != "inference/model_config.proto"}, {
            f.name: f for f in files.file}

    def fields(self, message):
        def row(f):
            oneof = message.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else ""
            # One name is a reserved word of protobuf's C++ there; names are not on the wire.
            name = "descriptor" if f.name == "descriptor_bytes" else f.name
            return (f.number, name, f.type, f.label, f.type_name, oneof)
        return sorted(row(f) for f in message.field)

    def messages(self, file):
        todo = [(m.name, m) for m in file.message_type]
        while todo:
            name, message = todo.pop()
            yield name, message
            todo += [(f"{name}.{n.name}", n) for n in message.nested_type]

    def published(self, module):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        return file

    def compare(self, ours, theirs):
        own = dict(self.messages(ours))
        names = 0
        for name, message in self.messages(theirs):
            self.assertEqual(self.fields(own[name]), self.fields(message), name)
            names += 1
        self.assertEqual(len(own), names)
        enums = {e.name: {v.name: v.number for v in e.value} for e in ours.enum_type}
        self.assertEqual(enums, {e.name: {v.name: v.number for v in e.value}
                                 for e in theirs.enum_type})

        def methods(file):
            return {(s.name, m.name, m.input_type, m.output_type, m.client_streaming,
                     m.server_streaming) for s in file.service for m in s.method}
        self.assertEqual(methods(ours), methods(theirs))

    def test_numbers(self):
        by_package, by_name = self.ours()
        self.compare(by_package["vllm.grpc.engine"], self.published(ve))
        self.compare(by_package["smg.grpc.common"], self.published(smg))
        self.compare(by_package["inference"], self.published(service_pb2))
        # The part of the model's configuration that we have.
        theirs = dict(self.messages(self.published(model_config_pb2)))
        config = by_name["inference/model_config.proto"]
        for name, message in self.messages(config):
            self.assertLessEqual(set(self.fields(message)), set(self.fields(theirs[name])), name)


if __name__ == "__main__":
    print(MODEL)
    unittest.main(verbosity=2)
