#!/usr/bin/env python3
"""check_cross - libckpt of another kind of machine saves through a ckptd of this one.

Goal: `make client CROSS=` builds libckpt with a cross compiler. A program with the shared library
and one with the archive save and load through ckptd, a program of this machine loads the same
bytes, and the other way around. Method: the example runs under qemu, on this machine's ckptd and
shared memory. Skipped where the compiler, qemu or the libraries are missing.

    CROSS=aarch64-linux-gnu SYSROOT=    the compiler's prefix; where the libraries' usr/lib is
"""
import os
import shutil
import subprocess
import sys

from lib_store import BUILD, World
from lib_tap import end, need_programs, test

CROSS = os.environ.get("CROSS") or "aarch64-linux-gnu"
SYSROOT = os.environ.get("SYSROOT", "")
OUT = f"build/{CROSS}"
QEMU = f"qemu-{CROSS.split('-')[0]}-static"

need_programs(f"{CROSS}-gcc", f"{CROSS}-g++", QEMU)
if not os.path.exists(f"{SYSROOT}/usr/lib/{CROSS}/pkgconfig/libprotobuf-c.pc"):
    print(f"libprotobuf-c for {CROSS} is missing in {SYSROOT or '/'} (SYSROOT= names a root)")
    sys.exit(77)


def foreign(program):
    return [QEMU, "-L", SYSROOT or "/", "-E", f"LD_LIBRARY_PATH={OUT}", program]


def goes_on(name, world, command, step):
    """The example loads `step` (0: there is none) and saves three more."""
    done = subprocess.run([*command, world.server], capture_output=True, text=True, timeout=300)
    loaded = done.stdout.count(f"loaded step {step}, saved by 2 ranks")
    saved = done.stdout.count(f"step {step + 3} is durable, weights[0] = {step + 3}")
    test(name, done.returncode == 0 and loaded == (2 if step > 0 else 0) and saved == 2,
         done.stdout + done.stderr)


made = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"BUILD={OUT}", f"CROSS={CROSS}",
                       f"SYSROOT={SYSROOT}", "client"], capture_output=True, text=True)
test("libckpt is built for the other machine", made.returncode == 0, made.stdout + made.stderr)
shared = f"{OUT}/ckpt_example_shared"
sysroot = [f"--sysroot={SYSROOT}"] if SYSROOT else []
linked = subprocess.run([f"{CROSS}-gcc", *sysroot, "-Iclients", "clients/examples/ckpt_example.c",
                         "-o", shared, "-pthread", f"-L{OUT}", "-l:libckpt.so.1",
                         "-Wl,--allow-shlib-undefined"], capture_output=True, text=True)
test("a program is linked with the shared library", linked.returncode == 0, linked.stderr)
world = World()
try:
    world.launch()
    native = [os.path.join(BUILD, "ckpt_example")]
    goes_on("a program with the shared library saves", world, foreign(shared), 0)
    goes_on("a program of this machine loads that", world, native, 3)
    goes_on("a program with the archive loads what that one saved", world,
            foreign(f"{OUT}/ckpt_example"), 6)
    world.stop()
    bad = world.all_verify()
    test("every block of the checkpoints is proven", not bad, bad)
finally:
    shutil.rmtree(world.folder, ignore_errors=True)
end()
