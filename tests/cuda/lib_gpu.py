"""lib_gpu - shared by gpu_check and gpu_bench: tokens of our own texts, a ckptd, nvidia-smi."""
import os
import shutil
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
TRAINER = os.environ.get("GPU_TRAINER", os.path.join(BUILD, "trainer"))
TEXTS = "README.md", "kernels/README.md", "kernels/cuda/README.md", "trainer/README.md", "LICENSE"
IN_BF16 = "--training.mixed_precision_param", "bfloat16"
NUMBERS = {"bf16": IN_BF16,
           "float8": (*IN_BF16, "--model.converters", "quantize.linear.float8")}
START_SECONDS = 60


def make_tokens(folder, times=1):
    """Our own texts, so many times over, with a vocabulary of 512; the path."""
    text, model, tokens = (os.path.join(folder, name) for name in ("text", "model", "tokens"))
    with open(text, "wb") as file:
        for name in TEXTS:
            with open(os.path.join(ROOT, name), "rb") as source:
                file.write(source.read() * times)
    tokenizer = os.path.join(BUILD, "tokenizer")
    for words in (("train", "--vocab", "512", "--out", model, text),
                  ("tokens", "--tokenizer", model, "--out", tokens, text)):
        subprocess.run([tokenizer, *words], check=True, capture_output=True)
    return tokens


def start_ckptd(folder, pool, segment):
    """On the socket `s` and the store `store` of the folder: (process, address)."""
    socket = os.path.join(folder, "s")
    process = subprocess.Popen(
        [os.path.join(BUILD, "ckptd"), "--listen", f"unix:{socket}", "--store",
         os.path.join(folder, "store"), "--memory.pool_bytes", str(pool),
         "--memory.segment_bytes", str(segment)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + START_SECONDS
    while not os.path.exists(socket) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process, f"unix:{socket}"


def smi(what):
    """nvidia-smi's answer about the first GPU; "" where it is missing, or does not know."""
    tool = shutil.which("nvidia-smi")
    done = tool and subprocess.run([tool, f"--query-gpu={what}", "--format=csv,noheader"],
                                   capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0] if done and done.returncode == 0 else ""
