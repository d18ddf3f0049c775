"""Abuse costs nobody else an answer, and leaves nothing behind."""
import os
import threading
import unittest

import abuse
from daemon import FLOAT32, Daemon, eventually, greedy, pb


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Steady(threading.Thread):
    """Asks for the same answer until it is told to stop."""

    def __init__(self, daemon):
        super().__init__()
        self.channel = daemon.connect()
        self.generation = daemon.generation.__class__(self.channel)
        self.request = greedy([5, 17, 99, 1000], 48)
        self.answers, self.error, self.stop = [], None, threading.Event()

    def ask(self):
        ids = []
        for event in self.generation.Generate(self.request, timeout=120):
            ids += event.delta.token_ids
        return ids

    def run(self):
        try:
            while not self.stop.is_set():
                self.answers.append(self.ask())
        except Exception as error:  # what it was is the test's message
            self.error = error


class AbuseTest(unittest.TestCase):
    def test_nobody_else_notices_and_nothing_is_left(self):
        with Daemon("--num-blocks", "256", "--max-queued-requests", "512",
                    "--http-max-connections", "4096", *FLOAT32) as daemon:
            pid, ports = daemon.process.pid, (daemon.port, daemon.http_port)
            steady = Steady(daemon)
            expected = steady.ask()
            files = open_files(pid)
            # The pool's pages count when they are first written, whoever does it.
            for i in range(60):
                daemon.generation.GenerateUnary(greedy([i + 1] * 100, 2))
            steady.start()
            sizes = []
            for _ in range(3):
                abuse.round_of_all(*ports)
                self.assertIsNone(daemon.process.poll(), daemon.read_log())
                # Slow readers' requests end with them, and so do their blocks and connections.
                self.assertTrue(eventually(lambda: daemon.blocks().live_requests <= 1))
                self.assertTrue(eventually(lambda: open_files(pid) <= files + 8),
                                f"{files} files before, {open_files(pid)} after")
                # Heaps are trimmed every few seconds if that frees much.
                limit = sizes[0] * 1.05 if sizes else 0
                eventually(lambda: resident_bytes(pid) < limit or not sizes)
                sizes.append(resident_bytes(pid))
            steady.stop.set()
            steady.join()
            self.assertIsNone(steady.error)
            self.assertGreater(len(steady.answers), 3)
            for answer in steady.answers:
                self.assertEqual(answer, expected)
            # Buffers and arenas grow to the size of the first round, then no more.
            self.assertLess(sizes[1], sizes[0] * 1.05, sizes)
            self.assertLess(sizes[2], sizes[0] * 1.05, sizes)
            self.assertTrue(eventually(lambda: daemon.blocks().used_blocks == 0))
            daemon.terminate()
            self.assertEqual(daemon.wait(), 0, daemon.read_log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
