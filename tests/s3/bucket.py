#!/usr/bin/env python3
"""bucket - the back-end s3 against a strict server that can be looked into (lib_server.py).

Goal: uploads are taken up again, leases and the store's lock end by the server's clock, keys come
from every source and are renewed, listings of many pages are whole, a rate is kept, and no secret
is in a log, an error, an object or a core dump. Method: the driver (lib_drive.py) in processes of
its own, and the server's objects, uploads and log.
"""

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_tap  # noqa: E402
from lib_drive import PART, PROGRAM, Driver, content, environment  # noqa: E402
from lib_server import Fault, Server  # noqa: E402
from lib_store import wait_until  # noqa: E402

WHERE = "s3://checkpoints/p"
PARTS = 6
SIZE = PARTS * PART


def sent_parts(server):
    return [path for method, path, _ in server.log if method == "PUT" and "partNumber" in path]


def an_upload_that_was_killed_goes_on_with_the_parts_that_are_missing(_):
    server = Server("put")
    first = Driver(WHERE, server.environment)
    # The process dies when the 4th part is on its way.
    server.fault = Fault(4, "stall", match=lambda request: "partNumber" in request.path)
    server.stall_s = 1
    first.process.stdin.write(f"put run/x {SIZE} 3\n")
    first.process.stdin.flush()
    wait_until(lambda: server.fault.done > 0, "the 4th part")
    first.kill()
    server.settle()
    upload, = server.uploads.values()
    there = set(upload.parts)
    assert there and len(there) < PARTS, there
    victim = min(there)
    upload.parts[victim].etag = "0" * 32  # its content changed: this one is sent again
    server.fault, server.log = None, []
    with Driver(WHERE, server.environment) as second:
        second.good("put", "run/x", SIZE, 3)
        assert second.good("get", "run/x", 3) == f"{SIZE} same"
    again = {int(path.split("partNumber=")[1].split("&")[0]) for path in sent_parts(server)
             if "/run/x" in path}
    assert again == set(range(1, PARTS + 1)) - (there - {victim}), (again, there)
    assert not server.uploads and not server.bugs


def a_sum_that_the_writer_has_made_is_sent_and_none_is_made_again(_):
    server = Server("put")
    with Driver(WHERE, server.environment, retry_s=1) as driver:
        right = hashlib.sha256(content(PART, 3)).hexdigest()
        driver.good("hashed", "run/x", PART, 3, right)
        assert driver.good("get", "run/x", 3) == f"{PART} same"
        word, text = driver.do("hashed", "run/y", PART, 4, right)  # which the server refuses
        assert word == "ERR_UNAVAILABLE", (word, text)
        assert not any(key.endswith("run/y") for key in server.objects), server.objects


def uploads_are_listed_once_a_directory_and_anew_after_one_was_left(_):
    server = Server("put")
    with Driver(WHERE, server.environment) as driver:
        for name in ("a", "b", "c"):
            driver.good("put", f"run/{name}", SIZE, 3)
        assert sum("uploads=" in path for method, path, _ in server.log
                   if method == "GET") == 1, server.log
        server.fault = Fault(3, "412", match=lambda request: "partNumber" in request.path)
        assert driver.do("put", "run/x", SIZE, 3)[0] != "OK"
        server.fault = None
        upload, = server.uploads.values()
        there, server.log = len(upload.parts), []
        assert there > 0
        driver.good("put", "run/x", SIZE, 3)
        assert len(sent_parts(server)) == PARTS - there and not server.uploads, server.log


def uploads_that_nobody_ends_are_removed_when_they_are_old(_):
    server = Server("put")
    with Driver(WHERE, server.environment, {"HOLDFAST_S3_UPLOAD_IDLE_S": "100"}) as driver:
        server.fault = Fault(3, "412", match=lambda request: "partNumber" in request.path)
        assert driver.do("put", "run/x", SIZE, 3)[0] != "OK"
        assert len(server.uploads) == 1
        assert driver.good("sweep", "run", 50).split()[0] == "0", "it is young"
        server.clock_s += 150
        assert driver.good("sweep", "other", 50).split()[0] == "0", "it lies elsewhere"
        files, size = driver.good("sweep", "run", 50).split()
        assert files == "1" and int(size) > 0 and not server.uploads


def a_probe_that_was_killed_goes_at_a_later_opening(_):
    server = Server("put")
    server.fault = Fault(2, "stall", match=lambda request: ".holdfast.probe" in request.path)
    server.stall_s = 1
    first = subprocess.Popen([PROGRAM, "drive", WHERE], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, env=environment(server.environment))
    wait_until(lambda: server.fault.done > 0, "the probe")
    first.kill()
    first.communicate()
    server.settle()
    server.fault = None

    def probes():
        return [key for key in server.objects if ".holdfast.probe/" in key]
    assert len(probes()) == 1, server.objects
    Driver(WHERE, server.environment).close()
    assert len(probes()) == 1, "it may still be under way"
    server.clock_s += 3700
    Driver(WHERE, server.environment).close()
    assert not probes() and not server.bugs


def a_lease_ends_by_the_servers_clock_and_lives_while_it_is_renewed(_):
    server = Server("put")
    short = {"HOLDFAST_S3_LEASE_S": "3"}
    holder, other = (Driver(WHERE, server.environment, short) for _ in range(2))

    def puts():
        return sum(method == "PUT" and "run/leases/x" in path for method, path, _ in server.log)

    holder.good("hold", 0, "run/leases/x", "me")
    other.good("holder", "run/leases/x")
    wait_until(lambda: puts() >= 5, "renewals")  # two are a third of the time apart
    other.good("holder", "run/leases/x")  # it was renewed
    holder.good("hold", 1, "run/leases/y", "me")
    holder.kill()
    other.good("holder", "run/leases/y")
    server.clock_s += 5
    assert other.do("holder", "run/leases/y")[0] == "ERR_NOT_FOUND"
    assert other.do("fetch", "run/leases/y") == ("OK", "2 me")
    other.close()


def of_two_writers_one_has_the_lock_and_a_dead_one_is_followed(_):
    server = Server("put")
    short = {"HOLDFAST_S3_LEASE_S": "3"}
    first, second = (Driver(WHERE, server.environment, short) for _ in range(2))
    assert second.do("holder")[0] == "ERR_NOT_FOUND"
    first.good("lock")
    second.good("holder")
    word, text = second.do("lock")
    assert word == "ERR_BUSY" and f"process {first.process.pid}" in text, text
    first.good("publish", "a", "1")
    # The first one is disconnected for longer than its lease; the second takes over; the first,
    # reconnected, changes nothing more.
    os.kill(first.process.pid, 19)
    server.clock_s += 5
    second.good("lock")
    os.kill(first.process.pid, 18)
    wait_until(lambda: any("lock" in line for line in first.errors), "the loss of the lock")
    word, text = first.do("publish", "b", "1")
    assert word == "ERR_STALE", (word, text)
    assert first.do("remove", "a")[0] == "ERR_STALE"
    second.good("remove", "a")
    code, said = first.close()
    assert code == 0 and "lock" in said
    second.good("holder")  # the first one has not removed the second one's lock
    second.close()
    assert not [key for key in server.objects if ".holdfast.lock" in key], server.objects


def a_listing_of_many_pages_is_whole(_):
    server = Server("put")
    server.page = 7
    with Driver(WHERE, server.environment) as driver:
        for number in range(25):
            driver.good("publish", f"run/{number:03d}/manifest", "x")
        driver.good("publish", "run/file", "x")
        driver.good("list", "run")
        assert sorted(driver.listed) == [f"{number:03d}/" for number in range(25)] + ["file"]
        driver.good("list")
        assert driver.listed == ["run/"]


def one_large_write_is_sent_in_parallel_and_small_reads_are_put_together(_):
    server = Server("put")
    with Driver(WHERE, server.environment) as driver:
        server.delay_s, server.log = 0.2, []
        begin = time.monotonic()
        driver.good("send", "run/x", 8 * PART, 3)  # 8 parts over 4 connections: two at a time
        took = time.monotonic() - begin
        assert took < 0.2 * (4 + 2 + 8 - 3), f"{took:.2f} s"  # one after another: 12 and more
        server.delay_s, server.log = 0.02, []
        assert driver.good("get", "run/x", 3) == f"{8 * PART} same"
        gets = [entry for entry in server.log if entry[0] == "GET"]
        assert len(gets) <= 24, f"{len(gets)} requests for 32 reads"


def a_virtual_host_and_a_clock_that_is_wrong_are_no_trouble(_):
    server = Server("put")
    server.clock_s = 7200
    with Driver(WHERE, server.environment, {"HOLDFAST_S3_STYLE": "virtual"}) as driver:
        driver.good("publish", "a", "1")
        code, said = driver.close()
        assert "7200 s ahead" in said or "7199 s ahead" in said, said
    assert any(path.startswith("/p/a") for _, path, _ in server.log)


def a_server_where_several_win_a_race_is_refused_but_for_a_single_writer(_):
    for kind, what in (("racy", "completion"), ("racy_put", "PUT")):
        server = Server(kind)
        with Driver(WHERE, server.environment) as driver:
            assert driver.opened[0] == "ERR_DENIED" and "SINGLE_WRITER" in driver.opened[1]
            assert "4 of 4 writers that raced make one object" in driver.opened[1], driver.opened
            assert f"conditional {what} only works for one" in driver.opened[1], driver.opened
        assert not server.objects and not server.uploads, (server.objects, server.uploads)
        with Driver(WHERE, server.environment, {"HOLDFAST_S3_SINGLE_WRITER": "true"}) as driver:
            assert "that several win" in driver.good("describe")
            driver.good("publish", "a", "1")
            assert driver.do("publish", "a", "1")[0] == "ERR_EXISTS"


def where_several_win_with_puts_names_are_made_by_completions(_):
    server = Server("racy_both")
    with Driver(WHERE, server.environment) as driver:
        assert "conditional completion" in driver.good("describe")
        driver.good("publish", "a", "1")
    assert any(command == "POST" and path.startswith("/bucket/p/a?") or "/p/a?uploads" in path
               for command, path, _ in server.log), server.log


def a_server_with_neither_condition_is_refused_but_for_a_single_writer(_):
    server = Server("none")
    with Driver(WHERE, server.environment) as driver:
        assert driver.opened[0] == "ERR_DENIED" and "SINGLE_WRITER" in driver.opened[1]
    with Driver(WHERE, server.environment, read_only=True) as driver:
        assert driver.opened[0] == "OK"
    with Driver(WHERE, server.environment, {"HOLDFAST_S3_SINGLE_WRITER": "true"}) as driver:
        driver.good("publish", "a", "1")
        assert driver.do("publish", "a", "1")[0] == "ERR_EXISTS"


def what_was_not_answered_is_unsettled_until_it_is_read_back(_):
    server = Server("put")
    server.stall_s = 1.5
    with Driver(WHERE, server.environment, retry_s=1) as driver:
        server.fault = Fault(1, "drop", after=True, times=10**6,
                             match=lambda request: "/p/a" in request.path)
        word, text = driver.do("publish", "a", "1")
        assert word == "ERR_UNSETTLED" and "it is unknown whether" in text, (word, text)
        assert "p/a" in server.objects
        server.fault = Fault(1, "drop", after=True, times=10**6, match=lambda request:
                             "/p/b" in request.path and request.command == "PUT")
        driver.good("publish", "b", "1")  # the nonce is read back


def a_rate_is_kept(_):
    server = Server("put")
    with Driver(WHERE, server.environment, {"HOLDFAST_S3_RATE": str(8 * PART)}) as driver:
        begin = time.monotonic()
        driver.good("send", "run/x", 8 * PART, 3)
        took = time.monotonic() - begin
        assert 0.8 < took < 6, f"{took:.2f} s for what a second is meant for"


# ---- keys ----

def without(settings, *names):
    return {name: value for name, value in settings.items() if name not in names}


def keys_come_from_a_file_a_token_or_an_instance_and_are_renewed(_):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        server = Server("put")
        bare = without(server.environment, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        bare["HOME"] = folder
        with Driver(WHERE, bare) as driver:
            assert driver.opened[0] == "ERR_DENIED", driver.opened
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="utf-8") as file:
            file.write("[default]\naws_access_key_id = no\naws_secret_access_key = no\n# x\n"
                       "[mine]\n aws_access_key_id=AKTEST\naws_secret_access_key = "
                       "secret-of-the-tests\n")
        with Driver(WHERE, bare, {"AWS_SHARED_CREDENTIALS_FILE": path,
                                  "AWS_PROFILE": "mine"}) as driver:
            assert "from file" in driver.good("describe")
        token = os.path.join(folder, "token")
        with open(token, "w", encoding="utf-8") as file:
            file.write("a.web/token\n")
        server.web_token = "a.web/token"
        web = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/x", "AWS_WEB_IDENTITY_TOKEN_FILE": token,
               "AWS_ENDPOINT_URL_STS": server.endpoint}
        with Driver(WHERE, bare, web) as driver:
            assert "from web_identity" in driver.good("describe")
            driver.good("publish", "web", "1")
            server.give_keys()  # the driver's are no longer known: it asks for others
            driver.good("publish", "web2", "1")
        server.web_token, server.instance_role = None, "the-role"
        instance = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.endpoint}
        before = server.given
        server.lifetime_s = 60  # less than the time before their end when they are renewed
        with Driver(WHERE, bare, instance) as driver:
            assert "from instance" in driver.good("describe")
            driver.good("publish", "instance", "1")
            assert server.given - before >= 2, "they were about to end and were not renewed"
        assert not server.bugs


def no_secret_is_in_a_log_an_error_an_object_or_a_core_dump(_):
    server = Server("put")
    secret = "S3cr3tOfTheTestsWhichNobodyMaySee"
    server.keys["AKTEST"] = (secret, None)
    keys = {**server.environment, "AWS_SECRET_ACCESS_KEY": secret}
    with Driver(WHERE, keys) as driver:
        driver.good("publish", "a", "1")
        driver.good("send", "run/x", SIZE, 3)
        server.keys["AKTEST"] = ("another", None)
        said = [driver.do("publish", "b", "1"), driver.do("get", "run/x", 3)]
        assert all(word == "ERR_DENIED" for word, _ in said), said
        with open(f"/proc/{driver.process.pid}/environ", "rb") as file:
            assert secret.encode() not in file.read(), "it is in the environment of the process"
        server.keys["AKTEST"] = (secret, None)
        code, log = driver.close()
    assert secret not in log + str(said)
    for found in server.objects.values():
        assert secret.encode() not in found.data and secret not in str(found.meta)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        core = dump(folder, keys)
        assert b"SIGABRT" in core or len(core) > 100000
        assert b"holdfast" in core, "this dump shows nothing"
        assert secret.encode() not in core, "the secret key is in the core dump"


def dump(folder, keys):
    """The kernel's message about a driver that aborts, or that the runtime may not start: then a
    skip."""
    with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
        pattern = file.read().strip()
    if pattern.startswith("|") or "/" in pattern:
        raise lib_tap.Skip(f"core dumps go to {pattern}")
    process = subprocess.Popen(
        [PROGRAM, "drive", WHERE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=folder, env=environment(keys), preexec_fn=lambda:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2))
    process.communicate(b"publish core 1\nabort\n")
    cores = [name for name in os.listdir(folder) if name.startswith("core")]
    if not cores:
        raise lib_tap.Skip("the kernel writes no core dump here")
    with open(os.path.join(folder, cores[0]), "rb") as file:
        return file.read()


TESTS = [
    an_upload_that_was_killed_goes_on_with_the_parts_that_are_missing,
    a_sum_that_the_writer_has_made_is_sent_and_none_is_made_again,
    uploads_are_listed_once_a_directory_and_anew_after_one_was_left,
    uploads_that_nobody_ends_are_removed_when_they_are_old,
    a_probe_that_was_killed_goes_at_a_later_opening,
    a_lease_ends_by_the_servers_clock_and_lives_while_it_is_renewed,
    of_two_writers_one_has_the_lock_and_a_dead_one_is_followed,
    a_listing_of_many_pages_is_whole,
    one_large_write_is_sent_in_parallel_and_small_reads_are_put_together,
    a_virtual_host_and_a_clock_that_is_wrong_are_no_trouble,
    a_server_where_several_win_a_race_is_refused_but_for_a_single_writer,
    where_several_win_with_puts_names_are_made_by_completions,
    a_server_with_neither_condition_is_refused_but_for_a_single_writer,
    what_was_not_answered_is_unsettled_until_it_is_read_back,
    a_rate_is_kept,
    keys_come_from_a_file_a_token_or_an_instance_and_are_renewed,
    no_secret_is_in_a_log_an_error_an_object_or_a_core_dump,
]

if __name__ == "__main__":
    sys.exit(0 if lib_tap.run(TESTS, None) else 1)
