"""Clients that mean no good, or know no better: what they do to the daemon's two public ports.

Each is a function of (grpc_port, http_port) that returns what keeps its connections open (or None);
none of them waits for an answer longer than it has to. Used by abuse_test.py and bench/abuse.py.
"""
import json
import random
import socket
import struct

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload):
    """Of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def connect(port, receive_buffer=None):
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(10)
    s.connect((HOST, port))
    return s


def send(port, *parts, read=True):
    """Says it all, and hangs up when the other side has done so or is silent."""
    with connect(port) as s:
        s.settimeout(0.3)
        try:
            for part in parts:
                s.sendall(part)
            while read and s.recv(1 << 16):
                pass
        except OSError:
            pass  # cut off: as it should be


def post(path, body, **headers):
    lines = [f"POST {path} HTTP/1.1", "Host: quire", "Content-Type: application/json"]
    if "Transfer_Encoding" not in headers:
        headers.setdefault("Content_Length", len(body))
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def idle_connections(grpc_port, http_port, count=5000):
    """Open, and never a word; half of the gRPC ones have said hello."""
    held = []
    for i in range(count):
        s = connect(grpc_port if i % 2 else http_port)
        if i % 4 == 1:
            s.sendall(PREFACE + frame(4, 0, 0, b""))
        held.append(s)
    return held


def ask_for_streams(http_port, count, receive_buffer=None):
    """Few tokens, so that it is not the engine's work that others feel, of many bytes each."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "stream": True,
                       "ignore_eos": True, "logprobs": 20}).encode()
    held = []
    for _ in range(count):
        s = connect(http_port, receive_buffer)
        s.sendall(post("/v1/completions", body, Connection="close"))
        held.append(s)
    return held


def slow_readers(_, http_port, count=200):
    """Ask for streams and read nothing of them."""
    return ask_for_streams(http_port, count, receive_buffer=4096)


def good_readers(_, http_port, count=200):
    """The same requests, read to their ends: what of the load above is no abuse."""
    for s in ask_for_streams(http_port, count):
        while s.recv(1 << 16):
            pass
        s.close()


def slowloris(grpc_port, http_port, count=200):
    """Heads and frames that never end."""
    held = []
    for i in range(count):
        s = connect(grpc_port if i % 2 else http_port)
        s.sendall(PREFACE + b"\0\0\x40" if i % 2 else b"POST /v1/completions HTTP/1.1\r\nHost: q\r\nX-A: ")
        held.append(s)
    return held


def huge_bodies(grpc_port, http_port):
    """A gigabyte announced, or sent without end."""
    piece = b"x" * (1 << 20)
    send(http_port, post("/v1/completions", b"", Content_Length=1 << 30), piece)
    send(http_port, post("/v1/completions", b"", Transfer_Encoding="chunked"),
         *([b"100000\r\n" + piece + b"\r\n"] * 64))
    send(http_port, post("/v1/completions", b"", Content_Length=1 << 70))
    # A gRPC message of 1 GiB in DATA frames: the head that a client would send, then the length.
    send(grpc_port, PREFACE, frame(4, 0, 0, b""), frame(1, 4, 1, grpc_head()),
         frame(0, 0, 1, b"\0" + struct.pack(">I", 1 << 30)), *([frame(0, 0, 1, piece[:16384])] * 64))


def grpc_head(extra=b""):
    """HPACK (RFC 7541) without the dynamic table: literal fields, names as text."""
    def literal(name, value):
        return b"\0" + length(name) + name + length(value) + value

    def length(text):
        n = len(text)
        if n < 127:
            return bytes([n])
        out, n = [127], n - 127
        while n >= 128:
            out.append(n % 128 + 128)
            n //= 128
        return bytes(out + [n])
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/quire.v1.Generation/Generate"),
              (b":authority", b"quire"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    if extra:
        fields.append((b"x-tenant-id", extra))
    return b"".join(literal(k, v) for k, v in fields)


def malformed_http2(grpc_port, _):
    rng = random.Random(7)
    for payload in (
            b"GET / HTTP/1.1\r\nHost: quire\r\n\r\n", b"\x16\x03\x01" + rng.randbytes(200),  # TLS
            PREFACE[:10], PREFACE + rng.randbytes(4096),
            PREFACE + frame(4, 0, 0, b"12345"),                    # SETTINGS of 5 bytes
            PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, b"\xff" * 300),  # HPACK out of range
            PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 2, grpc_head()),  # an even stream
            PREFACE + frame(4, 0, 0, b"") + frame(9, 4, 1, b"x"),  # CONTINUATION of nothing
            PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, struct.pack(">I", 0)),
            PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, grpc_head()) + frame(0, 1, 1, b"\0\0\0\0\x05ab"),
            PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, grpc_head()) + frame(0, 1, 1, b"\x01\0\0\0\x02ab"),
            PREFACE + frame(4, 0, 0, b"") + b"".join(  # each call is taken back at once
                frame(1, 5, 2 * i + 1, grpc_head()) + frame(3, 0, 2 * i + 1, struct.pack(">I", 8))
                for i in range(500)),
            PREFACE + frame(4, 0, 0, b"") * 1000 + frame(6, 0, 0, b"12345678") * 1000):
        send(grpc_port, payload)


def malformed_http(_, http_port):
    rng = random.Random(8)
    deep = b"[" * 100_000
    for payload in (
            rng.randbytes(5000), b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
            PREFACE, b"\x16\x03\x01" + rng.randbytes(200),
            b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 100_000 + b"\r\n",
            post("/v1/completions", b"{}", Content_Length=-1),
            post("/v1/completions", b"{}", Content_Length=2, Transfer_Encoding="chunked"),
            post("/v1/completions", b"zz\r\n", Transfer_Encoding="chunked"),
            post("/v1/completions", b"{"), post("/v1/completions", b"\xff\xfe{}"),
            post("/v1/completions", b"\xef\xbb\xbf{}"), post("/v1/completions", deep),
            post("/v1/completions", b'{"prompt":' + deep), post("/v1/completions", b"nul\0l"),
            post("/v1/completions", b'{"prompt": "\xc3\x28", "max_tokens": 1}'),
            post("/v1/completions", b'{"prompt": "\\ud800", "max_tokens": 1}'),
            post("/v1/completions", b'{"prompt": "a\\u0000b", "max_tokens": 1}'),
            post("/v1/completions", b'{"prompt": "a", "max_tokens": 1e400}'),
            post("/v1/completions", b'{"prompt": "a", "temperature": NaN}'),
            post("/v1/completions", b'{"prompt": [1, 99999999999999999999]}'),
            post("/v1/chat/completions", b'{"messages": 3}'),
            post("/v1/chat/completions", b'{"messages": [{"role": "user", "content": {"a": 1}}]}')):
        send(http_port, payload)


def huge_metadata(grpc_port, http_port):
    for size in (1 << 14, 1 << 17, 1 << 21):
        value = b"v" * size
        head = grpc_head(value)
        parts = [head[i:i + 16384] for i in range(0, len(head), 16384)]
        frames = [frame(1 if i == 0 else 9, 4 if i == len(parts) - 1 else 0, 1, part)
                  for i, part in enumerate(parts)]
        send(grpc_port, PREFACE, frame(4, 0, 0, b""), *frames)
        send(http_port, b"GET /health HTTP/1.1\r\nX-Tenant-Id: " + value + b"\r\n\r\n")


def reconnect_storm(grpc_port, http_port, count=1000):
    for i in range(count):
        s = connect(grpc_port if i % 2 else http_port)
        if i % 3:
            s.sendall(PREFACE if i % 2 else b"GET /health HTTP/1.1\r\nHost: q\r\n\r\n")
        if i % 5 == 0:  # reset instead of goodbye
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def round_of_all(grpc_port, http_port, idle=5000):
    """Everything once; what is held open stays so until the rest is done."""
    held = idle_connections(grpc_port, http_port, idle)
    held += slowloris(grpc_port, http_port)
    held += slow_readers(grpc_port, http_port)
    for what in (huge_bodies, malformed_http2, malformed_http, huge_metadata, reconnect_storm):
        what(grpc_port, http_port)
    for s in held:
        s.close()
