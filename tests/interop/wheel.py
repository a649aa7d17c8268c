#!/usr/bin/env python3
"""wheel - the wheel of `make python`, installed without a compiler and without libckpt.

Goal: the wheel runs the first example of the README; the wheel contains libckpt's libraries except
glibc; its tag says manylinux. An install from source without a compiler names the missing
requirement. Method: a new venv that sees nothing of the system's packages, a PATH with only its own
programs, a real ckptd. The example is the README's, unchanged except for the address.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "../integration"))
from lib_store import BUILD, World  # noqa: E402
from lib_tap import Skip, run  # noqa: E402

PACKAGE = os.path.join(ROOT, "clients/python")
WHEEL_VENV = os.environ.get("WHEEL_VENV", os.path.join(ROOT, "build/wheel-venv"))
BEFORE = "import numpy\nstep, w, b = 1000, numpy.arange(512.0).reshape(256, 2), numpy.ones(3)\n"
AFTER = """
assert rows.shape == (128, 2) and rows[127, 1] == 255, rows
assert "torch" not in __import__("sys").modules
print("LIBRARIES", *{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line})
"""
# Libraries that every Linux of the tag has (PEP 600); the wheel contains all others that libckpt
# loads.
SYSTEM = ("libc", "libm", "libdl", "librt", "libpthread", "ld-linux", "libgcc_s", "libstdc++",
          "libresolv", "libz", "libutil", "libnss", "libexpat", "libffi")  # the last: of ctypes


def the_wheel():
    found = glob.glob(os.path.join(BUILD, "wheel", "holdfast-*.whl"))
    if not found:
        raise Skip("no wheel: make python")
    return found[0]


def example(server):
    with open(os.path.join(PACKAGE, "README.md")) as file:
        text = re.search(r"```python\n(.*?)```", file.read(), re.S)[1]
    assert "unix:/run/holdfast/ckptd.sock" in text and len(text.splitlines()) < 12, text
    return BEFORE + text.replace("unix:/run/holdfast/ckptd.sock", server) + AFTER


def the_wheel_runs_the_first_example_without_a_compiler(world):
    venv = os.path.join(world.folder, "venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([os.path.join(venv, "bin/pip"), "install", "-q", "--disable-pip-version-check",
                    "--no-index", "--find-links", os.path.join(WHEEL_VENV, "wheels"),
                    "--only-binary=:all:", the_wheel()], check=True)
    path = os.path.join(venv, "bin")
    assert shutil.which("gcc", path=path) is None and shutil.which("make", path=path) is None
    done = subprocess.run([os.path.join(path, "python"), "-c", example(world.server)],
                          env={"PATH": path, "HOLDFAST_SERVER": world.server}, cwd=world.folder,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split("LIBRARIES", 1)[1].split()
    ours = [name for name in loaded if "holdfast" in name[len(venv):]]
    assert any("libckpt" in name for name in ours) and any("grpc" in name for name in ours), loaded
    others = [name for name in loaded if not name.startswith(venv)
              and "/python3" not in name and "libpython" not in name]
    strange = [name for name in others if not os.path.basename(name).startswith(SYSTEM)]
    assert not strange, f"from the system: {strange}"


def the_wheel_serves_a_store_and_has_the_tools(world):
    """With only the libraries of the system that the tag promises; a signal reaches ckptd
    itself."""
    venv = os.path.join(world.folder, "venv")
    python, store = os.path.join(venv, "bin/python"), os.path.join(world.folder, "served")
    server = f"unix:{world.folder}/wheel.sock"
    os.mkdir(store)
    served = subprocess.Popen([python, "-m", "holdfast", "serve", "--listen", server, "--store",
                               store, "--memory.pool_bytes", "64MiB",
                               "--memory.segment_bytes", "4MiB"], env={"PATH": "/nowhere"})
    try:
        done = subprocess.run([python, "-c", example(server)], cwd=world.folder,
                              env={"PATH": "/nowhere", "HOLDFAST_SERVER": server},
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tools = [python, "-m", "holdfast", "cli"]
        listed = subprocess.run([*tools, "verify", "--all", "--store", store],
                                env={"PATH": "/nowhere"}, capture_output=True, text=True)
        assert listed.returncode == 0 and "whole" in listed.stdout, listed
    finally:
        served.terminate()
    assert served.wait(30) == 0
    licences = os.listdir(glob.glob(os.path.join(
        venv, "lib/python3*/site-packages/holdfast/_native/licenses"))[0])
    assert {"holdfast", "libprotobuf-c1"} <= set(licences) and any(
        name.startswith("libgrpc") for name in licences), licences
    assert os.path.getsize(the_wheel()) < 60 << 20


def the_tag_says_manylinux(world):
    name = os.path.basename(the_wheel())
    assert re.match(r"holdfast-[\d.]+-py3-none-manylinux_2_\d+_x86_64", name), name


def an_install_from_source_says_what_it_needs(world):
    source = os.path.join(world.folder, "source")
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("_native", "*.egg-info"))
    done = subprocess.run([os.path.join(WHEEL_VENV, "bin/python"), "-m", "pip", "wheel", "-q",
                           "--no-build-isolation", "--no-deps", "-w", world.folder, source],
                          env={"PATH": os.path.join(WHEEL_VENV, "bin")}, capture_output=True,
                          text=True)
    assert done.returncode != 0, done.stdout
    assert "a C compiler" in done.stderr and "deploy/deps build" in done.stderr, done.stderr


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "64MiB")
    passed = run([the_wheel_runs_the_first_example_without_a_compiler,
                  the_wheel_serves_a_store_and_has_the_tools, the_tag_says_manylinux,
                  an_install_from_source_says_what_it_needs], bed)
    bed.close()
    sys.exit(not passed)
