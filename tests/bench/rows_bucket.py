"""rows_bucket.py - a bucket, compared with plain curl over as many connections, on a real S3
server.

The server is Ceph's RADOS gateway on this machine (tests/s3/lib_rgw.py), objects in its memory: it
takes the same processors as both sides, so a ratio says more than a rate. Ours sends from memory
and signs the SHA-256 of every part, which the server checks; curl sends files of the page cache, as
large as our parts, one PUT each, unsigned. It reads equally large ranges and discards them.
Prepared before the clock starts: the server, the data; for our side, which keeps running, the
connections. $BENCH_RESUME_MIB is the size of the state that is resumed.
"""
import json
import os
import resource
import shutil
import sys
import time

from measure import ROOT, Program, Row

sys.path.insert(0, os.path.join(ROOT, "tests", "s3"))

import lib_rgw  # noqa: E402

MIB = 1 << 20
PART, CONNECTIONS = 16 * MIB, 8
DRAIN_SECONDS = 600
GOAL = 0.95


class Bucket:
    """The gateway, and its clients."""

    def __init__(self, bench, memory=4 << 30):
        missing = lib_rgw.Gateway.missing()
        if missing:
            raise RuntimeError(missing)
        self.bench = bench
        self.gateway = lib_rgw.Gateway(os.path.join(bench.tmp, "rgw"), memory=memory)
        self.gateway.__enter__()
        bench.closing.append(self.close)
        self.environment = {**self.gateway.environment,
                            "HOLDFAST_S3_PART_BYTES": str(PART),
                            "HOLDFAST_S3_CONNECTIONS": str(CONNECTIONS)}
        os.environ.update(self.environment)

    def close(self):
        self.bench.closing.remove(self.close)
        for name in self.environment:
            os.environ.pop(name)
        self.gateway.stop()

    def url(self, key):
        return f"{self.gateway.endpoint}/{self.gateway.bucket}/{key}"

    def curl(self, lines, parallel=CONNECTIONS):
        """(seconds, CPU seconds) of one curl with that configuration."""
        path = os.path.join(self.bench.tmp, "curl.conf")
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        return run_timed(self.bench, "curl", "-s", "-S", "-f", "-Z", "--parallel-immediate",
                         "--parallel-max", str(parallel), "--aws-sigv4", "aws:amz:us-east-1:s3",
                         "--user", f"{self.gateway.access_key}:{self.gateway.secret_key}", "-H",
                         "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-K", path)


def run_timed(bench, *command):
    """(seconds, CPU seconds) of a command, from its start to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    bench.run(*command)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def transfer_size(bench):
    return (256 if bench.quick else 1024) * MIB


def beside(bench, name, size, ours, theirs, what, goal, note):
    """The rows of two ways to move `size` bytes, each of which gives (seconds, CPU seconds)."""
    cpu = [], []

    def rate(way, used):
        seconds, cpu_seconds = way()
        used.append(cpu_seconds / size * 1e9)
        return size / seconds / 1e9
    yield bench.pairs(name, "GB/s", lambda: rate(ours, cpu[0]), lambda: rate(theirs, cpu[1]),
                      goal=goal, note=note)
    yield Row(f"{name}_cpu", "CPU s/GB", *cpu, direction="lower", note=f"{note}; beside {what}")


def timed(program, command):
    answer = program.ask(f"{command} object")
    return answer["seconds"], answer["cpu"]


def row_bucket_put_and_get(bench):
    """one object into a bucket and out of it, beside curl with as many connections"""
    size, bucket = transfer_size(bench), Bucket(bench)
    program = Program(bench.program("bench/bucket"), f"s3://{bucket.gateway.bucket}/ours",
                      str(size // MIB))
    files = []
    for at in range(0, size, PART):
        files.append(os.path.join(bench.tmp, f"part-{at // PART}"))
        with open(files[-1], "wb") as file:
            file.write(os.urandom(PART))
    put = [line for i, file in enumerate(files)
           for line in (f'upload-file = "{file}"', f'url = "{bucket.url(f"curl/{i}")}"')]
    get = [line for i in range(len(files)) for line in (
        f'url = "{bucket.url("ours/object")}"', f'range = "{i * PART}-{(i + 1) * PART - 1}"',
        'output = "/dev/null"', "next")]
    for command, lines in (("put", put), ("get", each_with_options(bucket, get))):
        note = f"{size // MIB} MiB, parts of {PART // MIB} MiB, {CONNECTIONS} connections"
        yield from beside(bench, f"bucket_{command}", size, lambda: timed(program, command),
                          lambda: bucket.curl(lines), "curl", goal=GOAL, note=note)
    program.close()
    bucket.close()


def each_with_options(bucket, lines):
    """After "next" curl has forgotten every option."""
    again = ['aws-sigv4 = "aws:amz:us-east-1:s3"', "silent", "fail",
             f'user = "{bucket.gateway.access_key}:{bucket.gateway.secret_key}"',
             'header = "x-amz-content-sha256: UNSIGNED-PAYLOAD"']
    return [out for line in lines[:-1] for out in ([line] + (again if line == "next" else []))]


def row_bucket_aws(bench):
    """`ckpt-cli cp` of a checkpoint beside `aws s3 cp` of its files, both from start to end"""
    libraries = os.path.join(bench.tmp, "python")
    bench.run(sys.executable, "-m", "pip", "install", "-q", "--target", libraries, "awscli")
    mib, bucket = transfer_size(bench) // MIB, Bucket(bench)
    process, server, store = bench.start_ckptd("aws", "--memory.pool_bytes", f"{mib * 5 // 4}MiB",
                                               "--memory.segment_bytes", "32MiB")
    program = Program(bench.program("bench/ranks"), server, "aws", "2", str(mib), "rows")
    program.ask("save")
    program.close()
    bench.end(process)
    size = sum(os.path.getsize(os.path.join(folder, name))
               for folder, _, names in os.walk(os.path.join(store, "aws")) for name in names)
    config = os.path.join(bench.tmp, "aws.config")
    with open(config, "w") as file:
        file.write(f"[default]\ns3 =\n  max_concurrent_requests = {CONNECTIONS}\n"
                   f"  multipart_chunksize = {PART // MIB}MB\n")
    aws = ("env", f"PYTHONPATH={libraries}", f"AWS_CONFIG_FILE={config}", sys.executable,
           os.path.join(libraries, "bin", "aws"), "s3", "cp", "--recursive", "--only-show-errors")
    there = f"s3://{bucket.gateway.bucket}"
    back = [os.path.join(bench.tmp, name) for name in ("back", "back-aws")]
    rounds = {"put": 0, "get": 0}

    def ours(command):
        """Into a run of another name each time: existing objects are not sent."""
        rounds[command] += 1
        to = f"{there}/cp:r{rounds[command]}" if command == "put" else f"{back[0]}:aws"
        shutil.rmtree(back[0], ignore_errors=True)
        seconds, used = run_timed(bench, bench.program("ckpt-cli"), "cp", "--store",
                                  store if command == "put" else f"{there}/cp",
                                  "aws" if command == "put" else f"r{rounds['put']}", to)
        if command == "put" and rounds[command] > 1:
            bench.run(bench.program("ckpt-cli"), "rm", f"r{rounds[command] - 1}", "--yes",
                      "--store", f"{there}/cp")
        return seconds, used

    def theirs(command):
        shutil.rmtree(back[1], ignore_errors=True)
        return run_timed(bench, *aws, *((store, f"{there}/aws") if command == "put" else
                                        (f"{there}/aws", back[1])))

    for command in ("put", "get"):
        yield from beside(bench, f"bucket_{command}_aws", size, lambda: ours(command),
                          lambda: theirs(command), "aws s3 cp", goal=1,
                          note=f"{size // MIB} MiB in 2 shards, {CONNECTIONS} connections; ours "
                               "verifies each block and digest, and syncs what it gets")
    bucket.close()


def wait_for_drain(bench, server):
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        tier = json.loads(bench.run(bench.program("ckpt-cli"), "status", "--json", "--server",
                                    server))["tier"]
        if tier["now"] is None and tier["waiting"] == 0:
            return
        time.sleep(0.05)
    raise RuntimeError("the drain did not end")


def row_bucket_resume(bench):
    """a state out of the bucket alone, on an empty disk, beside curl reading the same objects"""
    mib = int(os.environ.get("BENCH_RESUME_MIB", "256" if bench.quick else "4096"))
    bucket = Bucket(bench, memory=(mib * 3 // 2 << 20) + (1 << 30))
    options = ("--memory.pool_bytes", f"{mib * 5 // 4}MiB", "--memory.segment_bytes", "32MiB",
               "--tier.store", f"s3://{bucket.gateway.bucket}/far", "--tier.quiet", "false",
               "--tier.rate", "0")
    process, server, store = bench.start_ckptd("resume", *options)
    ranks = (bench.program("bench/ranks"), server, "resume", "4", str(mib), "rows")
    program = Program(*ranks)
    program.ask("save")
    wait_for_drain(bench, server)
    bench.end(process)
    folder = next(os.path.join("resume", name) for name in
                  os.listdir(os.path.join(store, "resume")) if name.startswith("step-"))
    sizes = {name: os.path.getsize(os.path.join(store, folder, name))
             for name in os.listdir(os.path.join(store, folder)) if name.startswith("shard-")}
    lines = [line for name, size in sizes.items() for at in range(0, size, PART) for line in (
        f'url = "{bucket.url(f"far/{folder}/{name}")}"',
        f'range = "{at}-{min(at + PART, size) - 1}"', 'output = "/dev/null"', "next")]
    state = {"process": None}

    def ours():
        if state["process"] is not None:
            bench.end(state["process"])
        shutil.rmtree(store)
        state["process"] = bench.start_ckptd("resume", *options)[0]
        program.ask("forget")
        program.ask("wipe")
        answer = program.ask("load")
        if answer["bytes_memory"] or not program.ask("check")["equal"]:
            raise RuntimeError(f"from memory, or not what was saved: {answer}")
        return mib * MIB / answer["seconds"] / 1e9

    yield bench.pairs("bucket_resume", "GB/s", ours,
                      lambda: sum(sizes.values()) / bucket.curl(
                          each_with_options(bucket, lines))[0] / 1e9,
                      goal=round(1 / 1.15, 3), note=f"{mib} MiB, 4 shards, 4 ranks, from ckpt_load "
                      "to the state; nothing on the disk, nothing in memory")
    program.close()
    bucket.close()
