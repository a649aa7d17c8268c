#!/usr/bin/env python3
"""flood - allowed clients that misbehave.

Goal: an allowed user cannot end ckptd or make it grow past the limits that deploy/ckptd.conf
documents for clients, cannot keep an operator out, and cannot stop or slow the saves of others:
ckptd spends less than a tenth of a core on such a client, and names it in the log. Method: a real
ckptd that another user may use, and that user's processes (this user's where root is missing),
which write HTTP/2 frames by hand: pings whose answers they never read, on many connections.
Messages of almost 4 MiB whose end never comes; greetings without a request on every available
connection. Others cost ckptd work: pings and calls whose answers they read, whole messages of
almost 4 MiB, connections that are opened and closed. ckptd's resident memory and its time on the
processors are read meanwhile.
"""

import os
import shutil
import subprocess
import time

from lib_flood import (SECONDS, USER, Attack, greet, only_connect, send_calls,
                       send_endless_messages, send_read_pings, send_unread_pings,
                       send_whole_messages, under)
from lib_store import CLI, World, is_sanitized
from lib_tap import end, test

GROWTH = 176  # MiB: deploy/ckptd.conf, limits.request_bytes
PING_GROWTH = 48  # of it those of connections, and some of gRPC's
SESSIONS = 64
PLACES = SESSIONS + 64
BUDGET_SECONDS = 1.5  # after which a refused user may connect again


def only_greet(path):
    silent = [greet(path) for _ in range(PLACES)]
    time.sleep(SECONDS)
    return len(silent)


def tool_of(path):
    """A ckpt-cli that another user may run, wherever the build directory is."""
    return os.path.join(os.path.dirname(path), "ckpt-cli")


def ask_once(path):
    return subprocess.run([tool_of(path), "list", "--server", "unix:" + path], capture_output=True,
                          timeout=60).returncode


ATTACKS = (("pings", send_unread_pings, PING_GROWTH), ("messages", send_endless_messages, GROWTH),
           ("greetings", only_greet, PING_GROWTH), ("read pings", send_read_pings, PING_GROWTH),
           ("calls", send_calls, PING_GROWTH), ("whole messages", send_whole_messages, GROWTH),
           ("connects", only_connect, PING_GROWTH))


def main():
    world = World()
    for folder in (os.path.dirname(world.folder), world.folder):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
    world.launch("--access.uids", str(USER), "--limits.sessions", str(SESSIONS))
    world.save([1])
    step = 1
    for name, action, bound in ATTACKS:
        growth, well, said, step = under(world, name, action, world.server[5:], step)
        print(f"# {name}: {growth} MiB more; {said}")
        test(f"{name}: ckptd grows by at most {bound} MiB", growth <= bound or is_sanitized(),
             growth)
        test(f"{name}: an operator is served and saves go on", well is True,
             (well, world.log()[-900:]))
    time.sleep(BUDGET_SECONDS)
    shutil.copy(CLI, tool_of(world.server[5:]))
    later = Attack(ask_once, world.server[5:])
    said = later.end()
    test("a user who flooded is served again, and is named in the log", said == 0 and
         "has used up what one user may cost" in world.log(), (said, world.log()[-900:]))
    test("who took all places is named in the log", "closed a connection of user" in world.log(),
         world.log()[-900:])
    world.stop()
    world.close()
    end()


main()
