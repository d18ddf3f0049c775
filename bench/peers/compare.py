"""Engines side by side on one machine in one run: rates, memory, start-up, and Quire's ratios.

    compare.py --engine NAME=KIND,MODEL[,ARGUMENT...] ... [--rounds 5] [--json FILE]

See README.md beside this file for the engines' kinds and what they need. All engines are started
and stay; a round runs each workload on each engine in turn, with prompts that are fresh in every
round and the same for all engines, while the others are paused (SIGSTOP), so that none of them
can disturb and no round pays for a start. The order of the engines turns with each round.

Ratios are medians of the rounds' own ratios, the first engine's figure over each other's; above 1
the first is better (more tokens a second, less memory, an earlier first token).
"""
import argparse
import json
import signal
import statistics
import sys
import time

import engines
import machine
import workloads


# A run during which we were stopped for so long is done again, so many times at most.
STOPPED_S, TRIES = 0.25, 4


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--engine", action="append", required=True, metavar="NAME=KIND,MODEL[,ARG...]",
                   help=f"the first is the one that others are compared with; kinds: "
                        f"{', '.join(engines.KINDS)}")
    p.add_argument("--workload", default=",".join(workloads.MIXES),
                   help="of %(default)s")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--starts", type=int, default=3, help="cold starts of each engine; 0: none")
    p.add_argument("--seed", default="1234")
    p.add_argument("--quiet", type=float, default=0.2, metavar="CORES",
                   help="before each run wait until others use less than this")
    p.add_argument("--patience", type=float, default=0, metavar="SECONDS",
                   help="... but no longer than this; default 0: do not wait")
    p.add_argument("--nice", type=int, default=0, help="of all engines and of this client; below 0 "
                   "needs root, and takes the cores from whatever else runs")
    p.add_argument("--json", metavar="FILE", help="all runs, written after each round")
    return p.parse_args()


def make_engine(text):
    name, _, rest = text.partition("=")
    kind, _, rest = rest.partition(",")
    if not rest or kind not in engines.KINDS:
        sys.exit(f"--engine {text}: want NAME=KIND,MODEL[,ARG...], KIND one of "
                 f"{', '.join(engines.KINDS)}")
    model, *args = rest.split(",")
    return engines.KINDS[kind](name, model, args)


class Report:
    def __init__(self, all_engines, options):
        self.engines, self.options = all_engines, options
        self.runs = []
        self.machine = machine.describe()

    def add(self, engine, what, value, **more):
        row = {"engine": engine.name, "what": what, "value": value, **more}
        self.runs.append(row)
        use = " ".join(f"{k}={v}" for k, v in more.get("use", {}).items())
        print(f"  {what:7} {engine.name:24} {value:10.2f}   {use}", flush=True)

    def values(self, engine, what):
        """round -> value."""
        return {r["round"]: r["value"] for r in self.runs
                if r["engine"] == engine.name and r["what"] == what}

    def save(self):
        if not self.options.json:
            return
        with open(self.options.json, "w") as file:
            json.dump({"machine": self.machine, "options": vars(self.options),
                       "engines": [{"name": e.name, "kind": type(e).__name__, "model": e.model,
                                    "args": e.args, "version": e.version_text}
                                   for e in self.engines],
                       "runs": self.runs}, file, indent=1)

    def print(self):
        first = self.engines[0]
        rows = [(w, workloads.MIXES[w].unit, True) for w in self.options.workload.split(",")]
        rows += [("memory", "MiB PSS, model loaded", False),
                 ("start", "s from process start to a first token", False)]
        print(f"\n{self.machine['cpu']}, {self.machine['cpus']} CPUs, "
              f"{' '.join(self.machine['isa'])}; {engines.THREADS} threads each")
        for e in self.engines:
            print(f"  {e.name}: {e.version_text}; {e.model} {' '.join(e.args)}")
        head = f"\n{'':8} {'engine':24} {'median':>9} {'least':>9} {'most':>9} {'runs':>5}"
        print(f"{head} {'ratio':>7} {'of rounds':>15} {'own':>7} {'others':>7}")
        for what, unit, more_is_better in rows:
            base = self.values(first, what)
            if not base:
                continue
            print(f"{what}: {unit}")
            for e in self.engines:
                v = self.values(e, what)
                if not v:
                    print(f"{'':8} {e.name:24} no figure")
                    continue
                ratios = [base[r] / v[r] if more_is_better else v[r] / base[r]
                          for r in v if r in base]
                uses = [r["use"] for r in self.runs
                        if r["engine"] == e.name and r["what"] == what and "use" in r]
                cores = " ".join(f"{statistics.median(u[k] for u in uses):7.2f}"
                                 for k in ("own_cores", "other_cores")) if uses else ""
                shown = "" if e is first or not ratios else (
                    f"{statistics.median(ratios):7.2f} {min(ratios):7.2f} {max(ratios):7.2f}")
                print(f"{'':8} {e.name:24} {statistics.median(v.values()):9.2f} "
                      f"{min(v.values()):9.2f} {max(v.values()):9.2f} {len(v):5} {shown:23} "
                      f"{cores}")


def wait(options):
    if options.patience > 0:
        machine.wait_until_quiet(options.quiet, options.patience)


def start(engine):
    """From before the process is there to after its first token, in seconds."""
    engine.start()
    engine.generate(workloads.prompts("W1", f"start {time.time_ns()}"), 1)
    return time.perf_counter() - engine.started


def main():
    options = parse()
    machine.set_nice(options.nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # engines are stopped on the way out
    for name in options.workload.split(","):
        if name not in workloads.MIXES:
            sys.exit(f"--workload {name}: want {', '.join(workloads.MIXES)}")
    all_engines = [make_engine(text) for text in options.engine]
    report = Report(all_engines, options)
    try:
        # Starts one by one, and each time anew; the last one stays.
        starts = max(1, options.starts)
        for turn in range(starts):
            for e in all_engines:
                wait(options)
                with machine.Use() as use:
                    seconds = start(e)
                if options.starts:
                    report.add(e, "start", seconds, round=turn, use=use.result)
                memory = e.memory()
                report.add(e, "memory", memory.pop("pss"), round=turn, **memory)
                if turn < starts - 1:
                    e.stop()
                else:
                    e.version_text = e.version()
                    e.pause()
        report.save()
        for turn in range(options.rounds):
            print(f"round {turn}", flush=True)
            shift = turn % len(all_engines)
            for name in options.workload.split(","):
                for e in all_engines[shift:] + all_engines[:shift]:
                    e.resume()
                    wait(options)
                    for attempt in range(TRIES):
                        with machine.Use() as use:
                            value, how = workloads.rate(name, e, f"{options.seed} {turn} {attempt}")
                        if use.longest_gap < STOPPED_S:
                            break
                    report.add(e, name, value, round=turn, use=use.result, **how)
                    e.pause()
            report.save()
    finally:
        for e in all_engines:
            e.stop()
    report.print()


if __name__ == "__main__":
    main()
