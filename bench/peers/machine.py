"""What runs where: CPU time of us and of others, memory, pausing. Linux, /proc."""
import os
import platform
import signal
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")
TICK_S = 0.02


def _processes():
    """pid -> (parent, CPU seconds)."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # has ended
        found[int(name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS)
    return found


def tree(root):
    """The pids of a process and all below it."""
    processes = _processes()
    pids, grown = {root} & processes.keys(), True
    while grown:
        more = {pid for pid, (parent, _) in processes.items() if parent in pids} - pids
        pids |= more
        grown = bool(more)
    return pids


def busy():
    """CPU seconds that the machine has spent, and that its host took away."""
    with open("/proc/stat") as file:
        v = [int(x) / TICKS for x in file.readline().split()[1:9]]
    return v[0] + v[1] + v[2] + v[5] + v[6], v[7]


def spent(pids):
    processes = _processes()
    return sum(processes[pid][1] for pid in pids if pid in processes)


class Use:
    """CPU use, in cores, between start and stop: of the processes below us, and of all others; and
    the longest that this process itself was kept from running, as by somebody's SIGSTOP."""

    def __enter__(self):
        self.ended, self.longest_gap = threading.Event(), 0.0
        self.watch = threading.Thread(target=self._watch)
        self.watch.start()
        self.time, (self.busy, self.steal) = time.perf_counter(), busy()
        self.own = spent(tree(os.getpid()))
        return self

    def _watch(self):
        last = time.perf_counter()
        while not self.ended.wait(TICK_S):
            now = time.perf_counter()
            self.longest_gap = max(self.longest_gap, now - last - TICK_S)
            last = now

    def __exit__(self, *_):
        self.ended.set()
        self.watch.join()
        own = spent(tree(os.getpid())) - self.own
        all_, steal = busy()
        seconds = max(time.perf_counter() - self.time, 1e-9)
        self.result = {
            "own_cores": round(own / seconds, 2),
            "other_cores": round(max(0.0, all_ - self.busy - own) / seconds, 2),
            "steal_cores": round((steal - self.steal) / seconds, 2),
            "load": round(os.getloadavg()[0], 1),
            "gap_s": round(self.longest_gap, 2),
        }


def wait_until_quiet(cores, seconds):
    """Until others use less than so many cores, over a second; False if they never did."""
    end = time.monotonic() + seconds
    while True:
        with Use() as use:
            time.sleep(1)
        if use.result["other_cores"] < cores:
            return True
        if time.monotonic() >= end:
            return False


def memory(root):
    """MiB of a process tree: {"pss", "rss", "anonymous"}."""
    total = {"Pss": 0, "Rss": 0, "Pss_Anon": 0}
    for pid in tree(root):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                for line in file:
                    key = line.split(":")[0]
                    if key in total:
                        total[key] += int(line.split()[1])
        except OSError:
            continue
    return {"pss": total["Pss"] / 1024, "rss": total["Rss"] / 1024,
            "anonymous": total["Pss_Anon"] / 1024}


def send(root, sig):
    for pid in tree(root):
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass


def set_nice(value):
    """Of this process and those that it will start, against all others."""
    if value == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, value)
    # Where sessions are scheduled as groups (autogroup), niceness counts only within one, so a
    # session of our own gets it, too. A shell's direct child can't have one and does without.
    try:
        os.setsid()
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(value))
    except OSError:
        pass


def pause(root):
    send(root, signal.SIGSTOP)


def resume(root):
    send(root, signal.SIGCONT)


def describe():
    cpu, flags = platform.machine(), []
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":")[1].strip()
            elif line.startswith("flags"):
                flags = line.split(":")[1].split()
                break
    known = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    with open("/proc/meminfo") as file:
        memory_kib = int(file.readline().split()[1])
    return {"cpu": cpu, "cpus": os.cpu_count(), "isa": [f for f in known if f in flags],
            "memory_gib": round(memory_kib / 2**20, 1), "kernel": platform.release(),
            "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
