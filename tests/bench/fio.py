"""fio.py - the disk's own speed, by fio with io_uring, O_DIRECT and fixed buffers.

A write makes new files in the folder of the bench, on the same file system as the stores of its
ckptds, reserved first as ckptd reserves its own, and ends with fsync. It turns from file to file as
many writers do. A read reads whole files, one after the other as ckptd does, or, `randread`, in any
order. Compared with a load or a tool it reads the shards of the same checkpoint: the rate of a
virtual disk depends on the place (1.4 to 1.8 GB/s at the same time were seen of files written
minutes apart). O_DIRECT bypasses the page cache.

fio's clock runs from its first block until the fsync of the last file has returned (its rate is the
bytes over that time); making and reserving the files come before. Our figures include them.
"""
import glob
import json
import os

BLOCK, DEPTH = "1m", 32  # ckptd's defaults
# Its buffers in huge pages, as ckptd's are: 1 MiB of small ones takes more pieces than a virtio
# disk accepts in one request (254), which costs fio a fifth of its rate and a third of its CPU.
HUGE_PAGES = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"


def shards(store, run):
    """The files of the newest checkpoint of `run` that hold its tensors."""
    return sorted(glob.glob(os.path.join(max(glob.glob(os.path.join(store, run, "step-*"))),
                                         "shard-*")))


def new_files(bench, count):
    return [os.path.join(bench.tmp, f"fio.{i}") for i in range(count)]


def reading(paths, mode="read", block=BLOCK):
    """A job of fio's that reads these files from end to end."""
    return [f"--name={mode}", f"--rw={mode}", f"--bs={block}", f"--iodepth={DEPTH}",
            "--filename=" + ":".join(paths), f"--nrfiles={len(paths)}",
            *(["--file_service_type=sequential"] if mode == "read" else [])]


def writing(paths, mib, service="roundrobin"):
    """A job that writes `mib` MiB into these files."""
    return ["--name=write", "--rw=write", f"--bs={BLOCK}", f"--iodepth={DEPTH}",
            "--filename=" + ":".join(paths), f"--nrfiles={len(paths)}", f"--size={mib}m",
            f"--file_service_type={service}", "--end_fsync=1"]


def run_jobs(bench, jobs, read=(), written=()):
    """fio's result for each job. All run at once, each file once from end to end; those in
    `written` are created."""
    paths = [*read, *written]
    for path in written:
        if os.path.exists(path):
            os.unlink(path)
    os.sync()  # their removal is over before the clock starts
    output = bench.run("env", HUGE_PAGES, "fio", "--ioengine=io_uring", "--fixedbufs=1",
                       "--direct=1", "--fallocate=posix", "--output-format=json",
                       *(["--readonly"] if not written else []),
                       *(option for job in jobs for option in job))
    done = json.loads(output[output.index("{"):])["jobs"]
    files = sum(os.path.getsize(path) for path in paths)
    moved = sum(job[way]["io_bytes"] for job in done for way in ("read", "write"))
    # It omits a partial block at a file's end.
    if not files - len(paths) * 2**20 < moved <= files:
        raise RuntimeError(f"fio moved {moved} bytes of files of {files}")
    return done


def figures(job, direction):
    seconds = job["job_runtime"] / 1e3
    return {"rate": job[direction]["bw_bytes"], "seconds": seconds,
            "cpu": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds}


def fio_write(bench, mib, files=1):
    """One pass over `mib` MiB in `files` new files: {"rate": bytes/s, "cpu": s, "seconds": s}."""
    paths = new_files(bench, files)
    return figures(run_jobs(bench, [writing(paths, mib)], written=paths)[0], "write")


def fio_read(bench, paths, **options):
    """One pass over whole files: as fio_write."""
    return figures(run_jobs(bench, [reading(paths, **options)], read=paths)[0], "read")


def fio_copy(bench, read, write_mib, write_files):
    """Reads the files `read` and writes new ones at the same time, each at its own depth and one
    file after the other, as a tool does (in turns block by block fio reads a third slower beside
    its writes): {"seconds": until the later of the two has ended}."""
    written = new_files(bench, write_files)
    jobs = run_jobs(bench, [reading(read), writing(written, write_mib, "sequential")], read,
                    written)
    return {"seconds": max(job["job_runtime"] for job in jobs) / 1e3}
