#!/usr/bin/env python3
"""page - ckptd's status page and the report of a run in Chromium.

Goal: both are drawn at 1400 and 400 px, and the document is never wider than the window: a table or
a chart that is wider scrolls in its own block. Alarms are above all tables. Method: two nodes, of
which one is lost, and a run of the real trainer; headless Chromium lays each page out in a frame of
that width, where a script measures it, and takes a screenshot of it. The pages themselves have no
scripts.
"""

import html
import json
import os
import re
import struct
import subprocess
import urllib.request
import zlib

from lib_nodes import Cluster, free_port, scratch
from lib_store import PATIENCE, comes
from lib_tap import end, need_programs, test
from lib_train import command, make_tokens, prose

need_programs("chromium", "openssl")
HOST = "127.0.0.1"
WIDTHS = 1400, 400
HEIGHT = 2400
LINES_MIN = 100  # different lines of a picture that is not blank

FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe id="f" style="border:0" width="{width}" height="{height}" srcdoc="{page}"></iframe>
<pre id="measured"></pre>
<script>
document.getElementById("f").onload = function () {{
  const inner = this.contentDocument, root = inner.documentElement;
  const top = (one) => one ? one.getBoundingClientRect().top : null;
  const wide = [...inner.querySelectorAll("body *")].filter(
    (one) => one.getBoundingClientRect().right > root.clientWidth + 1 &&
             !one.closest("div.wide, div:has(> table)"));
  document.getElementById("measured").textContent = JSON.stringify({{
    has: root.clientWidth, takes: root.scrollWidth, height: root.scrollHeight,
    wide: wide.map((one) => one.outerHTML.slice(0, 80)),
    alarms: top(inner.querySelector(".alarms")), table: top(inner.querySelector("table")),
    tables: inner.querySelectorAll("table").length,
    charts: inner.querySelectorAll("svg").length}});
}};
</script>
"""


class Browser:
    def __init__(self, folder):
        self.folder = folder

    def run(self, *words):
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", f"--user-data-dir={self.folder}/profile", *words],
            capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def frame(self, text, width):
        path = os.path.join(self.folder, "frame.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FRAME.format(width=width, height=HEIGHT, page=html.escape(text)))
        return "file://" + path

    def measured(self, text, width):
        dom = self.run("--dump-dom", self.frame(text, width))
        return json.loads(html.unescape(re.search('<pre id="measured">(.*?)</pre>', dom)[1]))

    def drawn(self, text, width):
        """The lines of a screenshot."""
        picture = os.path.join(self.folder, "picture.png")
        self.run(f"--screenshot={picture}", f"--window-size={max(width, 500)},{HEIGHT}",
                 self.frame(text, width))
        with open(picture, "rb") as file:
            return lines_of(file.read())


def lines_of(png):
    """As they are filtered: equal lines may differ, but those of a blank picture hardly do."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, across = 8, b"", struct.unpack(">I", png[16:20])[0]
    depth, colour = png[24:26]
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    size = across * {2: 3, 6: 4}[colour] * depth // 8 + 1
    lines = zlib.decompress(data)
    return {lines[i:i + size] for i in range(0, len(lines), size)}


def is_laid_out(browser, name, text):
    """Returns what was measured at the smallest width."""
    for width in WIDTHS:
        found, lines = browser.measured(text, width), browser.drawn(text, width)
        test(f"{name} at {width} px is drawn", len(lines) > LINES_MIN, len(lines))
        test(f"and no wider than {width} px", found["has"] == found["takes"] == width and
             not found["wide"], found)
    return found


def status_page(browser, one, port):
    with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = is_laid_out(browser, "the status page", text)
    test("alarms come first, before every table", found["alarms"] is not None and
         found["alarms"] < found["table"] and found["tables"] >= 4 and
         text.index('class="alarms"') < text.index("<table"), (found, one.status()["alarms"]))


def report_page(browser, one, name, metrics):
    path = os.path.join(browser.folder, "report.html")
    code, out, said = one.cli("report", name, *one.where, "--metrics", metrics, "--output", path)
    assert code == 0, (code, out, said)
    with open(path, encoding="utf-8") as file:
        found = is_laid_out(browser, "the report of a run", file.read())
    test("with its tables and curves", found["tables"] >= 1 and found["charts"] >= 3, found)


def main():
    with scratch("pg-") as folder:
        cluster, port = Cluster(folder, ("a", "b")), free_port(HOST)
        one, two = cluster.nodes
        browser, metrics = Browser(folder), os.path.join(folder, "metrics.jsonl")
        make_tokens(folder, prose())
        try:
            one.spawn("--http.listen", f"{HOST}:{port}", "--nodes.look_ms", "200",
                      "--nodes.silent_ms", "1000", "--nodes.lost_ms", "1000")
            two.spawn()
            for node in cluster.nodes:
                node.wait_until_it_answers()
            one.wait_until_it_reaches(two)
            done = subprocess.run(
                command(folder, one.server, "a-run-of-a-long-name-for-the-tables-of-the-page",
                        "--training.steps", 8, "--checkpoint.interval", 2,
                        "--metrics.jsonl_file", metrics),
                capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stderr
            two.kill()
            assert comes(lambda: any("is lost" in alarm for alarm in one.status()["alarms"]))
            status_page(browser, one, port)
            report_page(browser, one, "a-run-of-a-long-name-for-the-tables-of-the-page", metrics)
        finally:
            cluster.close()
    end()


main()
