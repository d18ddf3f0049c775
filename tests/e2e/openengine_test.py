"""Clients that know nothing but the port: reflection lists every service and describes it, health
knows each by name, and openengine.v1 is used with what reflection told. Expected answers are those
of quire.v1 for the same request."""
import unittest

import grpc

from daemon import Daemon, collect, eventually, greedy, messages_of, pb, public_protos

PROMPT = "The capital of France is"
SERVICES = {"quire.v1.Generation", "vllm.grpc.engine.VllmEngine", "openengine.v1.Inference",
            "openengine.v1.Control", "inference.GRPCInferenceService"}
READY, DRAINING = 2, 4
STOP, LENGTH, CANCELLED = 1, 2, 3


class Reflected:
    """Methods of the services on a channel, by their full names, from reflection alone."""

    def __init__(self, channel, version="v1"):
        self.channel = channel
        proto = public_protos()
        request = proto("grpc.reflection.v1.ServerReflectionRequest")
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=proto("grpc.reflection.v1.ServerReflectionResponse").FromString)
        listed = next(ask(iter([request(list_services="")]))).list_services_response.service
        self.services = {s.name for s in listed}
        files = {}
        for answer in ask(iter([request(file_containing_symbol=s)
                                for s in self.services if not s.startswith("grpc.")])):
            for data in answer.file_descriptor_response.file_descriptor_proto:
                files[data] = None
        self.message, self.pool = messages_of(files)

    def call(self, service, name):
        method = self.pool.FindServiceByName(service).FindMethodByName(name)
        make = self.channel.unary_stream if name in {"Generate", "SubscribeKvEvents"} \
            else self.channel.unary_unary
        return make(f"/{service}/{name}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=self.message(method.output_type.full_name).FromString)


class OpenEngineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-num-seqs", "8", "--served-model-name", "smol").__enter__()
        cls.known = Reflected(cls.daemon.channel)
        cls.generate = staticmethod(cls.known.call("openengine.v1.Inference", "Generate"))
        cls.make = staticmethod(lambda name: cls.known.message(f"openengine.v1.{name}"))

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def control(self, name, **fields):
        return self.known.call("openengine.v1.Control", name)(self.make(f"{name}Request")(**fields))

    def request(self, text=PROMPT, max_tokens=8, temperature=0.0, request_id="r"):
        r = self.make("GenerateRequest")(request_id=request_id, prompt=text)
        r.sampling.temperature = temperature
        r.stopping.max_tokens = max_tokens
        return r

    def expected(self, max_tokens=8, text=PROMPT, **response):
        return collect(self.daemon.generation.Generate(pb.GenerateRequest(
            text=text, sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StoppingOptions(max_tokens=max_tokens),
            response=pb.ResponseOptions(token_ids=True, num_logprobs=2))))

    def assert_refused(self, r, code, *parts, metadata=None):
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.generate(r, metadata=metadata))
        self.assertEqual(caught.exception.code(), code)
        for part in parts:
            self.assertIn(part, caught.exception.details())

    def test_reflection_tells_every_service(self):
        for version in ["v1", "v1alpha"]:
            known = Reflected(self.daemon.channel, version)
            self.assertLessEqual(SERVICES | {"grpc.health.v1.Health"}, known.services)
            for service in SERVICES:
                self.assertGreater(len(known.pool.FindServiceByName(service).methods), 0)

    def test_health_by_name(self):
        proto = public_protos()
        request = proto("grpc.health.v1.HealthCheckRequest")
        check = self.daemon.channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=proto("grpc.health.v1.HealthCheckResponse").FromString)
        for service in SERVICES | {""}:
            self.assertEqual(check(request(service=service)).status, 1, service)
        for service in ["sglang.grpc.scheduler.SglangScheduler", "vllm"]:
            with self.assertRaises(grpc.RpcError) as caught:
                check(request(service=service))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_other_engines_are_unimplemented_at_once(self):
        # In this order gateways ask what an engine is.
        for service in ["sglang.grpc.scheduler.SglangScheduler", "trtllm.TrtllmService"]:
            call = self.daemon.channel.unary_unary(f"/{service}/HealthCheck")
            with self.assertRaises(grpc.RpcError) as caught:
                call(b"")
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_text_and_ids_with_logprobs(self):
        ids, logprobs, text, last = self.expected()
        r = self.request()
        r.response.return_output_logprobs = True
        r.response.output_candidates.top_n = 2
        events = list(self.generate(r))
        tokens = [t for e in events for t in e.token.tokens]
        self.assertEqual([t.token_id for t in tokens], ids)
        self.assertEqual("".join(e.token.text for e in events), text)
        self.assertEqual([t.logprob for t in tokens], logprobs)
        self.assertTrue(all(len(t.candidates) == 2 for t in tokens))
        self.assertTrue(all(t.candidates[0].rank == 1 for t in tokens))
        self.assertEqual({e.request_id for e in events}, {"r"})
        self.assertEqual(events[-1].finished.reason, LENGTH)
        self.assertEqual(events[-1].usage.prompt_tokens, last.usage.prompt_tokens)
        self.assertEqual(events[-1].usage.completion_tokens, 8)
        self.assertEqual(events[-1].usage.total_tokens, last.usage.prompt_tokens + 8)

    def test_asked_candidates(self):
        r = self.request(max_tokens=2)
        r.response.return_output_logprobs = True
        r.response.output_candidates.token_ids.ids.extend([10, 11])
        tokens = [t for e in self.generate(r) for t in e.token.tokens]
        self.assertEqual([[c.token_id for c in t.candidates] for t in tokens], [[10, 11]] * 2)

    def test_prompt_logprobs_from_an_offset(self):
        prompt = list(self.daemon.generation.Tokenize(pb.TokenizeRequest(text=PROMPT)).token_ids)
        for start in [0, 2]:
            r = self.request(max_tokens=1)
            r.response.return_prompt_logprobs = True
            r.response.prompt_logprob_start = start
            told = [t for e in self.generate(r) for t in e.prompt.tokens]
            self.assertEqual([t.token_id for t in told], prompt[start:])
            self.assertEqual([t.HasField("logprob") for t in told],
                             [start > 0] + [True] * (len(prompt) - start - 1))

    def test_why_it_stopped(self):
        ids, _, text, _ = self.expected()
        r = self.request()
        r.stopping.conditions.add(stop_text=text.split()[1])
        self.assertEqual(list(self.generate(r))[-1].finished.stop_match.stop_text, text.split()[1])
        r = self.request()
        r.stopping.conditions.add(stop_token_id=ids[2])
        self.assertEqual(list(self.generate(r))[-1].finished.stop_match.stop_token_id, ids[2])
        chat = self.daemon.generation.Tokenize(pb.TokenizeRequest(chat=pb.ChatInput(
            messages=[pb.ChatMessage(role="user", content="Say hi.")]))).token_ids
        r = self.request(max_tokens=200)
        r.token_ids.ids.extend(chat)
        finished = list(self.generate(r))[-1].finished
        self.assertEqual(finished.reason, STOP)
        self.assertEqual(finished.stop_match.WhichOneof("match"), "eos_token_id")

    def test_several_sequences_and_beams(self):
        r = self.request(max_tokens=4, temperature=1.0)
        r.sampling.num_sequences = 3
        r.sampling.seed = 1
        ends = [e.finished.output_index for e in self.generate(r)
                if e.WhichOneof("event") == "finished"]
        self.assertEqual(sorted(ends), [0, 1, 2])
        r = self.request(max_tokens=6)
        r.extra.update({"beam_width": 3, "length_penalty": 0.5, "early_stopping": "never",
                        "a_key_of_another_engine": 1})
        texts = {}
        for e in self.generate(r):
            if e.WhichOneof("event") == "token":
                texts[e.token.output_index] = texts.get(e.token.output_index, "") + e.token.text
        own = self.daemon.generation.GenerateUnary(pb.GenerateRequest(
            text=PROMPT, stopping=pb.StoppingOptions(max_tokens=6),
            sampling=pb.SamplingParams(temperature=0),
            beam=pb.BeamParams(beam_width=3, num_return_sequences=3, length_penalty=0.5,
                               early_stopping=pb.EARLY_STOPPING_NEVER)))
        self.assertEqual([texts[i] for i in range(3)], [o.text for o in own.outputs])

    def test_cache_salt(self):
        cached = []
        for salt in ["a", "a", "b"]:
            r = self.request(text="Salted " * 60, max_tokens=1)
            r.kv.cache_salt = salt
            cached.append(list(self.generate(r))[-1].usage.cached_prompt_tokens)
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 0)
        self.assertEqual(cached[2], 0)

    def test_refusals_come_before_the_first_event(self):
        bad = grpc.StatusCode.INVALID_ARGUMENT
        cases = []
        r = self.request(max_tokens=0)
        cases.append((r, "stopping.max_tokens=0"))
        r = self.request()
        r.sampling.num_sequences = 1000
        cases.append((r, "sampling.num_sequences=1000"))
        r = self.request()
        r.response.output_candidates.top_n = 1
        cases.append((r, "return_output_logprobs"))
        r = self.request()
        r.response.return_output_logprobs = True
        r.response.output_candidates.all.SetInParent()
        cases.append((r, "output_candidates.all"))
        r = self.request()
        r.kv.session.session_id = "s"
        cases.append((r, "kv.session"))
        r = self.request()
        r.media.add(url="file:///x")
        cases.append((r, "media"))
        r = self.request()
        r.stopping.conditions.add()
        cases.append((r, "stopping.conditions[0]"))
        r = self.request()
        r.extra.update({"beam_width": "many"})
        cases.append((r, "extra.beam_width"))
        r = self.request()
        r.extra.update({"kv_retention": "nonsense"})
        cases.append((r, "extra.kv_retention"))
        r = self.request()
        r.lora_name = "sql"
        cases.append((r, "lora_name=sql"))
        for r, part in cases:
            with self.subTest(part=part):
                self.assert_refused(r, bad, part)
        r = self.request()
        r.model = "other"
        self.assert_refused(r, grpc.StatusCode.NOT_FOUND, "model=other")
        self.assert_refused(self.request(), bad, "openengine-priority=x",
                            metadata=[("openengine-priority", "x")])
        self.assert_refused(self.request(), bad, "openengine-target-dp-rank=1",
                            metadata=[("openengine-target-dp-rank", "1")])
        self.assertEqual(len(list(self.generate(self.request(), metadata=[
            ("openengine-priority", "5")]))) > 0, True)

    def test_abort_by_id_and_of_all(self):
        for fields in [{"request_id": "long"}, {"all_requests": self.make("AllRequests")()}]:
            r = self.request(max_tokens=1000, request_id="long")
            r.stopping.ignore_eos = True
            call = self.generate(r)
            next(call)
            self.assertEqual(self.control("Abort", **fields).status, 1)  # ABORTED
            self.assertEqual(list(call)[-1].finished.reason, CANCELLED)
            self.assertEqual(call.code(), grpc.StatusCode.OK)
            self.assertTrue(eventually(lambda: self.daemon.blocks().used_blocks == 0))
        self.assertEqual(self.control("Abort", request_id="long").status, 2)  # ALREADY_FINISHED
        with self.assertRaises(grpc.RpcError):
            self.control("Abort")

    def test_what_is_told(self):
        info = self.control("GetServerInfo")
        self.assertEqual(list(info.supported_models), ["smol"])
        self.assertEqual(info.capacity.max_running_requests, 8)
        self.assertEqual(info.capacity.total_kv_blocks, self.daemon.blocks().total_blocks)
        model = self.control("GetModelInfo", model="smol")
        self.assertEqual(model.max_context_length,
                         self.daemon.admin.GetModelInfo(pb.GetModelInfoRequest()).max_model_len)
        self.assertTrue(model.generation.supports_cache_salt)
        health = self.control("Health", include_inference_probe=True)
        self.assertEqual(health.state, READY)
        self.assertEqual([c.state for c in health.checks], [READY])
        self.assertEqual(len(self.control("ListLoras").adapters), 0)
        with self.assertRaises(grpc.RpcError) as caught:
            self.control("GetModelInfo", model="other")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        with self.assertRaises(grpc.RpcError) as caught:
            self.control("LoadLora")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_load_rises_and_falls(self):
        r = self.request(max_tokens=1000)
        r.stopping.ignore_eos = True
        call = self.generate(r)
        next(call)
        load = self.control("GetLoad", include_per_rank=True)
        self.assertEqual(load.running_requests, 1)
        self.assertGreater(load.used_kv_blocks, 0)
        self.assertEqual(len(load.ranks), 1)
        self.assertGreater(load.attributes["gen_throughput"], 0)
        call.cancel()
        self.assertTrue(eventually(lambda: self.control("GetLoad").used_kv_blocks == 0))


class KvEventsTest(unittest.TestCase):

    def test_a_snapshot_and_what_comes_after_it(self):
        with Daemon("--kv-events", "--kv-events-endpoint", "",
                    "--prefix-hash-algorithm", "sha256_cbor") as daemon:
            known = Reflected(daemon.channel)
            message = known.message("openengine.v1.SubscribeKvEventsRequest")

            def ask(first):
                collect(daemon.generation.Generate(greedy([first + i for i in range(70)], 2)))

            def tree():
                return {n.hash for b in daemon.admin.DumpPrefixTree(
                    pb.DumpPrefixTreeRequest(limit=1000)) for n in b.nodes}

            def apply(batch, stored):
                for event in batch.events:
                    if event.HasField("all_blocks_cleared"):
                        stored.clear()
                    self.assertEqual({h.encoding for h in event.block_stored.block_hashes},
                                     {"bytes"} if event.HasField("block_stored") else set())
                    stored |= {h.value for h in event.block_stored.block_hashes}
                    stored -= {h.value for h in event.block_removed.block_hashes}

            ask(100)
            stream = known.call("openengine.v1.Control", "SubscribeKvEvents")(
                message(include_snapshot=True))
            first = next(stream).batch
            self.assertTrue(first.events[0].HasField("all_blocks_cleared"))
            stored = set()
            apply(first, stored)
            self.assertEqual(len(stored), 4)
            self.assertEqual(stored, tree())
            ask(300)
            second = next(stream).batch
            self.assertEqual(second.sequence_number, first.sequence_number + 1)
            apply(second, stored)
            while stored != tree():
                apply(next(stream).batch, stored)
            sources = known.call("openengine.v1.Control", "GetKvEventSources")(
                known.message("openengine.v1.GetKvEventSourcesRequest")())
            self.assertEqual(len(sources.sources), 0)  # no ZeroMQ here
            daemon.terminate()
            last = list(stream)[-1]
            self.assertEqual(last.error.code, 11)  # DRAINING
            self.assertEqual(stream.code(), grpc.StatusCode.OK)
            self.assertEqual(daemon.wait(), 0)


class DrainTest(unittest.TestCase):

    def test_draining_is_told_and_nobody_is_cut(self):
        with Daemon() as daemon:
            known = Reflected(daemon.channel)
            r = known.message("openengine.v1.GenerateRequest")(prompt=PROMPT)
            r.stopping.max_tokens = 200
            r.stopping.ignore_eos = True
            call = known.call("openengine.v1.Inference", "Generate")(r)
            next(call)
            ready = known.call("openengine.v1.Control", "Health")
            request = known.message("openengine.v1.HealthRequest")
            daemon.terminate()
            self.assertTrue(eventually(lambda: ready(request()).state == DRAINING))
            engine = known.call("vllm.grpc.engine.VllmEngine", "HealthCheck")
            self.assertFalse(engine(known.message("vllm.grpc.engine.HealthCheckRequest")()).healthy)
            kserve = known.call("inference.GRPCInferenceService", "ServerReady")
            self.assertFalse(kserve(known.message("inference.ServerReadyRequest")()).ready)
            with self.assertRaises(grpc.RpcError) as caught:
                list(known.call("openengine.v1.Inference", "Generate")(r))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(list(call)[-1].usage.completion_tokens, 200)
            self.assertEqual(call.code(), grpc.StatusCode.OK)
            self.assertEqual(daemon.wait(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
