"""TLS and mTLS of the gRPC port: what is accepted, what is not, and certificates that change while
serving. Certificates are made by the openssl command for each test."""
import http.client
import pathlib
import shutil
import socket
import ssl
import tempfile
import unittest

import grpc

from certificates import Authority
from daemon import Daemon, eventually, greedy, rpc, run


def code_of(channel):
    """Of a small call; UNAVAILABLE if the handshake fails."""
    try:
        rpc.GenerationStub(channel).GenerateUnary(greedy([1, 2, 3], 1), timeout=60)
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


class TlsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.ca = Authority(self.folder.name, "ca")
        self.cert = pathlib.Path(self.folder.name) / "live.pem"
        self.key = pathlib.Path(self.folder.name) / "live.key"
        self.install(*self.ca.issue("first"))

    def install(self, cert, key):
        shutil.copy(cert, self.cert)
        shutil.copy(key, self.key)

    def serve(self, *args):
        daemon = Daemon("--ssl-certfile", str(self.cert), "--ssl-keyfile", str(self.key),
                        "--max-model-len", "1024", *args)
        self.addCleanup(daemon.__exit__)
        return daemon

    def channel(self, daemon, ca=None, cert=None, key=None):
        credentials = grpc.ssl_channel_credentials(
            (ca or self.ca).cert.read_bytes(),
            key.read_bytes() if key else None, cert.read_bytes() if cert else None)
        channel = grpc.secure_channel(f"127.0.0.1:{daemon.port}", credentials,
                                      options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return channel

    def handshake(self, daemon, version, http=False):
        """The subject of the server's certificate, by a plain TLS client of one version."""
        protocol, port = ("http/1.1", daemon.http_port) if http else ("h2", daemon.port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca.cert)
        context.set_alpn_protocols([protocol])
        # Or this side would refuse the old ones by itself.
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                self.assertEqual(tls.selected_alpn_protocol(), protocol)
                return dict(pair[0] for pair in tls.getpeercert()["subject"])["commonName"]

    def https(self, daemon, cert=None, key=None):
        """The status of GET /v1/models; None if the handshake fails."""
        context = ssl.create_default_context(cafile=self.ca.cert)
        if cert:
            context.load_cert_chain(cert, key)
        connection = http.client.HTTPSConnection("127.0.0.1", daemon.http_port, context=context,
                                                 timeout=60)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status
        except (ssl.SSLError, ConnectionError):
            return None
        finally:
            connection.close()

    def test_tls(self):
        daemon = self.serve()
        self.assertEqual(code_of(self.channel(daemon)), grpc.StatusCode.OK)
        self.assertEqual(code_of(daemon.channel), grpc.StatusCode.UNAVAILABLE)  # plaintext
        stranger = Authority(self.folder.name, "stranger")
        self.assertEqual(code_of(self.channel(daemon, ca=stranger)), grpc.StatusCode.UNAVAILABLE)
        for http in [False, True]:
            for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
                self.assertEqual(self.handshake(daemon, version, http), "first")
            for version in [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]:
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    self.handshake(daemon, version, http)
        self.assertEqual(self.https(daemon), 200)
        generate = ["generate", "--host", "127.0.0.1", "--port", str(daemon.port), "--max-tokens",
                    "1", "--raw", "one two"]
        self.assertEqual(run(*generate, "--ca-cert", str(self.ca.cert)).returncode, 0)
        self.assertEqual(run(*generate).returncode, 1)
        self.assertEqual(run("admin", "stats", "--port", str(daemon.port)).returncode, 0)

    def test_clients_show_certificates(self):
        daemon = self.serve("--ssl-ca-certs", str(self.ca.cert), "--ssl-cert-reqs", "required")
        good = self.ca.issue("client")
        stranger = Authority(self.folder.name, "stranger")
        bad = stranger.issue("impostor")
        self.assertEqual(code_of(self.channel(daemon, cert=good[0], key=good[1])),
                         grpc.StatusCode.OK)
        self.assertEqual(code_of(self.channel(daemon)), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(code_of(self.channel(daemon, cert=bad[0], key=bad[1])),
                         grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.https(daemon, *good), 200)
        self.assertIsNone(self.https(daemon))
        self.assertIsNone(self.https(daemon, *bad))
        generate = ["generate", "--host", "127.0.0.1", "--port", str(daemon.port), "--max-tokens",
                    "1", "--raw", "--ca-cert", str(self.ca.cert), "one two"]
        self.assertEqual(run(*generate, "--cert", str(good[0]), "--key",
                             str(good[1])).returncode, 0)
        self.assertEqual(run(*generate).returncode, 1)

    def test_clients_may_show_certificates(self):
        daemon = self.serve("--ssl-ca-certs", str(self.ca.cert), "--ssl-cert-reqs", "optional")
        bad = Authority(self.folder.name, "stranger").issue("impostor")
        self.assertEqual(code_of(self.channel(daemon)), grpc.StatusCode.OK)
        self.assertEqual(code_of(self.channel(daemon, cert=bad[0], key=bad[1])),
                         grpc.StatusCode.UNAVAILABLE)

    def test_certificates_change_while_serving(self):
        daemon = self.serve()

        def subject():
            return self.handshake(daemon, ssl.TLSVersion.TLSv1_2)
        channel = self.channel(daemon)
        running = rpc.GenerationStub(channel).Generate(greedy([1, 2, 3], 600))
        next(running)
        self.install(*self.ca.issue("second"))
        self.assertTrue(eventually(lambda: subject() == "second"))
        tls12 = ssl.TLSVersion.TLSv1_2
        self.assertEqual(self.handshake(daemon, tls12, http=True), "second")
        # A pair that doesn't match, then half a file, then nothing: the last good one stays.
        third = self.ca.issue("third")
        shutil.copy(third[0], self.cert)
        self.assertTrue(eventually(lambda: "is not the key of" in daemon.read_log()))
        self.assertEqual(subject(), "second")
        text = third[0].read_text()
        self.cert.write_text(text[:len(text) // 2])
        self.assertTrue(eventually(lambda: "no readable PEM certificate" in daemon.read_log()))
        self.assertEqual(subject(), "second")
        self.key.unlink()
        self.assertTrue(eventually(lambda: "No such file" in daemon.read_log()))
        self.assertEqual(subject(), "second")
        self.install(*third)
        self.assertTrue(eventually(lambda: subject() == "third"))
        self.assertEqual(self.handshake(daemon, tls12, http=True), "third")
        # A connection that stood before goes on.
        self.assertTrue(any(event.HasField("finished") for event in running))
        self.assertEqual(code_of(channel), grpc.StatusCode.OK)

    def test_keys_and_tls_together(self):
        made = run("key", "alice")
        keys = pathlib.Path(self.folder.name) / "keys.yaml"
        keys.write_text(made.stdout)
        daemon = self.serve("--api-key-file", str(keys))
        channel = self.channel(daemon)
        self.assertEqual(code_of(channel), grpc.StatusCode.UNAUTHENTICATED)
        answer = rpc.GenerationStub(channel).GenerateUnary(
            greedy([1, 2, 3], 1), metadata=[("authorization", f"Bearer {made.stderr.strip()}")])
        self.assertEqual(len(answer.outputs), 1)

    def test_files_that_cannot_be_used(self):
        other = self.ca.issue("other")
        nobody = pathlib.Path(self.folder.name) / "none.pem"
        for cert, key, part in [
                (self.cert, other[1], f"ssl_keyfile={other[1]} is not the key of"),
                (nobody, self.key, str(nobody)),
                (self.key, self.key, f"ssl_certfile={self.key} holds no readable PEM certificate"),
                (self.cert, self.cert, f"ssl_keyfile={self.cert} holds no readable PEM key")]:
            result = run("serve", "--model", "m", "--ssl-certfile", str(cert), "--ssl-keyfile",
                         str(key), "--check-config")
            self.assertEqual(result.returncode, 2)
            self.assertIn(part, result.stderr)


if __name__ == "__main__":
    unittest.main()
