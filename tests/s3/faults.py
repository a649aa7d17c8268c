#!/usr/bin/env python3
"""faults - every request to a bucket fails in every way: before or after it had its effect.

Goal: no acknowledged object is lost, no torn one is visible, none is orphaned for ever, and a
request that fails once is tried again. Method: one story (open with its probe, publish, upload,
read, list, remove) against the strict server (lib_server.py), once for each of its requests, each
fault, before and after. Then the test checks the server's objects. On each kind of server: one that
honours If-None-Match on PUT, and one that honours it on the completion of an upload.

The requests of a story are those of its undisturbed run; of several of a kind in a row one is
disturbed. make test makes one in STORIES_APART of the stories: SEED= repeats which, SAMPLE=1 makes
all. With TORTURE=1 each request is disturbed, and the fault also comes twice and three times.
"""

import concurrent.futures
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_tap  # noqa: E402
from lib_sample import sample  # noqa: E402
from lib_drive import PART, Driver, content  # noqa: E402
from lib_server import FAULTS, Fault, Server  # noqa: E402

SIZE = 3 * PART + 4096
TEXT = "a-manifest-of-the-tests"
HAVE_NO_EFFECT = ("longer", "shorter", "truncated", "damaged", "stale")  # before = after
TORTURE = bool(os.environ.get("TORTURE"))
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
STORIES_APART = 5
TRASH_APART = 37  # of its stories
# Faults that a client can neither notice nor repair: the answer says that there is such an object,
# or it is another listing. The result may be an error then, but never a false success.
MAY_FAIL = ("412", "stale")


def story(kind, fault):
    """The results: {step: (word, text)}, the server, and the number of requests."""
    server = Server(kind)
    server.fault, server.stall_s = fault, 2.5
    happened = {}
    with Driver("s3://checkpoints/p", server.environment) as driver:
        happened["open"] = driver.opened
        if driver.opened[0] == "OK":
            happened["publish"] = driver.do("publish", "run/marker", TEXT)
            happened["send"] = driver.do("send", "run/shard", SIZE, 5)
            happened["get"] = driver.do("get", "run/shard", 5)
            happened["fetch"] = driver.do("fetch", "run/marker")
            happened["list"] = driver.do("list", "run")
            happened["listed"] = ("OK", driver.listed)
            happened["again"] = driver.do("publish", "run/marker", TEXT)
            happened["remove"] = driver.do("remove", "run/marker")
            happened["sweep"] = driver.do("sweep", "run", 0)
    count = len(server.log)
    server.close()
    return happened, server, count


STEP = "step-00000001-a0001"
SHARDS = [f"p/run/{STEP}/shard-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
LISTED, TRASHED = f"p/run/{STEP}/manifest.json", f"p/run/trash/{STEP}.1000/manifest.json"


def trash_story(kind, fault):
    """A checkpoint is put into the trash, restored, put in again, and emptied; another one is
    removed from its place. The observable state after each step is recorded, too."""
    server = Server(kind)
    server.stall_s = 2.5
    happened, seen = {}, []
    with Driver("s3://checkpoints/p", server.environment) as driver:
        happened["open"] = driver.opened

        driver.good("trash", "make")
        first = len(server.log)
        server.fault = fault
        for name, what in (("put", "put"), ("take", "take"), ("put again", "put"),
                           ("empty", "empty"), ("made again", None), ("erase", "erase")):
            if what:
                happened[name] = driver.do("trash", what)
            elif not any(key in server.objects for key in (*SHARDS, LISTED, TRASHED)):
                held, server.fault = server.fault, None
                driver.good("trash", "make")
                server.fault = held
            with server.lock:
                seen.append((name, frozenset(server.objects)))
    log = server.log[first:]
    server.close()
    return happened, server, log, seen


def trash_violations(happened, server, fault, seen):
    found = list(server.bugs)
    want = {"put": {TRASHED}, "take": {LISTED}, "put again": {TRASHED}, "empty": set(),
            "erase": set()}
    is_mended = fault is None or fault.what not in MAY_FAIL
    # What comes damaged twice in a row is refused; the next steps do not find what it left behind.
    is_often_damaged = fault is not None and fault.what == "damaged" and fault.times > 1
    may_be = ["OK"]
    for name, (word, text) in happened.items():
        if is_often_damaged and word == "ERR_CORRUPT":
            may_be = ["OK", "ERR_CORRUPT", "ERR_NOT_FOUND"]
        if is_mended and word not in may_be:
            found.append(f"{name} failed: {word} {text}")
    is_straight = True  # after a failed step the next ones meet its remains
    for name, keys in seen:
        manifests = {key for key in keys if key.endswith("/manifest.json")}
        is_straight = is_straight and happened.get(name, ("OK",))[0] == "OK"
        if manifests and not keys.issuperset(SHARDS):
            found.append(f"behind {name} {manifests} lacks a shard")
        if keys.intersection(SHARDS) and not manifests and f"p/run/tombstones/{STEP}" not in keys:
            found.append(f"behind {name} no manifest names the shards")
        if not is_straight or name not in want:
            continue
        if manifests != want[name] or (not want[name] and keys.intersection(SHARDS)):
            found.append(f"behind {name}, told as done: {sorted(keys)}")
        if is_mended and any("/tombstones/" in key or "/leases/" in key for key in keys):
            found.append(f"behind {name} is left: {sorted(keys)}")
    return found


def try_trash(kind, case):
    what, after, number, times = case
    fault = Fault(number, what, after, times, lambda request: request.command != "HEAD"
                  or what not in HAVE_NO_EFFECT)
    happened, server, log, seen = trash_story(kind, fault)
    where = log[number - 1][:2] if number <= len(log) else "-"
    return [f"request {number} {where} {what} {'after' if after else 'before'} x{times}: {one}"
            for one in trash_violations(happened, server, fault, seen)]


def violations(happened, server, fault):
    """States that must never occur."""
    found = list(server.bugs)
    told = happened.get

    def is_good(step):
        return told(step, ("", ""))[0] == "OK"

    data, shard = content(SIZE, 5), server.objects.get("p/run/shard")
    marker = server.objects.get("p/run/marker")
    is_mended = fault is None or fault.what not in MAY_FAIL
    if any(word == "DIED" for word, _ in happened.values()):
        found.append(f"the program died: {happened}")
    # A text that comes damaged twice in a row is refused.
    may_fail = "fetch" if fault is not None and fault.what == "damaged" and fault.times > 1 else ""
    if is_mended:
        found += [f"{step} failed: {word} {text}" for step, (word, text) in happened.items()
                  if word != "OK" and step not in ("again", may_fail)]
    if told("fetch", ("", ""))[0] not in ("OK", "ERR_CORRUPT") and may_fail:
        found.append(f"another error than damage: {told('fetch')}")
        if told("again") and told("again")[0] != "ERR_EXISTS":
            found.append(f"a second publication: {told('again')}")
    if shard is not None and shard.data != data:
        found.append("a torn object is visible")
    if is_good("send") and shard is None:
        found.append("an acknowledged object is lost")
    if told("again") and told("again")[0] == "OK" and is_good("publish"):
        found.append("two publications of one key succeeded")
    if is_good("publish") and not is_good("remove") and marker is None and is_mended:
        found.append("an acknowledged publication is lost")
    if is_good("publish") and told("fetch")[0] == "ERR_NOT_FOUND":
        found.append("an acknowledged publication is not found")
    if is_good("fetch") and told("fetch")[1] != f"{len(TEXT)} {TEXT}":
        found.append("another text was fetched")
    is_told = fault is not None and fault.what == "damaged"  # by the checksums of the caller
    if is_good("get") and told("get")[1] != f"{SIZE} same" and not is_told:
        found.append(f"other bytes were read: {told('get')[1]}")
    if is_good("list") and fault is None and sorted(told("listed")[1]) != ["marker", "shard"]:
        found.append(f"the listing is wrong: {told('listed')[1]}")
    if is_good("remove") and marker is not None:
        found.append("what was removed is there")
    if is_good("sweep") and any(upload.key.startswith("p/run/")
                                for upload in server.uploads.values()):
        found.append("an upload is orphaned")
    return found


def shape(request):
    """The kind of a request: its method, and the names of its parameters."""
    method, path, _ = request
    return method, re.sub(r"=[^&]*", "", path.partition("?")[2])


def numbers(log, is_changing):
    """Of the requests to disturb; in torture all, else one of several of a kind in a row."""
    for number, request in enumerate(log, 1):
        is_same = number > 1 and shape(request) == shape(log[number - 2])
        if TORTURE or not (is_same or (is_changing and request[0] in ("GET", "HEAD"))):
            yield number


def cases(log, is_changing):
    for what in FAULTS:
        for after in ((False,) if what in HAVE_NO_EFFECT else (False, True)):
            for number in numbers(log, is_changing):
                for times in (1, 2, 3) if TORTURE else (1,):
                    yield what, after, number, times


def try_one(kind, case):
    what, after, number, times = case
    fault = Fault(number, what, after, times, lambda request: request.command != "HEAD"
                  or what not in HAVE_NO_EFFECT)
    happened, server, _ = story(kind, fault)
    found = violations(happened, server, fault)
    where = server.log[number - 1][:2] if number <= len(server.log) else "-"
    return [f"request {number} {where} {what} {'after' if after else 'before'} x{times}: {one}"
            for one in found]


def matrix(kind, is_changing=False):
    """`is_changing`: only the requests that change something."""
    happened, server, count = story(kind, None)
    bad = violations(happened, server, None)
    all_cases = sample(cases(server.log, is_changing), STORIES_APART, SEED)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # most of them wait
        for found in pool.map(lambda case: try_one(kind, case), all_cases):
            bad += found
    print(f"# SEED={SEED}; {kind}: {count} requests, {len(all_cases)} stories")
    assert not bad, "\n".join(bad[:40])


def where_put_is_conditional_nothing_is_lost_torn_or_orphaned(_):
    matrix("put")


def where_completion_is_conditional_nothing_is_lost_torn_or_orphaned(_):
    matrix("complete", is_changing=True)


def what_goes_into_the_trash_and_out_of_it_is_whole(_):
    happened, server, log, seen = trash_story("put", None)
    bad = trash_violations(happened, server, None, seen)
    # No server says of a request without a condition that its condition does not hold.
    all_cases = [case for case in cases(log, False)
                 if case[0] != "412" or log[case[2] - 1][0] in ("PUT", "POST")]
    print(f"# SEED={SEED}; the trash: {len(log)} requests, {len(all_cases)} stories")
    refused = [case for case in all_cases if case[0] == "412"]  # requests that may fail
    others = [case for case in all_cases if case[0] != "412"]
    all_cases = sample(refused, STORIES_APART, SEED) + sample(others, TRASH_APART, SEED)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for found in pool.map(lambda case: try_trash("put", case), all_cases):
            bad += found
    assert not bad, f"{len(bad)}:\n" + "\n".join(bad[:40])


TESTS = [what_goes_into_the_trash_and_out_of_it_is_whole,
         where_put_is_conditional_nothing_is_lost_torn_or_orphaned,
         where_completion_is_conditional_nothing_is_lost_torn_or_orphaned]

if __name__ == "__main__":
    sys.exit(0 if lib_tap.run(TESTS, None) else 1)
