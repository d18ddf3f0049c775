"""What abuse costs a steady client: the time between its tokens while the daemon is abused, beside a
control in which as much CPU time is burnt by a process that has nothing to do with the daemon. The
slow readers' requests are work for the engine like any others: the control sends as many, and reads them.

  python3 bench/abuse.py [--rounds 5] [--seconds 10]

Needs QUIRE_BINARY, QUIRE_STUBS and QUIRE_SMOLLM2 as the tests in tests/e2e have them (README). Rounds
take turns: abuse, then control. The CPU time to burn is what abusers and the daemon's front end used
in the round before. Prints p50 and p99 of each and the ratio of p99s, the median of rounds; target 1.2.
"""
import argparse
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import abuse  # noqa: E402
from daemon import Daemon, greedy, pb, rpc  # noqa: E402

ENGINE = {"quire-engine", "quire-kernel", "quire-pool"}


def steady(port, seconds, out):
    """Times between the tokens of one stream after another, in ms."""
    import grpc
    generation = rpc.GenerationStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
    gaps, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        last = None
        for event in generation.Generate(greedy([5, 17, 99, 1000], 256)):
            if event.delta.token_ids:
                now = time.monotonic()
                if last is not None:
                    gaps.append((now - last) * 1e3)
                last = now
    out.put(gaps)


def abuse_for(ports, seconds, out):
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        abuse.round_of_all(*ports)
        rounds += 1
    used = resource.getrusage(resource.RUSAGE_SELF)
    out.put((rounds, used.ru_utime + used.ru_stime))


def burn_for(ports, rounds, cpu_s, seconds, out):
    """Spreads cpu_s evenly over the time, and as many requests as the slow readers had."""
    start, sent = time.monotonic(), 0
    while (now := time.monotonic() - start) < seconds:
        if sent < rounds * now / seconds:
            abuse.good_readers(*ports)
            sent += 1
        elif time.process_time() > cpu_s * now / seconds:
            time.sleep(0.0005)
    out.put((0, time.process_time()))


def front_end_s(daemon):
    info = daemon.admin.GetServerInfo(pb.GetServerInfoRequest())
    return (info.cpu_ms - sum(t.cpu_ms for t in info.threads if t.name in ENGINE)) / 1e3


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


def measure(daemon, seconds, disturb, *args):
    gaps, done = multiprocessing.Queue(), multiprocessing.Queue()
    client = multiprocessing.Process(target=steady, args=(daemon.port, seconds, gaps))
    other = multiprocessing.Process(target=disturb, args=(*args, seconds, done))
    before = front_end_s(daemon)
    client.start()
    other.start()
    result, (rounds, cpu_s) = gaps.get(), done.get()
    client.join()
    other.join()
    return result, rounds, cpu_s, front_end_s(daemon) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    o = parser.parse_args()
    ratios = []
    multiprocessing.set_start_method("spawn")  # gRPC and fork do not go together
    with Daemon("--max-queued-requests", "512", "--http-max-connections", "4096") as daemon:
        ports = (daemon.port, daemon.http_port)
        measure(daemon, o.seconds / 2, burn_for, ports, 1, 0.0)  # caches
        print(f"{'round':>5} {'':<8} {'p50 ms':>8} {'p99 ms':>8} {'CPU s/s':>8}")
        for i in range(o.rounds):
            under, rounds, clients_s, front_s = measure(daemon, o.seconds, abuse_for,
                                                        ports)
            cpu_s = clients_s + front_s
            control, _, burnt_s, quiet_s = measure(daemon, o.seconds, burn_for, ports, rounds, cpu_s)
            for name, gaps, s in (("abuse", under, cpu_s), ("control", control, burnt_s + quiet_s)):
                print(f"{i:>5} {name:<8} {percentile(gaps, .5):>8.2f} {percentile(gaps, .99):>8.2f} "
                      f"{s / o.seconds:>8.2f}", flush=True)
            ratios.append(percentile(under, .99) / percentile(control, .99))
    print(f"p99 under abuse / control: median {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}), {rounds} rounds of abuse each")


if __name__ == "__main__":
    main()
