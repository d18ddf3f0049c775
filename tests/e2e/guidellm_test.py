"""guidellm, a load client from PyPI, against the real daemon: it sends and counts, and its report
says whether every request was answered, with as many tokens as it had asked for.

Environment besides that of daemon.py: QUIRE_GUIDELLM, the Python of its virtual environment
(deploy/fetch-guidellm.sh). It counts tokens with the tokenizer files that the daemon hands out.
"""
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import zipfile

from google.protobuf import descriptor_pb2

from daemon import STUBS, Daemon, environment, eventually, messages_of, pb

GUIDELLM = os.environ["QUIRE_GUIDELLM"]
GET_TOKENIZER = "/vllm.grpc.engine.VllmEngine/GetTokenizer"


def fetch_tokenizer(channel, folder):
    """The ZIP that VllmEngine streams, unpacked."""
    files = descriptor_pb2.FileDescriptorSet.FromString((STUBS / "others.desc").read_bytes())
    message, _ = messages_of([f.SerializeToString() for f in files.file])
    call = channel.unary_stream(
        GET_TOKENIZER, request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=message("smg.grpc.common.GetTokenizerChunk").FromString)
    data = b"".join(chunk.data for chunk in call(message("smg.grpc.common.GetTokenizerRequest")()))
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)


def count_tokens(folder, texts):
    """By PyPI's `tokenizers`, which is in guidellm's environment."""
    script = ("import json, sys, tokenizers as t\n"
              "k = t.Tokenizer.from_file(sys.argv[1])\n"
              "print(json.dumps([len(k.encode(s).ids) for s in json.load(sys.stdin)]))")
    result = subprocess.run([GUIDELLM, "-c", script, str(folder / "tokenizer.json")],
                            input=json.dumps(texts), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class GuidellmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-num-seqs", "8", "--max-queued-requests", "64")
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()
        cls.temporary.cleanup()

    def benchmark(self, *args, **settings):
        """One run's part of its report."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        env = environment(HF_HUB_OFFLINE="1", HF_HOME=str(self.folder / "hub"),
                          GUIDELLM__MAX_WORKER_PROCESSES="2", **settings)
        result = subprocess.run(
            [GUIDELLM, "-m", "guidellm", "benchmark", "--target",
             f"http://127.0.0.1:{self.daemon.http_port}", "--disable-progress", "--output-path",
             str(report), *args], capture_output=True, text=True, timeout=600, env=env,
            cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        self.assertTrue(eventually(lambda: self.daemon.blocks().live_requests == 0
                                   and self.daemon.blocks().used_blocks == 0))
        (run,) = json.loads(report.read_text())["benchmarks"]
        return run

    def requests_ok(self):
        return self.daemon.admin.GetServerInfo(pb.GetServerInfoRequest()).requests.ok

    def answers(self, run, count):
        """All of the run's requests, none of which has failed or is missing."""
        self.assertEqual(run["run_stats"]["requests_made"],
                         {"successful": count, "errored": 0, "incomplete": 0, "total": count})
        self.assertEqual([len(run["requests"][kind]) for kind in
                          ("successful", "errored", "incomplete")], [count, 0, 0])
        for request in run["requests"]["successful"]:
            self.assertLessEqual(request["start_time"], request["first_token_time"])
            self.assertLessEqual(request["first_token_time"], request["last_token_time"])
        return run["requests"]["successful"]

    def test_prompts_of_its_own_making(self):
        """Four at a time over /v1/completions: about 48 tokens each, and 12 new ones asked for."""
        tokenizer = self.folder / "tokenizer"
        fetch_tokenizer(self.daemon.channel, tokenizer)
        before = self.requests_ok()
        run = self.benchmark(
            "--processor", str(tokenizer), "--data", "prompt_tokens=48,output_tokens=12,samples=32",
            "--rate-type", "concurrent", "--rate", "4", "--max-requests", "24",
            "--backend-args", json.dumps({"extra_body": {"temperature": 0}}))
        answers = self.answers(run, 24)
        self.assertEqual({a["request_type"] for a in answers}, {"text_completions"})
        self.assertEqual({a["output_tokens"] for a in answers}, {12})
        # What the daemon's usage says, and what guidellm's tokenizer does.
        counted = count_tokens(tokenizer, [a["prompt"] for a in answers])
        self.assertEqual([a["prompt_tokens"] for a in answers], counted)
        for count in counted:
            self.assertLess(abs(count - 48), 8)
        # It asks a few times before it begins, too.
        self.assertGreaterEqual(self.requests_ok(), before + 24)
        # What it read as an answer is what gRPC answers.
        for answer in answers[::6]:
            alone = self.daemon.generation.GenerateUnary(pb.GenerateRequest(
                text=answer["prompt"], sampling=pb.SamplingParams(temperature=0),
                stopping=pb.StoppingOptions(max_tokens=12, ignore_eos=True)))
            self.assertEqual(answer["output"], alone.outputs[0].text)

    def test_chats_from_a_file_at_a_rate(self):
        """Each line asks for a number of tokens of its own."""
        asked = {f"Tell me {i} things about the number {i * 37}.": 3 + i for i in range(16)}
        data = self.folder / "chats.jsonl"
        data.write_text("".join(json.dumps({"prompt": p, "output_tokens_count": n}) + "\n"
                                for p, n in asked.items()))
        run = self.benchmark(
            "--processor", "none", "--data", str(data), "--data-args", json.dumps(
                {"prompt_column": "prompt", "output_tokens_count_column": "output_tokens_count"}),
            "--rate-type", "constant", "--rate", "8", "--max-requests", "16",
            GUIDELLM__PREFERRED_ROUTE="chat_completions")
        answers = self.answers(run, 16)
        self.assertEqual({a["request_type"] for a in answers}, {"chat_completions"})
        self.assertEqual({a["prompt"]: a["output_tokens"] for a in answers}, asked)
        for answer in answers:
            tokens = self.daemon.generation.Tokenize(pb.TokenizeRequest(chat=pb.ChatInput(
                messages=[pb.ChatMessage(role="user", content=answer["prompt"])]))).token_ids
            self.assertEqual(answer["prompt_tokens"], len(tokens))


if __name__ == "__main__":
    unittest.main()
