"""The package quire-client against daemons that want TLS, a client's certificate or an API key: what
works, and as which error it ends if it doesn't, sync and async. Run by the Python of its environment
(deploy/client-venv.sh)."""
import asyncio
import pathlib
import tempfile
import unittest

import quire_client
from quire_client import (AsyncClient, Client, Params, PermissionDeniedError, ResourceExhaustedError,
                          Tls, UnauthenticatedError, UnavailableError)

from certificates import Authority
from daemon import Daemon, eventually, run

PROMPT = "The capital of France is"
PARAMS = Params(max_tokens=6, temperature=0, token_ids=True)
TIMEOUT_S = 60  # of a call; nothing here comes to it


def new_key(*args):
    """(the key, its entry) as `quire key` prints them."""
    made = run("key", *args)
    assert made.returncode == 0, made.stderr
    return made.stderr.strip(), made.stdout


def sync_calls(address, **how):
    """What each call gives: an answer's outputs, or its error."""
    def stream(client):
        with client.stream(PROMPT, PARAMS) as deltas:
            list(deltas)
            return deltas.answer().outputs
    results = []
    with Client(address, timeout=TIMEOUT_S, **how) as client:
        for call in (lambda: client.generate(PROMPT, PARAMS).outputs, lambda: stream(client)):
            try:
                results.append(call())
            except quire_client.QuireError as error:
                results.append(error)
    return results


def async_calls(address, **how):
    async def stream(client):
        async with client.stream(PROMPT, PARAMS) as deltas:
            async for _ in deltas:
                pass
            return (await deltas.answer()).outputs

    async def generate(client):
        return (await client.generate(PROMPT, PARAMS)).outputs

    async def main():
        results = []
        async with AsyncClient(address, timeout=TIMEOUT_S, **how) as client:
            for call in (generate, stream):
                try:
                    results.append(await call(client))
                except quire_client.QuireError as error:
                    results.append(error)
        return results
    return asyncio.run(main())


class SecureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.ca = Authority(folder.name, "ca")
        cls.stranger = Authority(folder.name, "stranger")
        cls.cert, cls.key = cls.ca.issue("server")
        cls.mine = cls.ca.issue("client")
        cls.impostor = cls.stranger.issue("impostor")
        cls.alice, alice = new_key("alice")
        cls.operator, operator = new_key("operator", "--admin")
        cls.slow, slow = new_key("slow", "--requests-per-minute", "1")
        cls.keys = pathlib.Path(folder.name) / "keys.yaml"
        cls.keys.write_text(alice + operator + slow)
        # One that wants a key, one that wants a certificate, both behind TLS.
        cls.keyed = cls.serve("--api-key-file", str(cls.keys), "--admin-port", "0")
        cls.mutual = cls.serve("--ssl-ca-certs", str(cls.ca.cert), "--ssl-cert-reqs", "required")
        plain = Daemon("--max-model-len", "512")
        cls.addClassCleanup(plain.__exit__)
        cls.plain = f"127.0.0.1:{plain.port}"
        cls.expected = sync_calls(cls.plain)[0]

    @classmethod
    def serve(cls, *args, cert=None, key=None):
        daemon = Daemon("--ssl-certfile", str(cert or cls.cert), "--ssl-keyfile",
                        str(key or cls.key), "--max-model-len", "512", *args)
        cls.addClassCleanup(daemon.__exit__)
        return daemon

    def assert_answers(self, daemon, **how):
        address = f"127.0.0.1:{daemon.port}"
        for results in (sync_calls(address, **how), async_calls(address, **how)):
            self.assertEqual(results, [self.expected] * 2)

    def assert_fails(self, kind, address, **how):
        """Each of the calls, as the kind; returns the errors."""
        errors = sync_calls(address, **how) + async_calls(address, **how)
        self.assertEqual([type(e) for e in errors], [kind] * 4, errors)
        return errors

    def test_tls_and_a_key(self):
        for ca in (self.ca.cert, str(self.ca.cert), self.ca.cert.read_bytes()):
            self.assert_answers(self.keyed, tls=Tls(ca=ca), api_key=self.alice)

    def test_keys_that_are_not_taken(self):
        address, tls = f"127.0.0.1:{self.keyed.port}", Tls(ca=self.ca.cert)
        for key in (None, "", "not-a-key-that-anybody-has", self.alice[:-1], self.alice + "x"):
            for error in self.assert_fails(UnauthenticatedError, address, tls=tls, api_key=key):
                self.assertFalse(error.retryable)
                self.assertIn("key", error.message)
                self.assertNotIn(self.alice[:-1], str(error))

    def test_servers_that_are_not_trusted(self):
        address = f"127.0.0.1:{self.keyed.port}"
        wrong_name = self.serve(cert=self.ca.issue("other", "DNS:other.test")[0],
                                key=self.ca.folder / "other.key")
        for target, tls in [(address, Tls(ca=self.stranger.cert)),  # another's signature
                            (address, True),                        # not among the well-known
                            (address, None),                        # plaintext to TLS
                            (self.plain, Tls(ca=self.ca.cert)),     # TLS to plaintext
                            (f"127.0.0.1:{wrong_name.port}", Tls(ca=self.ca.cert))]:
            for error in self.assert_fails(UnavailableError, target, tls=tls, api_key=self.alice):
                self.assertTrue(error.retryable)
                self.assertTrue(error.message)
        # The certificate's own name makes it right.
        self.assert_answers(wrong_name, tls=Tls(ca=self.ca.cert, server_name="other.test"))

    def test_certificates_of_clients(self):
        cert, key = self.mine
        self.assert_answers(self.mutual, tls=Tls(ca=self.ca.cert, certificate=cert, key=key))
        self.assert_answers(self.mutual, tls=Tls(
            ca=self.ca.cert.read_bytes(), certificate=cert.read_bytes(), key=key.read_bytes()))
        address = f"127.0.0.1:{self.mutual.port}"
        self.assert_fails(UnavailableError, address, tls=Tls(ca=self.ca.cert))
        self.assert_fails(UnavailableError, address, tls=Tls(
            ca=self.ca.cert, certificate=self.impostor[0], key=self.impostor[1]))

    def test_keys_that_no_header_can_hold(self):
        for kind in (Client, AsyncClient):
            for key in (self.alice + "\n", "k\u00e4se" + self.alice, self.alice + "\0"):
                with self.assertRaises(ValueError) as caught:
                    kind("127.0.0.1:1", api_key=key)
                self.assertIn("api_key", str(caught.exception))
                self.assertNotIn(self.alice, str(caught.exception))
        result = run("generate", "--port", "1", "hi", env={"QUIRE_API_KEY": self.alice + "\n"})
        self.assertEqual(result.returncode, 2)
        self.assertIn("api_key", result.stderr)

    def test_files_that_are_not_there(self):
        for kind in (Client, AsyncClient):
            with self.assertRaises(FileNotFoundError):
                kind("127.0.0.1:1", tls=Tls(ca="/nowhere/ca.pem"))
            for half in (Tls(certificate=self.mine[0]), Tls(key=self.mine[1])):
                with self.assertRaises(ValueError):
                    kind("127.0.0.1:1", tls=half)

    def test_operators(self):
        """By the admin port with TLS and a key that may; by the socket."""
        socket, port = self.keyed.admin_addresses[0], self.keyed.admin_addresses[1]
        self.assertTrue(socket.startswith("unix:"), socket)
        port = f"127.0.0.1:{port.rsplit(':', 1)[1]}"
        how = dict(tls=Tls(ca=self.ca.cert), timeout=TIMEOUT_S)
        address = f"127.0.0.1:{self.keyed.port}"

        async def asks(where, key):
            async with AsyncClient(address, api_key=key, admin_address=where, **how) as client:
                return (await client.admin.config()).max_num_seqs, await client.admin.requests()

        for where, key in ((port, self.operator), (socket, None), (socket, self.alice)):
            with Client(address, api_key=key, admin_address=where, **how) as client:
                told = client.admin.config().max_num_seqs, client.admin.requests()
            self.assertEqual(told, (64, []))
            self.assertEqual(asyncio.run(asks(where, key)), told)
        for key, kind in ((self.alice, PermissionDeniedError), (None, UnauthenticatedError)):
            with Client(address, api_key=key, admin_address=port, **how) as client:
                for call in (client.admin.config, client.admin.requests):
                    with self.assertRaises(kind):
                        call()
            with self.assertRaises(kind):
                asyncio.run(asks(port, key))

    def test_limits_say_when_to_come_again(self):
        address = f"127.0.0.1:{self.keyed.port}"
        how = dict(tls=Tls(ca=self.ca.cert), api_key=self.slow, timeout=TIMEOUT_S)
        with Client(address, **how) as client:
            self.assertEqual(client.generate(PROMPT, PARAMS).outputs, self.expected)
            with self.assertRaises(ResourceExhaustedError) as caught:
                client.generate(PROMPT, PARAMS)
        self.assertTrue(caught.exception.retryable)
        self.assertGreater(caught.exception.retry_after_s, 0)
        self.assertLessEqual(caught.exception.retry_after_s, 60)

    def tearDown(self):
        for daemon in (self.keyed, self.mutual):
            self.assertTrue(eventually(lambda: daemon.blocks().used_blocks == 0))


if __name__ == "__main__":
    unittest.main()
