"""The real daemon as a child process, and clients of it. Used by the tests beside this file.

Environment, set by ctest: QUIRE_BINARY, QUIRE_STUBS (generated Python modules and quire.desc) and
QUIRE_SMOLLM2 (the model; deploy/fetch-model.sh brings it).
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

BINARY = os.environ["QUIRE_BINARY"]
MODEL = os.environ["QUIRE_SMOLLM2"]
STUBS = pathlib.Path(os.environ["QUIRE_STUBS"])
# The Python that renders chat templates: of a test that runs in an environment of its own, another.
TEMPLATE_PYTHON = os.environ.get("QUIRE_TEMPLATE_PYTHON", sys.executable)
REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "reference"
sys.path.insert(0, str(STUBS))

from quire.v1 import quire_pb2 as pb  # noqa: E402
from quire.v1 import quire_pb2_grpc as rpc  # noqa: E402

START_S = 120  # for a loaded machine; nothing here is measured
END_S = 60

if not os.path.exists(MODEL):
    sys.exit(f"{MODEL} is missing; run deploy/fetch-model.sh")


def environment(**more):
    """The caller's environment without settings of the daemon."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    env.update(more)
    return env


def run(*args, timeout=START_S, **kwargs):
    """A `quire` command that is expected to end."""
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=timeout,
                          env=environment(**kwargs.pop("env", {})), **kwargs)


class Daemon:
    """`quire serve`, ready for requests; killed at the end if it is still there."""

    def __init__(self, *args, model=MODEL):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--model", model, "--port", "0", "--http-port", "0",
             "--python", TEMPLATE_PYTHON,
             *args],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment())
        self.admin_addresses = []  # gRPC targets, the Unix socket first
        self.port = self._wait_until_ready()
        self.channel = self.connect()
        self.generation = rpc.GenerationStub(self.channel)
        self.admin_channel = grpc.insecure_channel(self.admin_addresses[0])
        self.admin = rpc.AdminStub(self.admin_channel)

    def _wait_until_ready(self):
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        try:
            lines = []
            for line in self.process.stdout:
                lines.append(line)
                if admin := re.match(r"Admin: (.*)", line):
                    self.admin_addresses.append(admin[1])
                found = re.search(r"quire generate .*--port (\d+)", line)
                if found:
                    self.announcement = "".join(lines)
                    http = re.search(r"https?://\S+:(\d+)/v1", self.announcement)
                    self.http_port = int(http[1]) if http else 0
                    return int(found[1])
        finally:
            timer.cancel()
        raise RuntimeError(f"no daemon: {''.join(lines)}{self.read_log()}")

    def connect(self):
        # A pool of its own, so that each channel is a connection.
        return grpc.insecure_channel(f"127.0.0.1:{self.port}",
                                     options=[("grpc.use_local_subchannel_pool", 1)])

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def blocks(self):
        return self.admin.GetBlockStats(pb.GetBlockStatsRequest())

    def terminate(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)

    def wait(self):
        return self.process.wait(END_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.admin_channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


# What references by float32 engines are compared with; the default rounds what it multiplies.
FLOAT32 = ("--compute", "float32")


def eventually(holds):
    """Polls; what it waits for needs no time of its own, only a turn."""
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


def greedy(ids, max_tokens, **sampling):
    """Tokens in, tokens out, the most likely ones, whatever they mean."""
    sampling.setdefault("temperature", 0)
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(**sampling),
        stopping=pb.StoppingOptions(max_tokens=max_tokens, ignore_eos=True),
        response=pb.ResponseOptions(token_ids=True, num_logprobs=0))


def collect(events):
    """(token ids of output 0, their logprobs, its text, the last event) of a stream."""
    ids, logprobs, text, last = [], [], [], None
    for event in events:
        ids += event.delta.token_ids
        logprobs += [entry.logprob for entry in event.delta.logprobs]
        text.append(event.delta.text)
        last = event
    return ids, logprobs, "".join(text), last


def messages_of(files):
    """A function from a message's full name to its class, for serialized FileDescriptorProtos."""
    pool = descriptor_pool.DescriptorPool()
    waiting = {}
    for data in files:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        waiting[file.name] = file
    while waiting:
        name = next(n for n, f in waiting.items() if not set(f.dependency) & set(waiting))
        pool.Add(waiting.pop(name))
    factory = message_factory.MessageFactory(pool)
    return lambda name: factory.GetPrototype(pool.FindMessageTypeByName(name)), pool


def public_protos():
    """Classes of the health and reflection protocols, as any tool has them built in."""
    files = descriptor_pb2.FileDescriptorSet.FromString((STUBS / "quire.desc").read_bytes())
    return messages_of([f.SerializeToString() for f in files.file
                        if f.package.startswith("grpc.")])[0]
