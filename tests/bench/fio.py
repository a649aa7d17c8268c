"""fio.py - the disk's own speed, by fio with io_uring, O_DIRECT and fixed buffers.

The files lie in the folder of the bench, on the same file system as the stores of its ckptds. A
write makes new files, reserved first as ckptd reserves its own, and ends with fsync. A read reads
what an earlier write of as many files left, one after the other as ckptd does, or, `randread`, in
any order; a write turns from file to file as many writers do. O_DIRECT passes the page cache by.

fio's clock runs from its first block until the fsync of the last file has returned (its rate is the
bytes over that time); making and reserving the files come before. Ours includes them.
"""
import json
import os

BLOCK, DEPTH = "1m", 32  # ckptd's defaults
# Its buffers in huge pages, as ckptd's are: 1 MiB of small ones takes more pieces than a virtio
# disk accepts in one request (254), which costs fio a fifth of its rate and a third of its CPU.
HUGE_PAGES = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"


def fio(bench, mode, mib, files=1, block=BLOCK, depth=DEPTH, name="fio"):
    """One pass over `mib` MiB in `files` files: {"rate": bytes/s, "cpu": s, "seconds": s}."""
    paths = [os.path.join(bench.tmp, f"{name}.{i}") for i in range(files)]
    options = ["--name=x", "--filename=" + ":".join(paths), f"--rw={mode}", f"--bs={block}",
               f"--iodepth={depth}", f"--size={mib}m", f"--nrfiles={files}", "--ioengine=io_uring",
               "--fixedbufs=1", "--direct=1", "--fallocate=posix", "--output-format=json",
               "--file_service_type=" + ("sequential" if mode == "read" else "roundrobin")]
    if mode == "write":
        options += ["--end_fsync=1"]
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)
        os.sync()  # what removing them costs is over before the clock runs
    output = bench.run("env", HUGE_PAGES, "fio", *options)
    job = json.loads(output[output.index("{"):])["jobs"][0]
    seconds = job["job_runtime"] / 1e3
    return {"rate": job[mode.removeprefix("rand")]["bw_bytes"], "seconds": seconds,
            "cpu": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds}


def fio_copy(bench, read_mib, read_files, write_mib=0, write_files=0, name="read"):
    """Reads what an earlier write left under `name`, and if told writes new files at the same time,
    each at its own depth and one file after the other, as a tool does (in turns block by block fio
    reads a third slower beside its writes): {"seconds": until the later of the two has ended}."""
    reads = [os.path.join(bench.tmp, f"{name}.{i}") for i in range(read_files)]
    writes = [os.path.join(bench.tmp, f"{name}.copy.{i}") for i in range(write_files)]
    options = [f"--bs={BLOCK}", f"--iodepth={DEPTH}", "--ioengine=io_uring", "--fixedbufs=1",
               "--direct=1", "--fallocate=posix", "--output-format=json",
               "--file_service_type=sequential",
               "--name=r", "--rw=read", "--filename=" + ":".join(reads), f"--size={read_mib}m",
               f"--nrfiles={read_files}"]
    if writes:
        options += ["--name=w", "--rw=write", "--filename=" + ":".join(writes),
                    f"--size={write_mib}m", f"--nrfiles={write_files}", "--end_fsync=1"]
    for path in writes:
        if os.path.exists(path):
            os.unlink(path)
    os.sync()
    output = bench.run("env", HUGE_PAGES, "fio", *options)
    jobs = json.loads(output[output.index("{"):])["jobs"]
    return {"seconds": max(job["job_runtime"] for job in jobs) / 1e3}
