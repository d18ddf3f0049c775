"""Certificates for tests, made by the openssl command."""
import pathlib
import subprocess


def openssl(*args):
    made = subprocess.run(["openssl", *args], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr


class Authority:
    """A CA in a folder, and what it signs."""

    def __init__(self, folder, name):
        self.folder = pathlib.Path(folder)
        self.key, self.cert = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-keyout", str(self.key), "-out", str(self.cert), "-days", "2",
                "-subj", f"/CN={name}")

    def issue(self, name, hosts="DNS:localhost,IP:127.0.0.1"):
        """(certificate, key) as files."""
        key, request = self.folder / f"{name}.key", self.folder / f"{name}.csr"
        cert, extensions = self.folder / f"{name}.pem", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", str(request), "-CA", str(self.cert), "-CAkey",
                str(self.key), "-CAcreateserial", "-days", "2", "-extfile", str(extensions),
                "-out", str(cert))
        return cert, key
