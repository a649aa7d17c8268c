"""lib_drive - the back-end s3 in a separate process, controlled line by line: the driver in
build/tests/storage_bucket. Also the expected contents of its objects."""

import os
import struct
import subprocess
import threading

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
PROGRAM = os.path.join(BUILD, "tests/storage_bucket")
PART = 65536
FOREIGN = ("AWS_", "HOLDFAST_S3_", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY")


def environment(*others):
    """Our environment without variables that lead elsewhere, overlaid with others."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    for other in others:
        found.update(other)
    return found


def content(size, seed):
    """As drive_data() of the driver makes it."""
    mask, values = (1 << 64) - 1, []
    value = (seed * 0x9E3779B97F4A7C15 + 1) & mask
    for _ in range(size // 8):
        value = (value * 6364136223846793005 + 1442695040888963407) & mask
        values.append(value)
    return struct.pack(f"<{len(values)}Q", *values)


class Driver:
    """Small parts, short waits: as a test needs them."""

    def __init__(self, where, *environments, read_only=False, retry_s=20, stall_s=1):
        settings = {"HOLDFAST_S3_PART_BYTES": str(PART), "HOLDFAST_S3_RETRY_S": str(retry_s),
                    "HOLDFAST_S3_STALL_S": str(stall_s), "HOLDFAST_S3_CONNECTIONS": "4"}
        self.errors, self.listed = [], []
        self.process = subprocess.Popen(
            [PROGRAM, "drive", where, *(["read"] if read_only else [])], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(settings, *environments))
        self.reader = threading.Thread(target=self.keep_errors, daemon=True)
        self.reader.start()
        self.opened = self.answer()

    def keep_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def answer(self):
        """(word, text): "OK" or an error's name; the output of a list goes to self.listed."""
        line = self.process.stdout.readline()
        if line.startswith("listed"):
            self.listed = line.split()[1:]
            line = self.process.stdout.readline()
        word, _, text = line.strip().partition(" ")
        return word or "DIED", text

    def do(self, *words):
        try:
            self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return "DIED", f"{self.process.wait(10)} {''.join(self.errors)}"
        return self.answer()

    def good(self, *words):
        word, text = self.do(*words)
        assert word == "OK", (words, word, text, self.errors)
        return text

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        """Its exit code, and its output."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        code = self.process.wait(60)
        self.reader.join()
        self.process.stdout.close()
        return code, "".join(self.errors)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.kill()
        elif self.process.poll() is None:
            self.close()
