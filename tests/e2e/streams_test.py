"""Streamed answers of the real model against whole ones, by gRPC and by HTTP, in many scripts; and
stop strings that lie over the border of two chunks. HARD-CASES E01, E03."""
import http.client
import json
import random
import threading
import unittest
from concurrent import futures

from daemon import Daemon, eventually, pb

PROMPTS = 500
MAX_TOKENS = 8
SCRIPTS = [  # ranges of letters
    (0x41, 0x7A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x531, 0x556), (0x5D0, 0x5EA),
    (0x621, 0x64A), (0x904, 0x939), (0x995, 0x9A8), (0xB95, 0xBB9), (0xE01, 0xE30), (0xE81, 0xE8A),
    (0xF40, 0xF6A), (0x1000, 0x1021), (0x10D0, 0x10F0), (0x1200, 0x1248), (0x13A0, 0x13F4),
    (0x1780, 0x17A2), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    (0x12000, 0x12398), (0x1D400, 0x1D454), (0x1F600, 0x1F64F), (0x20000, 0x2A6D6)]
CLUSTERS = [  # several code points that are read as one
    "👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "🇯🇵", "🇧🇷", "1️⃣", "❤️‍🔥",  # joiners, skin, flags, keycaps
    "e\u0301", "o\u0302\u0323", "Z\u0351\u036b\u0343", "\u1112\u1161\u11ab",  # marks, jamo
    "क्षि", "ज्ञ", "र्‍य", "நௌ", "ക്ഷ", "က္က", "ខ្មែ", "กำ", "นี้",  # conjuncts, vowels, tones
    "بِسْمِ", "لا", "שָׁלוֹם", "می‌خواهم", "\u202bאב\u202c", "禰󠄀", "か゚", "༄༅།", "ꦏꦿ"]
BREAKS = [" ", "", "\n", "، ", "。", "\r\n\t", " \u00a0", "\u3000", "—"]


def make_prompts():
    """Of one script, of clusters, or of a mixture of all."""
    drawn = random.Random(4)
    kinds = [lambda f=first, l=last: chr(drawn.randint(f, l)) for first, last in SCRIPTS]
    kinds += [lambda: drawn.choice(CLUSTERS)] * 6
    kinds += [lambda: drawn.choice(kinds[:len(SCRIPTS) + 1])()] * 4
    prompts = []
    for i in range(PROMPTS):
        letter, space = kinds[i % len(kinds)], drawn.choice(BREAKS)
        words = ["".join(letter() for _ in range(drawn.randint(1, 4))) for _ in range(4)]
        prompts.append(space.join(words))
    return prompts


class StreamsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-model-len", "512", "--max-queued-requests", "512")
        cls.of_thread, cls.connections = threading.local(), []

    @classmethod
    def tearDownClass(cls):
        for connection in cls.connections:
            connection.close()
        cls.daemon.__exit__()

    # ---- the four ways; each gives (text, chunks, reason, stop string) ----

    @staticmethod
    def request(prompt, seed, stop):
        return pb.GenerateRequest(
            text=prompt, sampling=pb.SamplingParams(temperature=1.5, seed=seed),
            stopping=pb.StoppingOptions(max_tokens=MAX_TOKENS, ignore_eos=True, stop=stop))

    def by_grpc(self, prompt, seed, stop=()):
        output = self.daemon.generation.GenerateUnary(self.request(prompt, seed, stop)).outputs[0]
        return self.grpc_end([output.text], output.finished)

    def by_grpc_stream(self, prompt, seed, stop=()):
        chunks, finished = [], None
        for event in self.daemon.generation.Generate(self.request(prompt, seed, stop)):
            self.assertIsNone(finished)
            if event.delta.text:
                chunks.append(event.delta.text)
            if event.HasField("finished"):
                finished = event.finished
        return self.grpc_end(chunks, finished)

    @staticmethod
    def grpc_end(chunks, finished):
        reason = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}[finished.reason]
        return "".join(chunks), chunks, reason, finished.stop_string or None

    def post(self, prompt, seed, stop, stream):
        # One connection for each thread, kept alive.
        if not hasattr(self.of_thread, "connection"):
            self.of_thread.connection = http.client.HTTPConnection(
                "127.0.0.1", self.daemon.http_port, timeout=600)
            self.connections.append(self.of_thread.connection)
        connection = self.of_thread.connection
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 1.5, "seed": seed,
            "ignore_eos": True, "stop": list(stop), "stream": stream}),
            {"content-type": "application/json"})
        response = connection.getresponse()
        body = response.read().decode()  # strict: each chunk's bytes are UTF-8
        self.assertEqual(response.status, 200, body)
        return body

    def by_http(self, prompt, seed, stop=()):
        choice = json.loads(self.post(prompt, seed, stop, False))["choices"][0]
        return choice["text"], [choice["text"]], choice["finish_reason"], choice["stop_reason"]

    def by_sse(self, prompt, seed, stop=()):
        events = self.post(prompt, seed, stop, True).split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        chunks, end = [], None
        for event in events[:-2]:
            if event.startswith(":"):
                continue
            self.assertTrue(event.startswith("data: "), event)
            choice = json.loads(event[6:])["choices"][0]
            self.assertIsNone(end)
            if choice["text"]:
                chunks.append(choice["text"])
            if choice["finish_reason"]:
                end = choice["finish_reason"], choice["stop_reason"]
        return "".join(chunks), chunks, *end

    # ---- what they are compared with ----

    def check(self, ways, prompt, seed, expected, stop=()):
        for way in ways:
            text, _, reason, stop_string = way(prompt, seed, stop)
            # A chunk that has been sent can't be taken back: equal means that nothing leaked.
            self.assertEqual((text, reason, stop_string), expected, (way.__name__, prompt, stop))

    def test_a_joined_stream_is_the_whole_answer(self):
        prompts = make_prompts()
        self.assertGreater(len(set(prompts)), PROMPTS - 25)

        def one(seed):
            prompt, drawn = prompts[seed], random.Random(seed)
            text, chunks, reason, stop_string = self.by_grpc_stream(prompt, seed)
            self.assertEqual((reason, stop_string), ("length", None))
            self.check((self.by_grpc, self.by_http, self.by_sse), prompt, seed,
                       (text, "length", None))
            found = self.over_a_border(chunks, drawn)
            if found:
                self.stops(prompt, seed, text, found, drawn)
            return not text.isascii(), "\ufffd" in text, bool(found), len(chunks) > 1

        with futures.ThreadPoolExecutor(32) as pool:
            foreign, broken, stopped, streamed = map(sum, zip(*pool.map(one, range(PROMPTS))))
        # Or the cases above were none.
        self.assertGreater(foreign, PROMPTS // 4)
        self.assertGreater(broken, PROMPTS // 50)  # ends within a character
        self.assertGreater(stopped, PROMPTS * 9 // 10)
        self.assertGreater(streamed, PROMPTS * 9 // 10)
        self.assertTrue(eventually(lambda: self.daemon.blocks().live_requests == 0
                                   and self.daemon.blocks().used_blocks == 0))

    @staticmethod
    def over_a_border(chunks, drawn):
        """A piece of the joined text that begins in one chunk and ends in the next; None if there
        is none."""
        pairs = list(zip(chunks, chunks[1:]))
        drawn.shuffle(pairs)
        for left, right in pairs:
            piece = left[-drawn.randint(1, 3):] + right[:drawn.randint(1, 3)]
            if "\ufffd" not in piece:  # may stand for bytes that were no character
                return piece
        return None

    def stops(self, prompt, seed, text, piece, drawn):
        before = text[:text.index(piece)]
        # Alone, and beside others that begin as the text goes on but never come to their end.
        near = [piece[:-1] + "\u0001", piece + "\u0001"]
        others = drawn.choice([[], near[:1], near])
        streams = (self.by_grpc_stream, self.by_sse)
        self.check((self.by_grpc, self.by_http, *streams), prompt, seed, (before, "stop", piece),
                   [*others, piece])
        self.check(streams, prompt, seed, (text, "length", None), near)


if __name__ == "__main__":
    unittest.main()
