#!/usr/bin/env python3
"""web - ckptd's HTTP page: its contents, its clients, and its protection against strangers.

Goal: /metrics is the text of metrics.file, with all numbers of Status and their types; /readyz is
200 or says why the next save would fail, /status is the JSON of Status, / is a page of it in which
names are escaped. Only GET and HEAD; an address other than loopback needs http.public; silent
connections are bounded and delay nothing. Method: a real ckptd and http.client.
tests/unit/ckptd_http_server.c tests a service thread that hangs.
"""

import http.client
import json
import os
import re
import socket

from lib_nodes import Cluster, free_port, scratch
from lib_store import World, comes, comes_to, make_tier
from lib_tap import end, need_programs, test

need_programs("openssl")
HOST = "127.0.0.1"
CONNECTIONS = 16  # web.c: of one address


class Page:
    def __init__(self, port):
        self.port = port

    def ask(self, path, method="GET", body=None):
        """The code, the text and the headers."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=20)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()


def names(text):
    return set(re.findall(r"^(holdfast_[^ ]+) ", text, re.M))


def places(value, place=""):
    """Of all numbers and lists of a status, but those within lists: a_b_c."""
    if isinstance(value, dict):
        return {one for key, inner in value.items() for one in places(inner, f"{place}_{key}")}
    return {place[1:]} if isinstance(value, (int, float, list)) else set()


RENAMED = {"disk_bytes_total": "disk_bytes", "disk_inodes_total": "disk_inodes"}
NO_METRIC = {"uid", "nodes_members", "nodes_runs", "drains", "tier_io"}
PART = re.compile("(_seconds)_(bucket|buckets|sum|count)($|_.*)")  # of a histogram


def is_complete(text, status):
    """Every number of Status is there once, with a type that its name fits, and with help."""
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    helps = re.findall(r"^# HELP (\w+) \S.*\.$", text, re.M)
    lines = [PART.sub(r"\1", re.split("[{ ]", line)[0]) for line in text.splitlines()
             if line[0] != "#"]
    stems = {re.sub("^holdfast_|_total$", "", name) for name in types}
    wanted = {RENAMED.get(place, PART.sub(r"\1", place.removeprefix("since_start_")))
              for place in places(status) - NO_METRIC if not place.startswith("tier_now")}
    test("every number of Status is exported", wanted <= stems, wanted - stems)
    test("with a type, a line of help, and _total for counters alone",
         set(lines) == set(helps) == set(types) and len(helps) == len(types) and
         {name for name in types if types[name] == "counter"} ==
         {name for name in types if name.endswith("_total")} and
         types["holdfast_commits_total"] == "counter" and
         types["holdfast_start_time_seconds"] == "gauge" and
         f'holdfast_build_info{{version="{status["version"]}"}} 1\n' in text, text)


def says(world, page, numbers):
    code, text, headers = page.ask("/metrics")

    def written():
        with open(numbers) as file:
            return names(file.read())
    test("/metrics has the lines of metrics.file, and is made when it is asked for",
         code == 200 and
         comes_to(lambda: names(page.ask("/metrics")[1]) == written(), True) and
         headers["Content-Type"].startswith("text/plain; version=0.0.4") and
         f'holdfast_run_newest_step{{run="{world.run}"}} 1\n' in text, text)
    code, text, _ = page.ask("/status")
    mine = world.status()
    test("/status is the JSON of Status", code == 200 and json.loads(text).keys() == mine.keys())
    is_complete(page.ask("/metrics")[1], mine)
    code, text, headers = page.ask("/")
    test("/ is a page of the run and its newest checkpoint, which loads nothing",
         code == 200 and f'<tr><td>{world.run}</td><td class="n">1</td>' in text and
         "<td>local 1, far 1</td>" in text and "No alarm" in text and
         "default-src 'none'" in headers["Content-Security-Policy"] and
         not re.search("<script|src=|href=[^/]*//", text) and len(text) < 8192, text)
    test("names on it are escaped", "/&lt;b&gt;store," in text and "<b>" not in text, text)


def refuses(world, page):
    """Full limits, and other forms of requests."""
    test("a ckptd that can save is ready", page.ask("/readyz")[:2] == (200, "ok\n"))
    saved, _ = world.try_save(2)
    comes_to(lambda: page.ask("/readyz")[0], 503)  # an answer serves for 200 ms
    code, text, _ = page.ask("/readyz")
    test("one whose next save would fail is not ready and says why, and is healthy",
         not saved and code == 503 and "holds 1 checkpoints already" in text and
         page.ask("/healthz")[:2] == (200, "ok\n"), (saved, code, text))
    posted = page.ask("/metrics", "POST", "x" * 100000)
    test("other methods than GET and HEAD are refused", posted[0] == 405 and
         posted[2]["Allow"] == "GET, HEAD" and page.ask("/status", "DELETE")[0] == 405, posted)
    code, text, headers = page.ask("/metrics", "HEAD")
    test("HEAD is GET without the text", code == 200 and text == "" and
         int(headers["Content-Length"]) > 1000)
    test("there is nothing else", page.ask("/etc/passwd")[0] == 404 and
         page.ask("/metrics?a=b")[0] == 200 and page.ask("/" + "a" * 20000)[0] in (414, 431))


def is_bounded(world, page):
    silent = [socket.create_connection((HOST, page.port)) for _ in range(CONNECTIONS)]
    try:
        refused = False
        try:
            page.ask("/healthz")
        except (ConnectionError, http.client.HTTPException):
            refused = True
        test("connections of one address are bounded, and ckptd serves its clients meanwhile",
             refused and world.cli("status", *world.where)[0] == 0)
    finally:
        for one in silent:
            one.close()

    def is_served():
        try:
            return page.ask("/healthz")[0]
        except (ConnectionError, http.client.HTTPException):
            return None
    test("when they end the next is served", comes_to(is_served, 200))


def cells(text, section):
    """Of the rows of a section: by the titles of its columns."""
    table = re.search(f"<h2>{section}</h2>(.*?)</table>", text, re.S)[1]
    heads, *rows = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row)
                    for row in re.findall("<tr>(.*?)</tr>", table, re.S)]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def names_nodes(folder):
    cluster, port = Cluster(folder, ("a", "b")), free_port(HOST)
    one, two = cluster.nodes
    try:
        one.spawn("--http.listen", f"{HOST}:{port}", "--nodes.look_ms", "200")
        two.spawn()
        for node in cluster.nodes:
            node.wait_until_it_answers()
        one.wait_until_it_reaches(two)
        one.save([1])

        def shown():
            text = Page(port).ask("/")[1]
            (run,), (peer,) = cells(text, "Runs"), cells(text, "Other nodes")
            return (run["by tier"] == "local 1, n2 1" and peer["out per second"].endswith("iB") and
                    peer["version"] == one.status()["version"] and peer["clock ahead"] == "0 s" and
                    peer["left for saves"].endswith("iB"))
        test("the page shows checkpoints by tier, and of another node version, room and rates",
             comes(shown), Page(port).ask("/")[1])
        text, numbers = Page(port).ask("/")[1], Page(port).ask("/metrics")[1]
        test("it names its own node", "<h1>ckptd of node n1</h1>" in text, text)
        test("the clock of another node is exported",
             re.search(r'^holdfast_node_clock_ahead_seconds{node="n2"} -?\d\S*$', numbers, re.M),
             numbers)
    finally:
        cluster.close()


def main():
    world = World()
    world.store = os.path.join(world.folder, "<b>store")
    numbers, port = os.path.join(world.folder, "numbers"), free_port(HOST)
    page, far = Page(port), os.path.join(world.folder, "far")
    make_tier(world.folder, far)
    try:
        world.launch("--limits.checkpoints", "1", "--limits.look_ms", "20", "--metrics.file",
                     numbers, "--metrics.every_ms", "100", "--http.listen", f"{HOST}:{port}",
                     "--tier.store", f"dir:{far}")
        world.save([1])
        test("the way into the far tier is counted", comes(
            lambda: 'drain_seconds_count{tier="far"} 1\n' in page.ask("/metrics")[1]))
        says(world, page, numbers)
        refuses(world, page)
        is_bounded(world, page)
        world.stop()
    finally:
        world.close()
    with scratch("wb-") as folder:
        names_nodes(folder)
    end()


main()
