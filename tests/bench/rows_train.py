"""rows_train.py - the trainer: what a save, a restart and the canonical order cost; its rate."""
import datetime
import os
import re
import signal
import statistics
import time

from measure import Program, Row

MODEL = {"dim": 256, "hidden": 768, "kv": 64, "layers": 10, "vocab": 4096}  # debugmodel
SEQ, LEAVES = 256, 12  # of deploy/main-job.toml
LINE = re.compile(r"^(\S+)Z info train: step:\s*(\d+) .* tps: ([\d,]+) ", re.M)
START = re.compile(r"^(\S+)Z info train: start: init ([\d.]+) s, attempt ([\d.]+) s, "
                   r"load ([\d.]+) s.*first step \((\d+)\) ([\d.]+) s: ([\d.]+) s since", re.M)


def data(bench):
    """The main job's tokenizer and tokens, made once."""
    folder = bench.program("run")
    if not os.path.exists(os.path.join(folder, "text.tokens")):
        bench.run("deploy/main-job", "--data")
    return ["--training.dataset_path", os.path.join(folder, "text.tokens"),
            "--model.hf_assets_path", os.path.join(folder, "tokenizer.model")]


def seconds_since_epoch(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc).timestamp()


def train(bench, run, *options):
    """Runs the main job's model in one process; seconds per step after the first."""
    output = bench.run(bench.program("trainer"), "--job.config_file", "deploy/main-job.toml",
                       "--job.run", run, *data(bench), *options)
    times = [seconds_since_epoch(time) for time, _, _ in LINE.findall(output)]
    if len(times) < 3:
        raise RuntimeError("the trainer printed no steps: " + output[-300:])
    return (times[-1] - times[0]) / (len(times) - 1)


def row_lost_time(bench):
    """seconds of a step with a save after each, beside a step without: 2 ranks, one thread each"""
    process, server, _ = bench.start_ckptd("lost", "--memory.pool_bytes", "1GiB")
    count = iter(range(1000))
    common = ["--comm.ranks", "2", "--training.steps", "8"]
    row = bench.pairs(
        "step with a save / step without", "s", pairs_max=12, direction="lower",
        ours=lambda: train(bench, f"lost{next(count)}", *common, "--ckptd.address", server,
                           "--checkpoint.interval", "1"),
        reference=lambda: train(bench, "none", *common, "--checkpoint.no_enable"))
    lost = statistics.median(a - b for a, b in zip(row.ours, row.reference))
    row.note = f"lost time per save {lost * 1e3:.0f} ms; the state is 115 MB"
    yield row
    bench.end(process)


def row_restart(bench):
    """kill of one of 4 ranks to the end of the first new step, in parts"""
    process, server, _ = bench.start_ckptd("restart", "--memory.pool_bytes", "1GiB")
    parts = {name: [] for name in ("ranks ended", "pause", "mpirun", "init", "attempt", "load",
                                   "first step", "whole")}
    for number in range(1 if bench.quick else 3):
        for name, value in restart(bench, server, f"restart{number}").items():
            parts[name].append(value)
    for name, values in parts.items():
        yield Row(f"restart: {name}", "s", values, direction="lower")
    bench.end(process)


def restart(bench, server, run):
    folder, log = os.path.join(bench.tmp, run), os.path.join(bench.tmp, run + ".log")
    os.environ["HOLDFAST_BIN"] = bench.build
    command = ["deploy/launch", "--config", "deploy/main-job.toml", "--ranks", "4", "--server",
               server, "--backoff", "0", "--dir", folder, "--", "--job.run", run, *data(bench),
               "--training.steps", "8", "--checkpoint.interval", "2"]
    launcher = bench.start(command, log)
    wait_for(log, r"step:  3 ")
    with open(os.path.join(folder, "start-1/rank-3.pid")) as file:
        victim = int(file.read())
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    if launcher.wait(120) != 0:
        raise RuntimeError("the run did not end with 0")
    events = {tuple(line.split()[1:3]): float(line.split()[0])
              for line in open(os.path.join(folder, "events"))}
    at, init, attempt, load, _, first, lived = START.findall(open(log).read())[1]
    at = seconds_since_epoch(at)
    ended, began = events["ended", "1"], events["start", "2"]
    return {"ranks ended": ended - killed, "pause": began - ended,
            "mpirun": at - began - float(lived), "init": float(init), "attempt": float(attempt),
            "load": float(load), "first step": float(first), "whole": at - killed}


def wait_for(log, pattern):
    deadline = time.monotonic() + 120
    while not re.search(pattern, open(log).read()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no line with {pattern} in {log}")
        time.sleep(0.01)


def row_rate(bench):
    """GFLOP/s of whole training steps in fp32, beside the library's products of the same shapes"""
    model = MODEL
    os.environ["OMP_NUM_THREADS"] = "2"
    products = Program(bench.program("bench/products"), *(str(v) for v in model.values()), str(SEQ))
    per_layer = model["dim"] * (2 * model["dim"] + 2 * model["kv"] + 3 * model["hidden"])
    flop = 6 * SEQ * LEAVES * (model["layers"] * per_layer + model["dim"] * model["vocab"])
    options = ["--kernels.threads", "2", "--training.steps", "5", "--checkpoint.no_enable",
               "--training.mixed_precision_param", "float32"]

    def reference():
        answers = [products.ask("run") for _ in range(LEAVES)]
        return sum(a["flop"] for a in answers) / sum(a["seconds"] for a in answers) / 1e9

    row = bench.pairs("training / plain products", "GFLOP/s", pairs_max=12,
                      ours=lambda: flop / train(bench, "none", *options) / 1e9, reference=reference)
    tokens = statistics.median(row.ours) * 1e9 / flop * SEQ * LEAVES
    row.note = f"{tokens:.0f} tokens/s, fp32, one rank of two threads; linear layers only"
    yield row
    products.close()


def row_canonical(bench):
    """seconds of a step in the canonical order, beside the fast one: 2 ranks, S/d = 6"""
    options = ["--comm.ranks", "2", "--training.steps", "6", "--checkpoint.no_enable"]
    fast = [*options, "--training.reduction", "fast"]
    yield bench.pairs("step canonical / fast", "s", pairs_max=12, direction="lower",
                      ours=lambda: train(bench, "none", *options),
                      reference=lambda: train(bench, "none", *fast), note="bf16")
