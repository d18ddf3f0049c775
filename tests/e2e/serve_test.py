"""`quire serve` as an operator meets it: what it prints, what it refuses and with which exit
status, and how it ends. HARD-CASES M (files at the door), N14, Q01, Q02."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

from daemon import BINARY, END_S, MODEL, Daemon, collect, environment, greedy, pb
from daemon import public_protos, run


class RefusalTest(unittest.TestCase):
    """One clear line on standard error; 2 for configuration, 1 for everything else."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def assert_refused(self, result, code, *parts):
        errors = [l for l in result.stderr.splitlines() if l.startswith("quire: error: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        for part in parts:
            self.assertIn(part, errors[0])

    def serve(self, *args, **kwargs):
        return run("serve", "--port", "0", "--http-port", "0", "--python", sys.executable, *args, **kwargs)

    def write(self, name, data):
        path = self.path / name
        path.write_bytes(data)
        return str(path)

    def test_model_files(self):
        with open(MODEL, "rb") as file:
            head = file.read(4 << 20)
        size = os.path.getsize(MODEL)
        flipped = bytearray(head)
        flipped[16:24] = (1 << 60).to_bytes(8, "little")  # the number of metadata pairs
        for name, data, parts in [
                ("truncated.gguf", head, ["truncated.gguf", str(len(head))]),
                ("tiny.gguf", head[:20], ["tiny.gguf"]),
                ("empty.gguf", b"", ["empty.gguf"]),
                ("corrupt.gguf", bytes(flipped), ["corrupt.gguf"]),
                ("text.gguf", b"this is not a model\n" * 100, ["text.gguf"]),
                ("picture.gguf", b"\x89PNG\r\n\x1a\n" + bytes(1000), ["picture.gguf"])]:
            result = self.serve("--model", self.write(name, data))
            self.assert_refused(result, 1, *parts)
        self.assertGreater(size, len(head))
        self.assert_refused(self.serve("--model", str(self.path / "none.gguf")), 1, "none.gguf")
        (self.path / "folder").mkdir()
        self.assert_refused(self.serve("--model", str(self.path / "folder")), 1, "folder",
                            "config.json")

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assert_refused(run("serve", "--model", MODEL, "--port", str(port)), 1,
                                f"port={port}", "in use", "--port")
        with Daemon() as daemon:  # another daemon's port is no share of ours
            self.assert_refused(run("serve", "--model", MODEL, "--port", str(daemon.port)), 1,
                                f"port={daemon.port}", "in use")
        self.assert_refused(self.serve("--model", MODEL, "--host", "no.such.host.invalid"), 1,
                            "host=no.such.host.invalid")

    def test_configuration(self):
        typo = self.write("quire.yaml", b"model: m\nmax_num_seq: 4\n")
        for check in [[], ["--check-config"]]:  # the same verdict, without a model
            self.assert_refused(self.serve("--config", typo, *check), 2,
                                "quire.yaml:2: max_num_seq", "did you mean max_num_seqs?")
            self.assert_refused(self.serve("--model", "m", "--max-num-seq", "4", *check), 2,
                                "--max-num-seq", "did you mean --max-num-seqs?")
            self.assert_refused(self.serve("--model", "m", *check, env={"QUIRE_MAX_NUM_SEQ": "4"}),
                                2, "QUIRE_MAX_NUM_SEQ", "did you mean QUIRE_MAX_NUM_SEQS?")
            self.assert_refused(self.serve("--model", "m", "--attention", "flesh", *check), 2,
                                "flesh", "flash", "eager")
            self.assert_refused(self.serve("--model", "m", "--cpu-isa", "avx1024", *check), 2,
                                "avx1024", "portable")
            self.assert_refused(self.serve("--model", "m", "--max-num-seqs", "many", *check), 2,
                                "--max-num-seqs: max_num_seqs=many", "whole number")
            self.assert_refused(self.serve(*check), 2, "model is not set")
        self.assert_refused(self.serve("--model", "m", "--config", str(self.path)), 2,
                            "is a folder")
        twice = self.serve("--model", "m", "--max-num-seqs", "1", "--max-num-seqs", "2")
        self.assert_refused(twice, 2, "max-num-seqs")
        good = self.write("good.yaml", b"model: m\nport: 7\n")
        checked = run("serve", "--config", good, "--check-config", "--port", "8")
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertIn("port: 8\n", checked.stdout)
        self.assertIn("model: m\n", checked.stdout)
        again = self.write("again.yaml", checked.stdout.encode())  # what it prints, it reads
        self.assertEqual(run("serve", "--config", again, "--check-config").stdout, checked.stdout)

    def test_limits_of_the_model(self):
        self.assert_refused(self.serve("--model", MODEL, "--max-model-len", "100000"), 1,
                            "max_model_len=100000", "8192")

    def test_usage(self):
        self.assertEqual(run("--version").stdout.split()[0], "quire")
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("serv").returncode, 2)
        help_text = run("serve", "--help").stdout
        for part in ["--max-num-seqs", "max_num_seqs", "QUIRE_MAX_NUM_SEQS", "default 64",
                     "sequences"]:
            self.assertIn(part, help_text)


class ServeTest(unittest.TestCase):
    def test_start_log_tells_limits_memory_and_time(self):
        with Daemon("--max-model-len", "1024", "--max-num-seqs", "4") as daemon:
            log = daemon.read_log()
            for part in ["limits of one request: max_model_len=1024", "max_num_seqs=4", "pool of",
                         "memory:", "ready after", "resident memory"]:
                self.assertIn(part, log)
            info = daemon.admin.GetServerInfo(pb.GetServerInfoRequest())
            self.assertEqual(info.max_model_len, 1024)  # Q02: apart from the pool
            self.assertEqual(info.max_num_seqs, 4)
            self.assertGreater(info.memory.num_blocks, 0)
            self.assertGreater(info.memory.weights, 1 << 20)
            stats = daemon.blocks()
            self.assertEqual(stats.total_blocks, info.memory.num_blocks)
            model = daemon.admin.GetModelInfo(pb.GetModelInfoRequest())
            self.assertEqual((model.vocab_size, model.num_layers, model.has_chat_template),
                             (49152, 30, True))
            daemon.terminate()
            self.assertEqual(daemon.wait(), 0)

    def test_interrupt_ends_an_idle_daemon(self):
        with Daemon() as daemon:
            daemon.terminate(signal.SIGINT)
            self.assertEqual(daemon.wait(), 0)
            self.assertIn("draining", daemon.read_log())

    def test_drain_finishes_streams_and_refuses_new_ones(self):
        proto = public_protos()
        with Daemon() as daemon:
            check = daemon.channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=proto("grpc.health.v1.HealthCheckResponse").FromString)
            request = proto("grpc.health.v1.HealthCheckRequest")
            streams = [daemon.generation.Generate(greedy([1, 2, i], 300)) for i in range(5)]
            for stream in streams:
                next(stream)
            daemon.terminate()
            while check(request(service="quire.v1.Generation")).status == 1:
                time.sleep(0.001)
            self.assertEqual(check(request(service="")).status, 2)  # NOT_SERVING
            with self.assertRaises(grpc.RpcError) as error:
                list(daemon.generation.Generate(greedy([1], 1)))
            self.assertEqual(error.exception.code(), grpc.StatusCode.UNAVAILABLE)
            for stream in streams:
                ids, _, _, last = collect(stream)
                self.assertEqual(last.usage.completion_tokens, 300)
            self.assertEqual(daemon.wait(), 0)

    def test_drain_deadline_and_second_signal(self):
        for seconds, signals in [("0.2", 1), ("3600", 2)]:
            with Daemon("--drain-timeout-s", seconds) as daemon:
                stream = daemon.generation.Generate(greedy([1, 2], 8000))
                next(stream)
                for _ in range(signals):
                    daemon.terminate()
                    time.sleep(0.1)  # two signals at once may be one
                with self.assertRaises(grpc.RpcError) as error:
                    list(stream)
                self.assertEqual(error.exception.code(), grpc.StatusCode.UNAVAILABLE)
                self.assertEqual(daemon.wait(), 0)

    def test_signal_while_loading(self):
        process = subprocess.Popen([BINARY, "serve", "--model", MODEL, "--port", "0",
                                    "--http-port", "0"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment())
        line = process.stderr.readline()
        self.assertIn("starts", line)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(END_S), 0)
        process.stderr.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
