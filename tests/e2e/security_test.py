"""API keys, the operator's own listener and what may be in the log, on the real daemon."""
import hashlib
import http.client
import json
import os
import pathlib
import socket
import stat
import subprocess
import tempfile
import unittest

import grpc

from daemon import BINARY, Daemon, environment, eventually, greedy, messages_of, pb, public_protos, rpc, run

NO_AUTH = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED


def new_key(*args):
    """(the key, its entry) as `quire key` prints them."""
    made = run("key", *args)
    assert made.returncode == 0, made.stderr
    return made.stderr.strip(), made.stdout


def bearer(key):
    return [("authorization", f"Bearer {key}")]


def code_of(call):
    """Of a call that may fail; a stream is read to its end."""
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def raw(channel, path):
    """Any method by its path, for those whose message is not known here."""
    return channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)


class KeyCommandTest(unittest.TestCase):
    def test_keys_are_random_and_only_their_hash_is_kept(self):
        key, entry = new_key("alice", "--tenant", "a", "--requests-per-minute", "5")
        other, _ = new_key("alice")
        self.assertNotEqual(key, other)
        self.assertGreater(len(key), 60)
        self.assertNotIn(key, entry)
        self.assertIn(hashlib.sha256(key.encode()).hexdigest(), entry)
        known = run("key", "bob", "--stdin", input="an old key that is long\n")
        self.assertIn(hashlib.sha256(b"an old key that is long").hexdigest(), known.stdout)
        self.assertEqual(known.stderr, "")

    def test_what_the_daemon_would_not_take_is_refused(self):
        for args in [["a b"], [""], ["a", "--priority", "1001"],
                     ["a", "--priority", "1", "--max-priority", "2"], []]:
            self.assertEqual(run("key", *args).returncode, 2, args)
        short = run("key", "a", "--stdin", input="short\n")
        self.assertEqual(short.returncode, 2)
        self.assertIn("at least 20", short.stderr)

    def test_a_file_that_is_wrong_stops_the_start_with_its_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("- name: a\n  sha265: 00\n")
            file.flush()
            for check in [[], ["--check-config"]]:
                result = run("serve", "--model", "m", "--api-key-file", file.name, *check)
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"{file.name}:2: sha265 is not a known field; did you mean sha256?",
                              result.stderr)


class KeysTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = pathlib.Path(cls.folder.name) / "keys.yaml"
        cls.alice, alice = new_key("alice", "--tenant", "a", "--max-priority", "5")
        cls.second, second = new_key("second-of-a", "--tenant", "a")
        cls.bob, bob = new_key("bob", "--tenant", "b")
        cls.operator, operator = new_key("op", "--admin")
        cls.slow, slow = new_key("slow", "--requests-per-minute", "2")
        cls.small, small = new_key("small", "--tokens-per-minute", "30")
        cls.entries = alice + second + bob + operator + slow + small
        cls.file.write_text(cls.entries)
        cls.daemon = Daemon("--api-key-file", str(cls.file), "--open-reflection", "--admin-port",
                            "0", "--cache-salt-per-tenant", "--max-model-len", "1024")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()
        cls.folder.cleanup()

    def call(self, key, request=None, **kwargs):
        return self.daemon.generation.GenerateUnary(request or greedy([1, 2, 3], 2),
                                                    metadata=bearer(key), **kwargs)

    def public_methods(self):
        """Paths of all methods that reflection tells of, probes and reflection left out."""
        proto = public_protos()
        request = proto("grpc.reflection.v1.ServerReflectionRequest")
        ask = self.daemon.channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=proto("grpc.reflection.v1.ServerReflectionResponse").FromString)
        names = [s.name for s in next(ask(iter([
            request(list_services="")]))).list_services_response.service]
        for name in names:
            if name.startswith(("grpc.health.", "grpc.reflection.")):
                continue
            answer = next(ask(iter([request(file_containing_symbol=name)])))
            files = list(answer.file_descriptor_response.file_descriptor_proto)
            _, pool = messages_of(files)
            for method in pool.FindServiceByName(name).methods:
                if method.name not in ("Health", "HealthCheck", "ServerLive", "ServerReady"):
                    yield f"/{name}/{method.name}"

    def test_every_method_of_every_service_wants_a_key(self):
        paths = list(self.public_methods())
        self.assertIn("/quire.v1.Generation/GenerateUnary", paths)
        self.assertGreaterEqual(len(paths), 5)
        for path in paths + ["/no.such.Service/Method", "/quire.v1.Admin/Pause"]:
            call = raw(self.daemon.channel, path)
            for metadata in [None, bearer("wrong"), bearer(""), [("authorization", self.alice)],
                             [("x-api-key", "")], bearer(self.alice[:-1]),
                             bearer(self.alice) + bearer(self.alice)]:
                self.assertEqual(code_of(lambda: call(b"", metadata=metadata)), NO_AUTH,
                                 (path, metadata))
        for metadata in [bearer(self.alice), [("x-api-key", self.alice)],
                         [("authorization", f"bearer {self.alice}")]]:
            result = self.daemon.generation.GenerateUnary(greedy([1, 2, 3], 2), metadata=metadata)
            self.assertEqual(len(result.outputs[0].token_ids), 2)
        stream = self.daemon.generation.Generate(greedy([1, 2, 3], 2), metadata=bearer(self.bob))
        self.assertTrue(any(event.HasField("finished") for event in stream))

    def test_health_is_open(self):
        answer = raw(self.daemon.channel, "/grpc.health.v1.Health/Check")(b"")
        self.assertEqual(answer, b"\x08\x01")  # SERVING

    def test_limits_tell_when_to_come_again(self):
        for _ in range(2):
            self.call(self.slow)
        with self.assertRaises(grpc.RpcError) as error:
            self.call(self.slow)
        self.assertEqual(error.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("requests_per_minute=2", error.exception.details())
        trailer = dict(error.exception.trailing_metadata())
        self.assertTrue(0 < int(trailer["grpc-retry-pushback-ms"]) <= 30_000, trailer)
        self.call(self.alice)  # nobody else is held up
        self.call(self.small, greedy([1] * 20, 16))  # 36 of 30 tokens: paid afterwards
        with self.assertRaises(grpc.RpcError) as error:
            self.call(self.small)
        self.assertIn("tokens_per_minute=30", error.exception.details())

    def test_tenant_and_priority_are_the_keys(self):
        def asked(**scheduling):
            request = greedy([1, 2, 3], 1)
            for name, value in scheduling.items():
                setattr(request.scheduling, name, value)
            return request
        self.assertEqual(code_of(lambda: self.call(self.alice, asked(tenant="b"))), DENIED)
        self.assertEqual(code_of(lambda: self.call(self.alice, asked(priority=6))), DENIED)
        self.call(self.alice, asked(tenant="a", priority=5))
        admin = self.daemon.admin
        admin.Pause(pb.PauseRequest())
        try:
            call = self.daemon.generation.GenerateUnary.future(
                greedy([1, 2, 3], 1), metadata=bearer(self.alice) + [("x-tenant-id", "b")])

            def tenants():
                batches = list(admin.InspectRequests(pb.InspectRequestsRequest()))
                return [r.tenant for batch in batches for r in batch.requests]
            self.assertTrue(eventually(tenants))
            self.assertEqual(tenants(), ["a"])  # whatever the header said
        finally:
            admin.Resume(pb.ResumeRequest())
        call.result()

    def test_tenants_share_no_prefix(self):
        ids = list(range(100, 180))

        def cached(key):
            return self.call(key, greedy(ids, 1)).usage.cached_tokens
        self.assertEqual(cached(self.alice), 0)
        self.assertGreater(cached(self.alice), 0)
        self.assertGreater(cached(self.second), 0)  # the same tenant
        self.assertEqual(cached(self.bob), 0)

    def test_nobody_aborts_the_requests_of_others(self):
        request = greedy([1, 2, 3], 900)
        request.request_id = "alices"
        stream = self.daemon.generation.Generate(request, metadata=bearer(self.alice))
        next(stream)
        abort = self.daemon.generation.Abort
        ids = pb.AbortRequest(request_ids=["alices"])
        self.assertEqual(list(abort(ids, metadata=bearer(self.bob)).aborted_request_ids), [])
        self.assertEqual(list(abort(pb.AbortRequest(all=True),
                                    metadata=bearer(self.bob)).aborted_request_ids), [])
        self.assertEqual(list(abort(ids, metadata=bearer(self.second)).aborted_request_ids),
                         ["alices"])
        self.assertEqual(code_of(lambda: stream), grpc.StatusCode.CANCELLED)

    def test_admin_is_elsewhere_and_for_operators(self):
        def pause(channel, **kwargs):
            return code_of(lambda: rpc.AdminStub(channel).GetConfig(pb.GetConfigRequest(),
                                                                    **kwargs))
        public = self.daemon.channel
        self.assertEqual(pause(public, metadata=bearer(self.operator)),
                         grpc.StatusCode.UNIMPLEMENTED)
        path = self.daemon.admin_addresses[0].removeprefix("unix:")
        self.assertTrue(stat.S_ISSOCK(os.stat(path).st_mode))
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), 0o700)
        self.assertEqual(pause(self.daemon.admin_channel), grpc.StatusCode.OK)
        with grpc.insecure_channel(self.daemon.admin_addresses[1]) as channel:
            self.assertEqual(pause(channel), NO_AUTH)
            self.assertEqual(pause(channel, metadata=bearer(self.alice)), DENIED)
            self.assertEqual(pause(channel, metadata=bearer(self.operator)), grpc.StatusCode.OK)
            self.assertEqual(code_of(lambda: raw(channel, "/quire.v1.Generation/GenerateUnary")(
                b"", metadata=bearer(self.operator))), grpc.StatusCode.UNIMPLEMENTED)

    def test_command_line_clients(self):
        port = ["--port", str(self.daemon.port)]
        self.assertEqual(run("admin", "stats", *port).returncode, 0)  # finds the socket
        tcp = ["--admin-port", self.daemon.admin_addresses[1].rpartition(":")[2]]
        refused = run("admin", "stats", *tcp)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("UNAUTHENTICATED", refused.stderr)
        self.assertEqual(run("admin", "stats", *tcp,
                             env={"QUIRE_API_KEY": self.operator}).returncode, 0)
        generate = ["generate", *port, "--max-tokens", "2", "--raw", "one two"]
        self.assertIn("UNAUTHENTICATED", run(*generate).stderr)
        self.assertEqual(run(*generate, env={"QUIRE_API_KEY": self.bob}).returncode, 0)


class ReloadTest(unittest.TestCase):
    def test_keys_come_and_go_without_a_restart(self):
        alice, first = new_key("alice")
        bob, second = new_key("bob")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "keys.yaml"
            file.write_text(first)
            with Daemon("--api-key-file", str(file), "--max-model-len", "1024") as daemon:
                def code(key):
                    return code_of(lambda: daemon.generation.GenerateUnary(
                        greedy([1, 2], 1), metadata=bearer(key)))
                self.assertEqual((code(alice), code(bob)), (grpc.StatusCode.OK, NO_AUTH))
                running = daemon.generation.Generate(greedy([1, 2], 400), metadata=bearer(alice))
                next(running)
                new = file.with_suffix(".new")
                new.write_text(second)
                new.rename(file)
                self.assertTrue(eventually(lambda: code(bob) == grpc.StatusCode.OK))
                self.assertEqual(code(alice), NO_AUTH)
                # What was let in ends as it would have.
                self.assertEqual(code_of(lambda: running), grpc.StatusCode.OK)
                file.write_text(second + "- name: [")
                self.assertTrue(eventually(lambda: "keys stay as they were" in daemon.read_log()))
                self.assertIn(str(file), daemon.read_log())
                self.assertEqual(code(bob), grpc.StatusCode.OK)
                for key in [alice, bob]:
                    self.assertNotIn(key, daemon.read_log())


class AdminSocketTest(unittest.TestCase):
    def start(self, *args):
        return run("serve", "--model", os.environ["QUIRE_SMOLLM2"], "--port", "0",
                   "--max-model-len", "256", *args)

    def test_sockets_that_cannot_be_used(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = os.path.join(folder, "admin.sock")
            for bad, part in [(path, "mode 0700"), ("relative.sock", "not an absolute path"),
                              ("/" + "x" * 120, "at most 107")]:
                result = self.start("--admin-socket", bad)
                self.assertEqual(result.returncode, 1)
                self.assertIn(part, result.stderr)
            os.chmod(folder, 0o700)
            pathlib.Path(path).write_text("not a socket")
            result = self.start("--admin-socket", path)
            self.assertIn("it is a file", result.stderr)
            self.assertEqual(pathlib.Path(path).read_text(), "not a socket")
            os.unlink(path)
            left = socket.socket(socket.AF_UNIX)
            left.bind(path)  # as a killed daemon leaves it
            left.close()
            with Daemon("--admin-socket", path, "--max-model-len", "256") as daemon:
                self.assertEqual(daemon.admin_addresses, [f"unix:{path}"])
                self.assertGreater(daemon.blocks().total_blocks, 0)
                second = self.start("--admin-socket", path)
                self.assertIn("another daemon listens there", second.stderr)
                daemon.terminate()
                self.assertEqual(daemon.wait(), 0)
            self.assertFalse(os.path.exists(path))

    def test_without_any(self):
        log = tempfile.TemporaryFile(mode="w+")
        with subprocess.Popen(
                [BINARY, "serve", "--model", os.environ["QUIRE_SMOLLM2"], "--port", "0",
                 "--max-model-len", "256", "--admin-socket", "none"],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment()) as process:
            try:
                first = process.stdout.readline()
                self.assertIn("is ready", first)
                self.assertNotIn("Admin", first)
            finally:
                process.kill()
        log.close()


class CanaryTest(unittest.TestCase):
    """No text of a request is in anything that the daemon writes, unless it is asked for."""
    CANARY = "xqcanaryzq"

    def requests(self):
        text = self.CANARY
        chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content=text)])
        broken = pb.GenerateRequest(text=text)
        broken.sampling.temperature = -1
        yield pb.GenerateRequest(text=text, stopping=pb.StoppingOptions(max_tokens=3))
        yield pb.GenerateRequest(chat=chat, stopping=pb.StoppingOptions(max_tokens=3))
        yield pb.GenerateRequest(text="a", stopping=pb.StoppingOptions(max_tokens=3, stop=[text]))
        yield broken
        yield pb.GenerateRequest(chat=pb.ChatInput(
            messages=[pb.ChatMessage(role=text, content=text)], template_kwargs_json="{" + text))
        yield pb.GenerateRequest(text=text * 3000)  # too long
        yield pb.GenerateRequest(text="a", guided=pb.GuidedDecoding(regex=text + "("),
                                 stopping=pb.StoppingOptions(max_tokens=3))
        yield pb.GenerateRequest(text="a", guided=pb.GuidedDecoding(json_schema="{" + text),
                                 stopping=pb.StoppingOptions(max_tokens=3))

    def http_requests(self):
        text = self.CANARY
        chat = [{"role": "user", "content": text}]
        for body in [{"prompt": text, "max_tokens": 2}, {"prompt": text, "max_tokens": -2},
                     {"prompt": {text: text}}, {"prompt": text, "stop": text, "max_tokens": 2}]:
            yield "/v1/completions", json.dumps(body)
        yield "/v1/completions", "{" + text
        yield "/v1/chat/completions", json.dumps({"messages": chat, "max_tokens": 2,
                                                  "stream": True})
        yield "/v1/chat/completions", json.dumps({"messages": [{"role": text, "content": 1}]})
        yield "/tokenize", json.dumps({"prompt": text})

    def serve_all(self, *args):
        with Daemon("--log-level", "trace", "--max-model-len", "1024", *args) as daemon:
            for request in self.requests():
                code_of(lambda: daemon.generation.GenerateUnary(request))
                code_of(lambda: daemon.generation.Generate(request))
            code_of(lambda: daemon.generation.Tokenize(pb.TokenizeRequest(text=self.CANARY)))
            for path, body in self.http_requests():
                connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
                connection.request("POST", path, body, {"content-type": "application/json"})
                connection.getresponse().read()
                connection.close()
            daemon.terminate()
            daemon.wait()
            return daemon.read_log() + daemon.announcement + daemon.process.stdout.read()

    def test_prompts_are_in_the_log_only_if_asked_for(self):
        written = self.serve_all()
        self.assertIn("request done", written)
        self.assertNotIn(self.CANARY, written)
        self.assertIn(self.CANARY, self.serve_all("--log-prompts"))


if __name__ == "__main__":
    unittest.main()
