"""lib_terminal - a program's output on a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

CLEARED = "\r\x1b[K"  # a line is left empty
AT_WORK = ["is working"]  # ckptd does not say how far it is


def on_a_terminal(*command, columns=100):
    """The text that reaches a terminal on stderr; the exit code, and standard output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # as it was written
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    seen = b""
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE,
                          stderr=theirs) as tool:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            seen += part
        out = tool.stdout.read()
    os.close(ours)
    return seen.decode(), tool.returncode, out.decode()


def bar_is_wrong(command, shown, want, columns):
    """The error in the shown text, or None."""
    lines = [line.replace("\x1b[K", "") for line in re.split(r"[\r\n]", shown)]
    if max(map(len, lines)) >= columns:
        return "a line is as wide as the terminal"
    if want != AT_WORK and f"\r{command[0]} [" not in shown:
        return "there is no bar"
    if columns > 60 and not all(re.search(what, shown) for what in want):
        return f"it does not tell {want}"
    return None if shown.endswith(CLEARED) else "its line is not left empty"
