#!/usr/bin/env python3
"""CPU time of a running daemon outside its engine for each token streamed over HTTP.

    build/release/quire serve --model M --max-num-seqs 256 &
    bench/http_front.py --pid $! [--port 8000] [--streams 256] [--tokens 128]

`quire bench front` is the same for gRPC, and asks the server; here its threads' times come from
/proc, so this runs on the server's machine. Streams begin one after another; counted is from when
all have had a token to when the first ends. Only Python's standard library is needed.
"""
import argparse
import json
import os
import selectors
import socket
import sys
import time

ENGINE = ("quire-engine", "quire-kernel", "quire-pool")


def front_seconds(pid):
    """CPU seconds of all threads that are not the engine's, and of those that are."""
    tick = os.sysconf("SC_CLK_TCK")
    front = engine = 0.0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as file:
                name = file.read().strip()
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                seconds = int(file.read().split()[0]) / 1e9
        except FileNotFoundError:
            continue
        except OSError:  # no schedstat in this kernel: ticks
            with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            seconds = (int(fields[11]) + int(fields[12])) / tick
        if name.startswith(ENGINE):
            engine += seconds
        else:
            front += seconds
    return front, engine


def body(tokens):
    return json.dumps({"prompt": "Once", "max_tokens": tokens, "ignore_eos": True,
                       "temperature": 0, "stream": True}).encode()


def start(host, port, tokens):
    sock = socket.create_connection((host, port))
    payload = body(tokens)
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                 b"content-length: %d\r\n\r\n" % len(payload) + payload)
    sock.setblocking(False)
    return sock


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, required=True, help="of the daemon")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    args = parser.parse_args()

    selector = selectors.DefaultSelector()
    events = {}
    for _ in range(args.streams):
        sock = start(args.host, args.port, args.tokens)
        events[sock] = 0
        selector.register(sock, selectors.EVENT_READ)
    begun = None  # (front, engine, events so far, time)
    while True:
        ready = selector.select(timeout=60)
        if not ready:
            sys.exit("http_front: nothing for 60 s")
        ended = False
        for key, _ in ready:
            data = key.fileobj.recv(1 << 16)
            if not data:
                sys.exit("http_front: the server closed a stream")
            events[key.fileobj] += data.count(b"data: {")
            ended = ended or b"data: [DONE]" in data
        if begun is None and all(events.values()):
            begun = (*front_seconds(args.pid), sum(events.values()), time.monotonic())
        if ended:
            break
    if begun is None:
        sys.exit("http_front: a stream ended before all had begun; raise --tokens or the server's --max-num-seqs")
    front, engine = front_seconds(args.pid)
    tokens = sum(events.values()) - begun[2]
    print(f"{args.streams} streams over HTTP at once, {tokens} events in {time.monotonic() - begun[3]:.1f} s;"
          " CPU time of the server")
    print(f"an event (a token's text): {(front - begun[0]) / tokens * 1e6:.2f} us front end,"
          f" {(engine - begun[1]) / tokens * 1e6:.2f} us engine")


if __name__ == "__main__":
    main()
