"""KServe v2 by PyPI's tritonclient: ModelInfer, ModelStreamInfer and what is told. Expected texts are
those of quire.v1 for the same request."""
import json
import queue
import unittest

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from daemon import Daemon, collect, eventually, pb

PROMPT = "The capital of France is"


def tensor(name, value):
    if isinstance(value, bool):
        data, kind = np.array([value], dtype=bool), "BOOL"
    else:
        data, kind = np.array([value.encode()], dtype=np.object_), "BYTES"
    t = triton.InferInput(name, [1], kind)
    t.set_data_from_numpy(data)
    return t


def inputs(text=PROMPT, sampling=None, **flags):
    made = [tensor("text_input", text)]
    if sampling is not None:
        made.append(tensor("sampling_parameters",
                           sampling if isinstance(sampling, str) else json.dumps(sampling)))
    return made + [tensor(name, value) for name, value in flags.items()]


def text_of(result, name="text_output"):
    return [v.decode() for v in result.as_numpy(name)]


class KserveTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--served-model-name", "smol").__enter__()
        cls.client = triton.InferenceServerClient(f"127.0.0.1:{cls.daemon.port}")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.__exit__()

    def expected(self, max_tokens, text=PROMPT, **stopping):
        return collect(self.daemon.generation.Generate(pb.GenerateRequest(
            text=text, sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StoppingOptions(max_tokens=max_tokens, **stopping),
            response=pb.ResponseOptions(token_ids=True, num_logprobs=0))))

    def stream(self, requests, **options):
        """[(request id, response or error)] of several requests on one stream."""
        got = queue.Queue()
        self.client.start_stream(callback=lambda result, error: got.put((result, error)))
        for i, made in enumerate(requests):
            self.client.async_stream_infer("smol", made, request_id=str(i), **options)
        self.client.stop_stream()  # half-closes and waits for the answers
        return [got.get() for _ in range(got.qsize())]

    def test_server_and_model_are_told(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("smol"))
        self.assertTrue(self.client.is_model_ready("smol", "1"))
        self.assertFalse(self.client.is_model_ready("other"))
        self.assertEqual(self.client.get_server_metadata().name, "quire")
        metadata = self.client.get_model_metadata("smol", as_json=True)
        self.assertEqual(metadata["inputs"][0],
                         {"name": "text_input", "datatype": "BYTES", "shape": ["1"]})
        self.assertIn("text_output", [o["name"] for o in metadata["outputs"]])
        config = self.client.get_model_config("smol").config
        self.assertTrue(config.model_transaction_policy.decoupled)
        self.assertEqual([i.name for i in config.input if not i.optional], ["text_input"])
        index = self.client.get_model_repository_index()
        self.assertEqual([(m.name, m.state) for m in index.models], [("smol", "READY")])

    def test_statistics_count(self):
        def count():
            stats = self.client.get_inference_statistics("smol").model_stats[0]
            return stats.inference_count, stats.inference_stats.success.count
        before = count()
        self.client.infer("smol", inputs(sampling={"max_tokens": 2}))
        self.assertTrue(eventually(lambda: count() == (before[0] + 1, before[1] + 1)))

    def test_infer_repeats_the_prompt_unless_told(self):
        text = self.expected(8)[2]
        sampling = {"temperature": "0", "max_tokens": 8}  # numbers as texts, as in Triton's guide
        result = self.client.infer("smol", inputs(sampling=sampling), request_id="r1")
        self.assertEqual(text_of(result), [PROMPT + text])
        self.assertEqual(result.get_response().id, "r1")
        result = self.client.infer("smol", inputs(sampling=sampling, exclude_input_in_output=True))
        self.assertEqual(text_of(result), [text])
        self.assertEqual([o.name for o in result.get_response().outputs], ["text_output"])

    def test_sixteen_tokens_by_default(self):
        result = self.client.infer("smol", inputs(sampling={"temperature": 0, "ignore_eos": True},
                                                  return_num_output_tokens=True))
        self.assertEqual(result.as_numpy("num_output_tokens").tolist(), [16])

    def test_all_outputs(self):
        ids, logprobs, text, _ = self.expected(6)
        result = self.client.infer("smol", inputs(
            sampling={"temperature": 0, "max_tokens": 6, "logprobs": 2},
            exclude_input_in_output=True, return_finish_reason=True, return_cumulative_logprob=True,
            return_logprobs=True, return_num_input_tokens=True, return_num_output_tokens=True))
        self.assertEqual(text_of(result), [text])
        self.assertEqual(text_of(result, "finish_reason"), ["length"])
        self.assertAlmostEqual(result.as_numpy("cumulative_logprob")[0], sum(logprobs), places=4)
        prompt = self.daemon.generation.Tokenize(pb.TokenizeRequest(text=PROMPT)).token_ids
        self.assertEqual(result.as_numpy("num_input_tokens").tolist(), [len(prompt)])
        self.assertEqual(result.as_numpy("num_output_tokens").tolist(), [6])
        told = json.loads(text_of(result, "logprobs")[0])
        self.assertEqual(len(told), 6)
        for entry, token, logprob in zip(told, ids, logprobs):
            self.assertAlmostEqual(entry[str(token)]["logprob"], logprob, places=5)
            self.assertIn(len(entry), [2, 3])

    def test_only_the_outputs_that_are_named(self):
        result = self.client.infer(
            "smol", inputs(sampling={"max_tokens": 2}, return_num_input_tokens=True),
            outputs=[triton.InferRequestedOutput("finish_reason")])
        self.assertEqual([o.name for o in result.get_response().outputs], ["finish_reason"])

    def test_n_outputs(self):
        result = self.client.infer("smol", inputs(
            sampling={"n": 3, "temperature": 1.0, "seed": 3, "max_tokens": 4, "ignore_eos": True},
            exclude_input_in_output=True, return_num_output_tokens=True))
        self.assertEqual(len(text_of(result)), 3)
        self.assertEqual(result.as_numpy("num_output_tokens").tolist(), [4, 4, 4])

    def test_stream_of_deltas(self):
        text = self.expected(10)[2]
        answers = self.stream([inputs(sampling={"temperature": 0, "max_tokens": 10}, stream=True)])
        self.assertTrue(all(error is None for _, error in answers))
        self.assertGreater(len(answers), 3)
        self.assertEqual("".join(text_of(result)[0] for result, _ in answers), text)

    def test_final_response(self):
        for flags in [{}, {"return_finish_reason": True}]:
            answers = self.stream([inputs(sampling={"temperature": 0, "max_tokens": 5},
                                          stream=True, **flags)],
                                  enable_empty_final_response=True)
            final = [r.get_response().parameters["triton_final_response"].bool_param
                     for r, _ in answers]
            self.assertEqual(final, [False] * (len(final) - 1) + [True])
            if flags:
                self.assertEqual(text_of(answers[-1][0], "finish_reason"), ["length"])
            else:
                self.assertEqual(len(answers[-1][0].get_response().outputs), 0)

    def test_many_requests_on_one_stream(self):
        texts = [f"{PROMPT} {i}," for i in range(12)]
        answers = self.stream([inputs(text=t, sampling={"temperature": 0, "max_tokens": 6},
                                      stream=i % 2 == 0) for i, t in enumerate(texts)])
        joined = {}
        for result, error in answers:
            self.assertIsNone(error)
            key = int(result.get_response().id)
            joined[key] = joined.get(key, "") + text_of(result)[0]
        for i, text in enumerate(texts):
            answer = self.expected(6, text=text)[2]
            self.assertEqual(joined[i], answer if i % 2 == 0 else text + answer)

    def test_errors_on_a_stream_leave_it_open(self):
        answers = self.stream([
            inputs(sampling={"max_tokens": 0}, stream=True),
            inputs(sampling={"temperature": 0, "max_tokens": 2}, stream=True),
            inputs(sampling="{", stream=True)])
        errors = [str(error) for _, error in answers if error is not None]
        self.assertEqual(len(errors), 2)
        self.assertIn("sampling_parameters.max_tokens=0", " ".join(errors))
        self.assertEqual("".join(text_of(r)[0] for r, error in answers if error is None),
                         self.expected(2)[2])

    def test_refusals_name_their_tensors(self):
        wrong_type = triton.InferInput("stream", [1], "BYTES")
        wrong_type.set_data_from_numpy(np.array([b"x"], dtype=np.object_))
        two = triton.InferInput("text_input", [2], "BYTES")
        two.set_data_from_numpy(np.array([b"x", b"y"], dtype=np.object_))
        unknown = tensor("image", "x")
        for made, part in [
                ([tensor("stream", False)], "text_input is missing"),
                (inputs() + [wrong_type], "datatype=BYTES"),
                ([two], "extent of 2"),
                (inputs() + [unknown], "input image is not known"),
                (inputs() + [tensor("text_input", "x")], "text_input is given twice"),
                (inputs(sampling={"temperatur": 1}), "sampling_parameters.temperatur"),
                (inputs(sampling={"temperature": "hot"}), "sampling_parameters.temperature"),
                (inputs(sampling={"top_p": 3}), "sampling_parameters.top_p=3"),
                (inputs(sampling="[]"), "not a JSON object"),
                (inputs(sampling={"n": 2, "temperature": 1}, stream=True), "stream"),
                (inputs(stream=True), "ModelStreamInfer"),
                (inputs(stream=True, exclude_input_in_output=False), "exclude_input_in_output")]:
            with self.subTest(part=part), self.assertRaises(InferenceServerException) as caught:
                self.client.infer("smol", made)
            self.assertIn(part, caught.exception.message())
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("other", inputs())
        self.assertIn("NOT_FOUND", caught.exception.status())
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("smol", inputs(), parameters={"colour": "red"})
        self.assertIn("parameter colour", caught.exception.message())

    def test_raw_bytes_are_checked(self):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self.daemon.channel)
        for raw in [b"", b"\1\0\0", b"\5\0\0\0abc", b"\xff\xff\xff\xffabc", b"\3\0\0\0abcd"]:
            r = service_pb2.ModelInferRequest(model_name="smol", raw_input_contents=[raw])
            r.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(r)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("text_input", caught.exception.details())
        # Not UTF-8: told, not passed on.
        r = service_pb2.ModelInferRequest(model_name="smol",
                                          raw_input_contents=[b"\2\0\0\0\xff\xfe"])
        r.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        with self.assertRaises(grpc.RpcError) as caught:
            stub.ModelInfer(r)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        # Values in `contents` instead.
        r = service_pb2.ModelInferRequest(model_name="smol")
        r.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            PROMPT.encode())
        self.assertEqual(stub.ModelInfer(r).outputs[0].name, "text_output")

    def test_cancelling_a_stream_ends_its_requests(self):
        got = queue.Queue()
        self.client.start_stream(callback=lambda result, error: got.put((result, error)))
        for _ in range(3):
            self.client.async_stream_infer("smol", inputs(
                sampling={"max_tokens": 1000, "ignore_eos": True}, stream=True))
        got.get()
        self.client.stop_stream(cancel_requests=True)
        self.assertTrue(eventually(lambda: self.daemon.blocks().used_blocks == 0))

    def test_what_is_not_served_says_so(self):
        for call in [lambda: self.client.load_model("smol"),
                     lambda: self.client.unload_model("smol"),
                     lambda: self.client.get_system_shared_memory_status(),
                     lambda: self.client.register_system_shared_memory("a", "/a", 8),
                     lambda: self.client.get_cuda_shared_memory_status(),
                     lambda: self.client.get_trace_settings(),
                     lambda: self.client.get_log_settings()]:
            with self.assertRaises(InferenceServerException) as caught:
                call()
            self.assertIn("UNIMPLEMENTED", caught.exception.status())
            self.assertNotEqual(caught.exception.message(), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
