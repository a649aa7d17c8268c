#!/usr/bin/env python3
"""flood_tcp - the floods of check_flood.py, over the network.

Goal: a client floods the TCP socket of the calls or that of the bulk plane, before or after the
handshake. ckptd neither grows nor spends more than a tenth of a core on it. The flood stops no
save, and blocks no client of another address. Method: a real ckptd on loopback; the flood comes
from a separate address. Before the handshake: connections that end at once, and the first message
of a handshake again and again, without its end. After it, with a reader's certificate: the frames
of lib_flood over TLS that check_flood.py does not make, and whole messages, which cost most to
decrypt: calls without an end, calls that are cancelled at once and those with long metadata.
Further: requests for missing objects on a bulk connection with a ticket, and greetings alone, from
several addresses, on every available connection.
"""

import os
import socket
import ssl
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need_programs("openssl")
lib_tap.need("grpc")
import lib_flood  # noqa: E402
from lib_flood import (CONNECTIONS, Attack, drain, greet, send_half_calls,  # noqa: E402
                       send_long_metadata, send_resets, send_whole_messages, under)
from lib_network import Network  # noqa: E402
from lib_store import PATIENCE, is_sanitized  # noqa: E402
from lib_tap import end, test  # noqa: E402

OTHER = "127.0.0.2"  # where the flood comes from
SESSIONS = 64
PLACES = SESSIONS + 64
GROWTH, MESSAGES_GROWTH = 48, 176  # MiB; as in check_flood.py
HELLO, REQUEST = "<4sI16s", "<4sIIIQQQQIIQ"  # proto/bulk/wire.h
BULK_STREAMS, SENT_AT_ONCE = 16, 64
lib_flood.FIRST_SECONDS = 2  # with as many handshakes before the saved-up budget is spent
NAMED_SECONDS = 5  # or the log does not say it again
PAUSE = 3  # until the flood after may connect, with 40 handshakes


def reach(address, source=OTHER):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE, (source, 0))


def only_connect(address):
    count, until = 0, time.monotonic() + lib_flood.SECONDS
    while time.monotonic() < until:
        try:
            reach(address).close()
            count += 1
        except OSError:
            pass
    return count


def first_message(protocol):
    """Of a handshake, as a client sends it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([protocol])
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake with nobody is over")


def begin_handshakes(address, protocol):
    """Each makes the server compute and sign; the client computes nothing."""
    hello, count, until = first_message(protocol), 0, time.monotonic() + lib_flood.SECONDS
    while time.monotonic() < until:
        try:
            with reach(address) as connection:
                connection.sendall(hello)
                connection.settimeout(1)
                count += connection.recv(1) != b""
        except OSError:
            pass
    return count


def over_tls(world, name, address, protocol):
    """A function that connects, as check_flood.py connects to the unix socket."""
    context = world.context(name, ssl.TLSVersion.TLSv1_3)
    context.set_alpn_protocols([protocol])
    return lambda source=OTHER: context.wrap_socket(reach(address, source),
                                                    server_hostname=address.split(":")[0])


def only_greet(connect):
    """One identity, of so many addresses that none of them has too many handshakes."""
    silent = [greet(lambda at=i: connect(f"127.0.0.{3 + at // CONNECTIONS}"))
              for i in range(PLACES)]
    time.sleep(lib_flood.SECONDS)
    return len(silent)


def ask_in_vain(connect, ticket):
    """Requests for a part that is not there, many at once, on some bulk connections."""
    streams, count = [], 0
    for _ in range(BULK_STREAMS):
        stream = connect()
        stream.sendall(struct.pack(HELLO, b"BLK1", 0, ticket))
        stream.setblocking(False)
        streams.append(stream)
    asked = struct.pack(REQUEST, b"BLK1", 1, 99, 0, 0, 1, 0, 0, 0, 0, 0) * SENT_AT_ONCE
    until = time.monotonic() + lib_flood.SECONDS
    while time.monotonic() < until:
        for stream in streams:
            drain(stream)
            try:
                count += stream.send(asked)
            except OSError:
                pass
    return count // (len(asked) // SENT_AT_ONCE)


def attacks_on(world):
    with world.channel("reader") as channel:
        request = b"\x12" + bytes([len(world.run)]) + world.run.encode() + b"\x18\x01"
        ticket = channel.unary_unary("/holdfast.v1.Checkpoint/OpenBulk")(
            request, timeout=PATIENCE)[2:18]
    calls = over_tls(world, "reader", world.address, "h2")
    bulk = over_tls(world, "reader", world.bulk, "holdfast-bulk/1")
    return (("connects", only_connect, world.address),
            ("connects to the bulk plane", only_connect, world.bulk),
            ("handshakes", lambda to: begin_handshakes(to, "h2"), world.address),
            ("handshakes of the bulk plane",
             lambda to: begin_handshakes(to, "holdfast-bulk/1"), world.bulk),
            ("whole messages", send_whole_messages, calls),
            ("half calls", send_half_calls, calls),
            ("resets", send_resets, calls), ("long metadata", send_long_metadata, calls),
            ("bulk requests", lambda to: ask_in_vain(to, ticket), bulk))


def floods(world):
    step = 1
    for name, action, where in attacks_on(world):
        growth, well, said, step = under(world, name, action, where, step)
        print(f"# {name}: {growth} MiB more; {said}")
        bound = MESSAGES_GROWTH if "messages" in name else GROWTH
        test(f"{name}: ckptd grows by at most {bound} MiB", growth <= bound or is_sanitized(),
             growth)
        test(f"{name}: an operator is served and saves go on", well is True and said != "it failed",
             (well, said, world.log()[-900:]))
        time.sleep(PAUSE)


def silent(world):
    flood = Attack(only_greet, over_tls(world, "reader", world.address, "h2"))
    came = []
    while flood.runs():
        came.append(world.ask("anna", "list"))
    said = flood.end()
    test("connections that greet and say nothing keep no operator out", said == PLACES and came and
         all(code == 0 for code, _ in came), (said, came))
    test("who took all places is named in the log",
         "closed a connection of holdfast://reader" in world.log(), world.log()[-900:])


def elsewhere(world):
    lib_flood.SECONDS = 3600
    flood = Attack(lambda to: begin_handshakes(to, "h2"), world.address)
    said, until = f"{OTHER} has used up what one user may cost", time.monotonic() + NAMED_SECONDS
    before = world.log().count(said)  # of a flood before, too
    while world.log().count(said) == before and time.monotonic() < until:
        time.sleep(0.1)
    test("the address is named in the log", said in world.log(), world.log()[-900:])
    came = [world.ask("anna", "list") for _ in range(3)]
    test("an operator from elsewhere comes in meanwhile", flood.runs() and
         all(code == 0 for code, _ in came), came)
    flood.process.kill()
    flood.process.join()


def opened():
    world = Network()
    for folder in (os.path.dirname(world.folder), world.folder):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
    return world


def begin(world, *words):
    world.serve("--limits.sessions", str(SESSIONS), *words)
    world.issue("anna", "holdfast://operator/anna")
    world.issue("reader", "holdfast://reader")
    world.save([1])


def main():
    world = opened()
    try:
        begin(world)
        floods(world)
        silent(world)
        elsewhere(world)
        world.stop()
    finally:
        world.close()
    end()


main()
