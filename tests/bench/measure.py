"""measure.py - alternating pairs, their statistics, and the processes that a row needs.

The 95 % interval of a median is taken from the order statistics of the pair ratios: no
distribution is assumed. It takes SURE samples at least. A figure without a reference has the range
of its samples instead, so that the worst of them has to reach the goal.

A Bench ends the processes that it starts, by process id, when its block is left.
"""
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAIRS_MIN, PAIRS_MAX = 7, 15
# Runs of each side in a sample of the disk: a shared disk's rate changes from run to run by more
# than the goals allow.
DISK_REPEAT = 2
SURE = 6  # the range of fewer samples holds their median with less than 95 %
RESOLVED = 0.05
STOLEN_TOLD = 0.01
START_SECONDS = 600  # for a ckptd that fills its pool while other programs run
LOST_MIN = 1e-3  # seconds: shorter times are not distinguishable from zero, and give no ratio
# Pairs are added by halves of the present number: with a check after each pair a narrow interval
# appears by chance far more often.
MORE = 0.5


class Stolen:
    """For a virtual machine, the time that its host took since the last call (proc(5), steal)."""

    def __init__(self):
        self.last = self.look()

    def look(self):
        with open("/proc/stat") as file:
            steal = int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() * os.cpu_count(), steal

    def share(self):
        """The share of the time of all processors in which there was work here and the host ran
        others."""
        before, self.last = self.last, self.look()
        return (self.last[1] - before[1]) / (self.last[0] - before[0])


def median_interval(values):
    """95 % interval of the median by order statistics (binomial with p = 1/2)."""
    values, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if below > 0.025:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return values[rank], values[n - 1 - rank]


def rate_of(rates):
    """The rate of runs of equal size, all taken as one."""
    return statistics.harmonic_mean(rates) if len(rates) > 1 else rates[0]


def show_progress(text):
    """Prints on a terminal, in a line that the next message replaces: a row may take minutes."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


def say(line):
    show_progress("")
    print(line, flush=True)


class Row:
    """One figure. direction: "higher" or "lower" says which ratio is better."""

    def __init__(self, name, unit, ours, reference=(), direction="higher", goal=None, note=""):
        self.name, self.unit, self.note = name, unit, note
        self.direction, self.goal = direction, goal
        self.ours, self.reference = list(ours), list(reference)
        self.ratios = [a / b for a, b in zip(self.ours, self.reference)]
        self.stolen = None  # share of the processors that the host gave to others meanwhile
        self.runs = 1  # of each side in a sample

    def add(self, ours, reference):
        self.ours.append(ours)
        self.reference.append(reference)
        self.ratios.append(ours / reference)

    def merge(self):
        """Half as many samples, each of twice as many runs."""
        twos = [(rate_of(self.ours[i:i + 2]), rate_of(self.reference[i:i + 2]))
                for i in range(0, len(self.ours) - 1, 2)]
        self.ours, self.reference, self.ratios = [], [], []
        for ours, reference in twos:
            self.add(ours, reference)
        self.runs *= 2

    def ratio(self):
        return statistics.median(self.ratios) if self.ratios else None

    def interval(self):
        """Of the ratio; without a reference, the range of the figure itself."""
        return median_interval(self.ratios) if self.ratios else (min(self.ours), max(self.ours))

    def noise(self):
        """Interval of the reference against itself, neighbour by neighbour."""
        pairs = [a / b for a, b in zip(self.reference, self.reference[1:])]
        return median_interval(pairs) if pairs else None

    def narrow(self, width=RESOLVED):
        if not self.ratios:
            return True
        low, high = self.interval()
        return (high - low) / 2 <= width * self.ratio()

    def width(self):
        """The width until which pairs are added: with one as wide as the distance from the goal to
        1, a program at par could miss the goal by noise."""
        near = abs(1 - self.goal) / 2 if self.goal else RESOLVED
        return min(near, RESOLVED) or RESOLVED

    def resolved(self):
        """Narrow, or farther from the goal than the interval is wide: noise does not decide it."""
        if self.narrow() or self.goal is None:
            return self.narrow()
        low, high = self.interval()
        return self.goal < low - (high - low) or self.goal > high + (high - low)

    def passed(self):
        if self.goal is None:
            return None
        low, high = self.interval()
        reached = low >= self.goal if self.direction == "higher" else high <= self.goal
        enough = len(self.ratios) >= SURE or not self.ratios
        return reached and enough and self.resolved()

    def as_dict(self):
        return {"name": self.name, "unit": self.unit, "ours": self.ours,
                "reference": self.reference, "ratio": self.ratio(), "interval": self.interval(),
                "noise": self.noise(), "stolen": self.stolen, "runs": self.runs,
                "resolved": self.resolved(), "goal": self.goal, "direction": self.direction,
                "pass": self.passed(), "note": self.note}

    def as_line(self):
        line = f"{self.name}: {statistics.median(self.ours):.4g} {self.unit}"
        if self.ratios:
            low, high = self.interval()
            line += (f", reference {statistics.median(self.reference):.4g}; "
                     f"ratio {self.ratio():.3f} [{low:.3f}, {high:.3f}], {len(self.ratios)} pairs")
            line += f" of {self.runs} runs" if self.runs > 1 else ""
            if self.noise():
                line += f", reference against itself [{self.noise()[0]:.3f}, {self.noise()[1]:.3f}]"
            line += "" if self.resolved() else "; not resolved"
        elif len(self.ours) > 1:
            low, high = self.interval()
            line += f", {low:.4g} to {high:.4g} in {len(self.ours)} samples"
        if self.goal is not None:
            line += "; pass" if self.passed() else f"; FAIL, goal {self.goal:g}"
        if self.stolen is not None and self.stolen > STOLEN_TOLD:
            line += f"; the host gave {self.stolen:.0%} of the processors to others"
        return line + (f" ({self.note})" if self.note else "")


class Share(Row):
    """A figure that is zero at best, where a relative width means nothing. It is resolved when its
    interval is narrower than the goal."""

    def resolved(self):
        low, high = self.interval()
        return high - low <= self.goal


class Program:
    """A measuring program that answers commands on stdin with JSON lines (tests/bench/bench.h)."""
    running = []

    def __init__(self, *command):
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.running.append(self)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args[0]} ended at \"{command}\"")
        return json.loads(answer)

    def close(self):
        self.running.remove(self)
        self.process.stdin.close()
        self.process.wait(60)


class Bench:
    def __init__(self, quick=False):
        self.quick = quick
        self.build = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
        self.tmp = tempfile.mkdtemp(prefix="hf-bench-", dir="/var/tmp")
        self.started = []
        self.closing = []  # a row's function to call at its end, also after a failure

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.clear()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def clear(self):
        """Ends a row's processes and removes its files: stores fill the disk."""
        for program in Program.running:
            self.end(program.process)
        Program.running.clear()
        for close in list(self.closing):
            close()
        for process in reversed(self.started):
            self.end(process)
        self.started.clear()
        for name in os.listdir(self.tmp):
            path = os.path.join(self.tmp, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def program(self, name):
        return os.path.join(self.build, name)

    def start(self, command, log):
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL,
                                   stdout=open(log, "ab"), stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *command, ok=(0,)):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in ok:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-500:]}")
        return done.stdout + done.stderr

    def cpu_of(self, process):
        """CPU seconds of a process and all its threads until now, to a clock tick."""
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def start_ckptd(self, name, *options, full=True):
        """A ckptd for the row: (process, server address, store). Its pool is full when this
        returns: filling it is no part of the measurement."""
        server, store = f"unix:{self.tmp}/{name}.sock", os.path.join(self.tmp, name)
        command = [self.program("ckptd"), "--listen", server, "--store", store, *options]
        process = self.start(command, os.path.join(self.tmp, name + ".log"))
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run([self.program("ckpt-cli"), "health", "--server", server],
                             capture_output=True).returncode != 0:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"ckptd does not answer on {server}")
            time.sleep(0.05)
        while full and not self.is_full(server):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the pool of ckptd on {server} is not full")
            time.sleep(0.05)
        return process, server, store

    def is_full(self, server):
        pool = json.loads(self.run(self.program("ckpt-cli"), "status", "--server", server,
                                   "--json"))["pool"]
        return pool["bytes_ready"] == pool["bytes"]

    def pairs(self, name, unit, ours, reference, pairs_max=PAIRS_MAX, pairs_min=PAIRS_MIN,
              repeat=1, kind=Row, **options):
        """Runs ours() and reference() in turns, at least `pairs_min` times, until the interval is
        narrow. With `repeat` a sample is the rate of so many runs, and the side that begins
        alternates, so that a drift of the machine favours none. Where the most pairs are not
        enough, a sample is once of twice as many runs."""
        row = kind(name, unit, [], [], **options)
        row.runs = repeat
        wanted = 3 if self.quick else pairs_min
        while len(row.ours) < wanted:
            show_progress(f"    {name}: pair {len(row.ours) + 1} of {wanted}" +
                          (f", ratio {row.ratio():.3f} so far" if row.ours else ""))
            found = {ours: [], reference: []}
            for turn in range(row.runs):
                first_is_ours = repeat == 1 or (len(row.ours) * row.runs + turn) % 2 == 0
                for side in (ours, reference) if first_is_ours else (reference, ours):
                    found[side].append(side())
            row.add(rate_of(found[ours]), rate_of(found[reference]))
            if len(row.ours) == wanted and not self.quick and not row.narrow(row.width()):
                if wanted == pairs_max and 1 < repeat == row.runs:
                    row.merge()
                wanted = min(len(row.ours) + math.ceil(MORE * len(row.ours)), pairs_max)
        return row

    def machine(self):
        with open("/proc/cpuinfo") as file:
            models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count(),
                "kernel": platform.release(),
                "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
