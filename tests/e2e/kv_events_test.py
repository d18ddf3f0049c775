"""KV events by gRPC as a gateway reads them: the stubs of PyPI's smg-grpc-proto, unchanged, against the
daemon. What is told is compared with what its ZeroMQ publisher tells an indexer (pyzmq, msgpack),
batch by batch, and with hashes computed by hashlib."""
import itertools
import threading
import unittest

import grpc
import msgpack
from smg_grpc_proto import vllm_engine_pb2_grpc as ve_rpc
from smg_grpc_proto.generated import common_pb2 as smg

from daemon import END_S, Daemon, eventually
from events_test import BLOCK, EVENTS, PROMPT, Subscriber, ask, chain, low64, tree

TIERS = {"GPU": smg.KV_CACHE_TIER_DEVICE, "CPU": smg.KV_CACHE_TIER_HOST,
         "STORAGE": smg.KV_CACHE_TIER_DISK}


def signed(h):
    return h - (1 << 64) if h >= 1 << 63 else h


def of_zmq(event):
    """An event of a msgpack payload in the words of ours()."""
    hashes = [signed(h) for h in event.get("block_hashes", [])]
    if event["type"] != "BlockStored":
        return event["type"], hashes, event.get("medium")
    parent, tokens = event["parent_block_hash"], event["token_ids"]
    size = event["block_size"]
    extra = event.get("extra_keys") or [None] * len(hashes)
    return ("BlockStored", hashes, event["medium"], None if parent is None else signed(parent),
            [(tokens[i * size:(i + 1) * size], size, extra[i] or []) for i in range(len(hashes))])


def of_grpc(event):
    if event.HasField("cleared"):
        return "AllBlocksCleared", [], None
    if event.HasField("removed"):
        removed = event.removed
        assert removed.tier == TIERS[removed.medium]
        return "BlockRemoved", list(removed.block_hashes), removed.medium
    stored = event.stored
    assert stored.tier == TIERS[stored.medium]
    parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
    return ("BlockStored", [b.block_hash for b in stored.blocks], stored.medium, parent,
            [(list(b.token_ids), b.block_size, [k.text for k in b.extra_keys])
             for b in stored.blocks])


class Index:
    """What a gateway knows: hash -> (parent, tokens), of the pool."""

    def __init__(self):
        self.stored = {}
        self.next = None

    def apply(self, batch):
        assert self.next in (None, batch.sequence_number), (self.next, batch.sequence_number)
        self.next = batch.sequence_number + 1
        for event in batch.events:
            kind, hashes, medium, *rest = of_grpc(event)
            if kind == "AllBlocksCleared":
                self.stored.clear()
            elif kind == "BlockRemoved":
                for h in hashes:
                    del self.stored[h, medium]
            else:
                parent = rest[0]
                for h, (tokens, _, _) in zip(hashes, rest[1]):
                    assert parent is None or (parent, medium) in self.stored
                    self.stored[h, medium] = (parent, tokens)
                    parent = h

    def of(self, medium):
        return {h for h, m in self.stored if m == medium}


def subscribe(daemon, start=0, channel=None):
    stub = ve_rpc.VllmEngineStub(channel or daemon.channel)
    return stub.SubscribeKvEvents(smg.SubscribeKvEventsRequest(start_sequence_number=start))


def replayed(subscriber, start=0):
    """[(number, events)] of the replay socket."""
    subscriber.replay.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        _, _, number, payload = subscriber.replay.recv_multipart()
        if number == b"\xff" * 8:
            return batches
        batches.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))


class KvEventsTest(unittest.TestCase):

    def assert_same(self, batches, by_zmq):
        self.assertEqual([b.sequence_number for b in batches], [n for n, _ in by_zmq])
        for batch, (_, (seconds, events, rank)) in zip(batches, by_zmq):
            self.assertEqual(batch.timestamp, seconds)
            self.assertEqual(batch.dp_rank, rank)
            self.assertFalse(batch.HasField("snapshot"))
            self.assertEqual([of_grpc(e) for e in batch.events], [of_zmq(e) for e in events])

    def test_both_tell_the_same(self):
        with Daemon(*EVENTS, "--num-blocks", "24", "--max-model-len", "256") as daemon, \
                Subscriber(daemon) as subscriber:
            stream = subscribe(daemon)
            ids, _ = ask(daemon, PROMPT, 30)
            ask(daemon, PROMPT + [77] * 30, 2)           # a branch of the first
            ask(daemon, PROMPT, 2, salt="tenant-a")      # the same tokens, other hashes
            for i in range(4):                           # evicts
                ask(daemon, [1000 + 7 * i + j for j in range(100)], 2)
            by_zmq = replayed(subscriber)
            batches = list(itertools.islice(stream, len(by_zmq)))
            self.assert_same(batches, by_zmq)
            kinds = {of_grpc(e)[0] for b in batches for e in b.events}
            self.assertEqual(kinds, {"AllBlocksCleared", "BlockStored", "BlockRemoved"})
            ids_of_events = [e.event_id for b in batches for e in b.events]
            self.assertEqual(ids_of_events, list(range(1, len(ids_of_events) + 1)))
            # Hashes and parents are those of the chain.
            told = {b.block_hash: (s, i) for batch in batches for e in batch.events
                    for s in [e.stored] for i, b in enumerate(s.blocks)}
            wanted = [signed(low64(h)) for h in chain(PROMPT + ids[:-1])]
            for number, h in enumerate(wanted):
                stored, i = told[h]
                parent = stored.blocks[i - 1].block_hash if i > 0 else (
                    stored.parent_block_hash if stored.HasField("parent_block_hash") else None)
                self.assertEqual(parent, wanted[number - 1] if number > 0 else None)
                self.assertEqual(list(stored.blocks[i].token_ids),
                                 (PROMPT + ids)[number * BLOCK:(number + 1) * BLOCK])
                self.assertFalse(stored.HasField("cache_salt"))
            for h in chain(PROMPT, "tenant-a"):
                self.assertEqual(told[signed(low64(h))][0].cache_salt, "tenant-a")
            # Applied, they are what the daemon has.
            index = Index()
            for batch in batches:
                index.apply(batch)
            self.assertEqual(index.of("GPU"), {signed(h) for h in tree(daemon)})
            # From a number on.
            start = len(by_zmq) // 2
            again = subscribe(daemon, start)
            self.assert_same(list(itertools.islice(again, len(by_zmq) - start)), by_zmq[start:])
            for call in stream, again:
                call.cancel()

    def test_a_newcomer_gets_a_snapshot_once_the_beginning_is_gone(self):
        with Daemon(*EVENTS, "--kv-events-buffer-steps", "3", "--num-blocks", "40",
                    "--max-model-len", "256") as daemon:
            for i in range(12):
                ask(daemon, [1000 + 7 * i + j for j in range(100)], 2)
            stream = subscribe(daemon)
            index = Index()
            first = next(stream)
            self.assertEqual((first.snapshot.index, first.snapshot.count), (0, 1))
            self.assertEqual(first.snapshot.unknown_before, 0)
            self.assertTrue(first.events[0].HasField("cleared"))
            self.assertEqual({e.event_id for e in first.events}, {0})
            index.apply(first)
            self.assertEqual(first.snapshot.blocks, len(index.stored))
            self.assertEqual(index.of("GPU"), {signed(h) for h in tree(daemon)})
            ask(daemon, PROMPT, 2)
            wanted = {signed(low64(h)) for h in chain(PROMPT)}
            while not wanted <= index.of("GPU"):
                index.apply(next(stream))
            self.assertEqual(index.of("GPU"), {signed(h) for h in tree(daemon)})
            stream.cancel()
            with self.assertRaises(grpc.RpcError) as caught:
                next(subscribe(daemon, 1))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.OUT_OF_RANGE)
            self.assertIn("start_sequence_number=1 ", caught.exception.details())

    def test_off(self):
        with Daemon() as daemon:
            with self.assertRaises(grpc.RpcError) as caught:
                next(subscribe(daemon))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            self.assertIn("kv_events=true", caught.exception.details())

    def test_many_subscribers_and_a_shutdown(self):
        with Daemon(*EVENTS) as daemon:
            channels = [daemon.connect() for _ in range(4)]
            streams = [subscribe(daemon, channel=channels[i % 4]) for i in range(40)]
            indexes = [Index() for _ in streams]
            ends = [None] * len(streams)

            def follow(i):
                try:
                    for batch in streams[i]:
                        indexes[i].apply(batch)
                except grpc.RpcError as error:
                    ends[i] = error.code()

            readers = [threading.Thread(target=follow, args=[i]) for i in range(len(streams))]
            for reader in readers:
                reader.start()
            for i in range(8):
                ask(daemon, [100 + 50 * i + j for j in range(60)], 2)
            wanted = {signed(h) for h in tree(daemon)}
            self.assertTrue(eventually(lambda: all(x.of("GPU") == wanted for x in indexes)))
            for stream in streams[:8]:
                stream.cancel()
            daemon.terminate()
            for reader in readers:
                reader.join(END_S)
            self.assertEqual(daemon.wait(), 0)
            self.assertEqual(set(ends[:8]), {grpc.StatusCode.CANCELLED})
            self.assertEqual(set(ends[8:]), {grpc.StatusCode.UNAVAILABLE})
            for channel in channels:
                channel.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
