"""The SMG gateway (PyPI `smg`, unchanged) in front of two daemons: it tells them apart by their
gRPC services, fetches the tokenizer from them, and speaks HTTP to clients. It sends equal prefixes
to the same daemon, and a daemon that is drained or killed is no trouble for clients whose requests
had not begun."""
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from daemon import END_S, START_S, Daemon, eventually, pb

MODEL_NAME = "smol"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Gateway:
    """The gateway as a child process, once it knows both daemons."""

    def __init__(self, daemons):
        self.port = free_port()
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(self.port),
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
             "--worker-urls", *[f"grpc://127.0.0.1:{d.port}" for d in daemons],
             "--policy", "cache_aware", "--cache-threshold", "0.3",
             "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
             "--health-check-timeout-secs", "5", "--log-level", "warn"],
            stdout=self.log, stderr=self.log)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)

    def get(self, path):
        connection = self.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def wait_for(self, num_workers):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            status, body = self.get("/workers")
            if status == 200:
                workers = json.loads(body)["workers"]
                healthy = sum(bool(w.get("is_healthy")) for w in workers)
                # The tokenizer comes from a worker, a moment after it was found.
                if healthy == num_workers and self.chat(user("Hi"), max_tokens=1)[0] == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the gateway is not ready: {self.read_log()[-4000:]}")

    def chat(self, messages, on_first=None, **fields):
        """(status, text) of a streamed chat; status 0 if the stream broke. on_first: called at the
        first piece of text."""
        body = {"model": MODEL_NAME, "messages": messages, "stream": True, "temperature": 0, **fields}
        connection = self.connect()
        text, done = [], False
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                return response.status, response.read().decode()
            for line in response:
                line = line.strip()
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]":
                    done = True
                    break
                event = json.loads(line[6:])
                if "error" in event:
                    return 0, json.dumps(event)
                for choice in event.get("choices", []):
                    piece = choice.get("delta", {}).get("content") or ""
                    if piece and not text and on_first is not None:
                        on_first()
                    text.append(piece)
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()
        return (200 if done else 0), "".join(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def user(text):
    return [{"role": "user", "content": text}]


def daemon(max_num_seqs=8):
    return Daemon("--served-model-name", MODEL_NAME, "--max-num-seqs", str(max_num_seqs),
                  "--block-size", "16")


def patiently(holds):
    """As `eventually`, for what takes the model's time."""
    return eventually(holds) or eventually(holds) or eventually(holds)


class Load:
    """Streams that run one after the other on a few threads until told to end."""

    def __init__(self, gateway, threads=4, max_tokens=40):
        self.gateway, self.max_tokens = gateway, max_tokens
        self.ending = threading.Event()
        self.lock = threading.Lock()
        self.results = []  # (status, text or error, whether text had come before it ended)
        self.num_started = 0
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def _run(self, i):
        turn = 0
        while not self.ending.is_set():
            turn += 1
            begun = threading.Event()
            status, text = self.gateway.chat(user(f"Tell me about number {i} and {turn}."),
                                             on_first=begun.set, max_tokens=self.max_tokens)
            with self.lock:
                self.results.append((status, text, begun.is_set()))

    def count(self):
        with self.lock:
            return len(self.results)

    def finish(self):
        self.ending.set()
        for t in self.threads:
            t.join()
        return self.results


class GatewayTest(unittest.TestCase):

    def test_answers_are_the_daemons(self):
        with daemon() as a, daemon() as b, Gateway([a, b]) as gateway:
            gateway.wait_for(2)
            for question in ["What is the capital of France?", "Grüße! 你好? 😀", "Count to five."]:
                own = a.generation.GenerateUnary(pb.GenerateRequest(
                    chat=pb.ChatInput(messages=[pb.ChatMessage(role="user", content=question)]),
                    sampling=pb.SamplingParams(temperature=0),
                    stopping=pb.StoppingOptions(max_tokens=24)))
                self.assertEqual(gateway.chat(user(question), max_tokens=24),
                                 (200, own.outputs[0].text), gateway.read_log()[-3000:])
            status, body = gateway.chat(user("x"), max_tokens=100000)
            self.assertEqual(status, 400, body)
            self.assertIn("max_tokens", body)

    def test_equal_prefixes_go_to_the_same_daemon(self):
        with daemon() as a, daemon() as b, Gateway([a, b]) as gateway:
            gateway.wait_for(2)
            topics = [f"Story {chr(65 + i)}: " + f"{chr(97 + i)} long tale about {i} things. " * 40
                      for i in range(6)]
            for turn in range(4):
                for topic in topics:
                    status, text = gateway.chat(
                        [{"role": "system", "content": topic},
                         {"role": "user", "content": f"Question {turn}?"}], max_tokens=2)
                    self.assertEqual(status, 200, text)
            stats = [d.blocks() for d in (a, b)]
            prompts = sum(s.prompt_tokens for s in stats)
            cached = sum(s.cached_tokens for s in stats)
            # Each prefix is computed once, at one of the two, and found three times.
            self.assertGreater(cached, 0.70 * prompts, [str(s) for s in stats])
            # Both serve.
            self.assertTrue(all(s.prompt_tokens > 0 for s in stats), [str(s) for s in stats])

    def test_draining_one_is_invisible(self):
        with daemon() as a, daemon() as b, Gateway([a, b]) as gateway:
            gateway.wait_for(2)
            load = Load(gateway)
            self.assertTrue(patiently(lambda: load.count() >= 4))
            a.terminate()
            self.assertEqual(a.wait(), 0)
            after = load.count()
            self.assertTrue(patiently(lambda: load.count() >= after + 4))
            results = load.finish()
            self.assertEqual([r for r in results if r[0] != 200], [], gateway.read_log()[-3000:])

    def test_a_killed_one_loses_only_what_had_begun(self):
        # One runs at a time at each daemon, the others of six wait.
        with daemon(1) as a, daemon(1) as b, Gateway([a, b]) as gateway:
            gateway.wait_for(2)
            load = Load(gateway, threads=6, max_tokens=12)
            self.assertTrue(patiently(lambda: load.count() >= 4))
            def busy():  # at which one requests wait is the gateway's choice
                return [d for d in (a, b) if d.blocks().queued_requests > 0]
            self.assertTrue(patiently(busy))
            killed = (busy() or [a])[0]
            left = b if killed is a else a
            killed.terminate(signal.SIGKILL)
            killed.process.wait()
            after = load.count()
            self.assertTrue(patiently(lambda: load.count() >= after + 8))
            results = load.finish()
            lost = [r for r in results if r[0] != 200]
            # The one that ran, and at most one whose end was on its way: the gateway had the
            # beginning of their answers.
            self.assertLessEqual(len(lost), 2, lost)
            self.assertEqual([r for r in lost if not r[2] and "stream_error" not in r[1]], [])
            self.assertGreater(left.blocks().prompt_tokens, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
