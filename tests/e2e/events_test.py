"""KV events of the real daemon over ZeroMQ, as an indexer reads them: pyzmq and msgpack, and block
hashes computed here by hashlib. FIELD's facts: frames, fields, hashes of vLLM 0.33."""
import hashlib
import re
import struct
import unittest

import msgpack
import zmq

from daemon import Daemon, collect, eventually, greedy, pb

BLOCK = 16
TIMEOUT_MS = 60_000  # only ends what hangs


def cbor_int(n, major=0):
    for limit, head, form in ((24, None, None), (1 << 8, 24, ">B"), (1 << 16, 25, ">H"),
                              (1 << 32, 26, ">I")):
        if n < limit:
            return bytes([major << 5 | (n if head is None else head)]) + (
                b"" if form is None else struct.pack(form, n))
    raise ValueError(n)


def cbor(value):
    """Canonical CBOR (RFC 8949) of what is hashed."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return cbor_int(value)
    if isinstance(value, bytes):
        return cbor_int(len(value), 2) + value
    if isinstance(value, str):
        return cbor_int(len(value.encode()), 3) + value.encode()
    return cbor_int(len(value), 4) + b"".join(cbor(v) for v in value)


def chain(tokens, salt=None):
    """The 32-byte hashes of all full blocks."""
    parent, hashes = hashlib.sha256(cbor("vllm-none-hash")).digest(), []
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        extra = [["cache_salt", salt]] if salt and at == 0 else None
        parent = hashlib.sha256(cbor([parent, list(tokens[at:at + BLOCK]), extra])).digest()
        hashes.append(parent)
    return hashes


def low64(digest):
    return int.from_bytes(digest[-8:], "big")


class Indexer:
    """What is stored where, from events alone."""

    def __init__(self):
        self.stored = {}  # (hash, medium) -> (parent hash, tokens, extra keys)
        self.next = 0

    def apply(self, number, payload):
        assert number == self.next, f"{number} after {self.next - 1}"
        self.next += 1
        _, events, rank = msgpack.unpackb(payload)
        assert rank == 0
        for event in events:
            self.apply_event(event)

    def apply_event(self, event):
        if isinstance(event, list):
            names = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size",
                                     "lora_id", "medium", "lora_name", "extra_keys"],
                     "BlockRemoved": ["block_hashes", "medium"], "AllBlocksCleared": []}[event[0]]
            event = {"type": event[0], **dict(zip(names, event[1:]))}
        if event["type"] == "AllBlocksCleared":
            self.stored.clear()
        elif event["type"] == "BlockRemoved":
            for h in event["block_hashes"]:
                del self.stored[h, event["medium"]]  # KeyError: it was never there
        else:
            assert event["block_size"] == BLOCK
            assert event["lora_id"] is None and event["lora_name"] is None
            parent, tokens = event["parent_block_hash"], event["token_ids"]
            assert len(tokens) == BLOCK * len(event["block_hashes"])
            for i, h in enumerate(event["block_hashes"]):
                extra = event.get("extra_keys")
                assert (h, event["medium"]) not in self.stored
                self.stored[h, event["medium"]] = (
                    parent, tokens[i * BLOCK:(i + 1) * BLOCK], extra[i] if extra else None)
                parent = h

    def of(self, medium):
        return {h for h, m in self.stored if m == medium}


class Subscriber:
    def __init__(self, daemon, topic=b"kv@pod-0@smollm2"):
        at = re.search(r"KV events at (\S+), replays at (\S+)", daemon.read_log())
        self.topic = topic
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, topic)
        self.replay = self.context.socket(zmq.DEALER)
        for socket, endpoint in (self.live, at[1]), (self.replay, at[2]):
            socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(endpoint)
        self.indexer = Indexer()

    def catch_up(self):
        """All batches that the indexer lacks, from the replay socket."""
        self.replay.send_multipart([b"", self.indexer.next.to_bytes(8, "big")])
        while True:
            delimiter, topic, number, payload = self.replay.recv_multipart()
            assert delimiter == b"" and topic == self.topic
            if number == b"\xff" * 8:
                assert payload == b""
                return self.indexer
            self.indexer.apply(int.from_bytes(number, "big"), payload)

    def receive(self):
        topic, number, payload = self.live.recv_multipart()
        assert topic == self.topic
        return int.from_bytes(number, "big"), payload

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy()


EVENTS = ("--kv-events", "--kv-events-endpoint", "tcp://127.0.0.1:*",
          "--kv-events-replay-endpoint", "tcp://127.0.0.1:*",
          "--kv-events-topic", "kv@pod-0@smollm2",
          "--prefix-hash-algorithm", "sha256_cbor", "--num-threads", "1")
PROMPT = [i % 900 + 100 for i in range(70)]


def ask(daemon, prompt, max_tokens=4, salt=""):
    request = greedy(prompt, max_tokens)
    request.kv.cache_salt = salt
    ids, _, _, last = collect(daemon.generation.Generate(request))
    return ids, last.usage.cached_tokens


def tree(daemon):
    """Hashes of the daemon's own prefix tree that are in the pool."""
    nodes = [n for batch in daemon.admin.DumpPrefixTree(pb.DumpPrefixTreeRequest(limit=100000))
             for n in batch.nodes]
    return {low64(n.hash) for n in nodes}


class EventsTest(unittest.TestCase):
    def test_an_indexer_knows_what_the_daemon_has(self):
        with Daemon(*EVENTS, "--num-blocks", "24", "--max-model-len", "256") as daemon, \
                Subscriber(daemon) as subscriber:
            self.assertEqual(subscriber.catch_up().stored, {})
            self.assertEqual(subscriber.indexer.next, 1)  # "cleared": a new process
            ids, _ = ask(daemon, PROMPT, 30)
            index = subscriber.catch_up()
            # The last token is sampled, not computed.
            wanted = [low64(h) for h in chain(PROMPT + ids[:-1])]
            self.assertEqual(len(wanted), 6)
            self.assertEqual(index.of("GPU"), set(wanted))
            self.assertEqual(tree(daemon), set(wanted))
            for i, h in enumerate(wanted):
                parent, tokens, extra = index.stored[h, "GPU"]
                self.assertEqual(parent, wanted[i - 1] if i > 0 else None)
                self.assertEqual(tokens, (PROMPT + ids)[i * BLOCK:(i + 1) * BLOCK])
                self.assertIsNone(extra)

            # A hit stores nothing new; a tenant's blocks are others, and say whose they are.
            self.assertEqual(ask(daemon, PROMPT)[1], 64)
            self.assertEqual(subscriber.catch_up().of("GPU"), set(wanted))
            self.assertEqual(ask(daemon, PROMPT, 2, salt="tenant-a")[1], 0)
            salted = [low64(h) for h in chain(PROMPT, "tenant-a")]
            self.assertEqual(subscriber.catch_up().of("GPU"), set(wanted) | set(salted))
            self.assertEqual(index.stored[salted[0], "GPU"][2], ["tenant-a"])
            self.assertIsNone(index.stored[salted[1], "GPU"][2])
            request = greedy(PROMPT, 2)
            request.kv.bypass_prefix_cache = True
            collect(daemon.generation.Generate(request))
            self.assertEqual(subscriber.catch_up().of("GPU"), set(wanted) | set(salted))

            # Evictions: 24 blocks are soon too few.
            for i in range(6):
                ask(daemon, [1000 + 7 * i + j for j in range(100)], 2)
                self.assertEqual(subscriber.catch_up().of("GPU"), tree(daemon))
            self.assertFalse(set(wanted) <= index.of("GPU"))

            # Flushes, of one salt and of all.
            ask(daemon, PROMPT, 2, salt="tenant-b")
            mine = {low64(h) for h in chain(PROMPT, "tenant-b")}
            self.assertTrue(mine <= subscriber.catch_up().of("GPU"))
            daemon.admin.FlushPrefixCache(pb.FlushPrefixCacheRequest(cache_salt="tenant-b"))
            self.assertFalse(mine & subscriber.catch_up().of("GPU"))
            self.assertEqual(index.of("GPU"), tree(daemon))
            daemon.admin.FlushPrefixCache(pb.FlushPrefixCacheRequest(all=True))
            self.assertEqual(subscriber.catch_up().stored, {})

    def test_live_messages_join_the_replay(self):
        with Daemon(*EVENTS) as daemon, Subscriber(daemon) as subscriber:
            # Until the subscription has arrived, messages pass it by: the replay has them.
            number = [0]

            def arrived():
                ask(daemon, [200 + number[0]] * 40, 2)
                number[0] += 1
                return subscriber.live.poll(50) > 0
            self.assertTrue(eventually(arrived))
            subscriber.catch_up()
            known = subscriber.indexer.next
            ask(daemon, PROMPT, 2)
            while True:
                at, payload = subscriber.receive()
                if at < known:
                    continue  # the replay had it already
                subscriber.indexer.apply(at, payload)
                if {low64(h) for h in chain(PROMPT)} <= subscriber.indexer.of("GPU"):
                    break
            self.assertEqual(subscriber.indexer.of("GPU"), tree(daemon))

    def test_tiers_and_forms(self):
        """Blocks move to the host tier and back; events as arrays, hashes as bytes."""
        with Daemon(*EVENTS, "--kv-events-encoding", "array", "--kv-events-int-hashes", "false",
                    "--num-blocks", "16", "--max-model-len", "200",
                    "--host-cache-memory-bytes", str(64 << 20)) as daemon, \
                Subscriber(daemon) as subscriber:
            ask(daemon, PROMPT, 2)
            blocks = set(chain(PROMPT))
            self.assertEqual(subscriber.catch_up().of("GPU"), blocks)
            ask(daemon, [3000 + j for j in range(190)], 2)
            ask(daemon, [5000 + j for j in range(190)], 2)
            index = subscriber.catch_up()
            self.assertTrue(blocks <= index.of("CPU"))
            self.assertFalse(blocks & index.of("GPU"))
            self.assertEqual(ask(daemon, PROMPT, 2)[1], 64)
            index = subscriber.catch_up()
            self.assertTrue(blocks <= index.of("GPU"))
            self.assertFalse(blocks & index.of("CPU"))
            self.assertFalse(index.of("GPU") & index.of("CPU"))


if __name__ == "__main__":
    unittest.main()
