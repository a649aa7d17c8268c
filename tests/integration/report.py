#!/usr/bin/env python3
"""report - the history of a run on one page.

Goal: page and JSON have the data of metrics.jsonl_file and the checkpoints, each step once, from
the branch that lasts. When data is missing, damaged or of another run, there is a report that says
so. Method: a tiny run of the real trainer of two attempts on two meshes, the first of which loses
steps. The page is read by Python's parser, and its curves are measured by the labels of their axes.
"""

import html.parser
import json
import os
import re
import shutil
import subprocess

from lib_program import BUILD
from lib_store import World, change
from lib_tap import end, test
from lib_train import command, make_tokens, prose

VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """Tables as lists of rows, paths and texts of charts, and all that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.bad, self.tables, self.charts = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.bad += [(tag, name) for name in attrs if name in ("src", "href") or name[:2] == "on"]
        self.bad += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "svg":
            self.charts.append([])
        if "svg" in self.open:
            self.charts[-1].append((tag, attrs, []))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.bad.append("/" + tag)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif "svg" in self.open and self.charts[-1]:
            self.charts[-1][-1][2].append(data)

    def is_whole(self):
        return not self.open and not self.bad

    def measured(self, number):
        """{step: value} of the first curve of a chart, by its axes' labels."""
        chart = self.charts[number]
        labels = [[(float(attrs[key]), float(text[0])) for _, attrs, text in chart
                   if attrs.get("class") == kind] for kind, key in (("step", "x"), ("level", "y"))]
        (path,) = [attrs["d"] for _, attrs, _ in chart if attrs.get("class") == "curve c0"]
        points = [[float(part) for part in pair.split()]
                  for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", path)]

        def scaled(at, marks, shift):
            (a, low), (b, high) = marks[0], marks[-1]
            return low + (at - shift - a) * (high - low) / (b - a)

        return {round(scaled(x, labels[0], 0)): scaled(y, labels[1], -4) for x, y in points}


class Run:
    """Of two attempts, and its files."""

    def __init__(self, world):
        self.world, self.lines = world, world.folder + "/lines.jsonl"
        self.page = world.folder + "/page.html"

    def train(self, *options):
        done = subprocess.run(
            command(self.world.folder, self.world.server, "r", "--training.steps", 12,
                    "--lr_scheduler.total_steps", 12, "--checkpoint.interval", 5,
                    "--metrics.jsonl_file", self.lines, *options),
            capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    def report(self, *options, where=None, code=0, run="r"):
        """The document, and the page."""
        got, out, said = self.world.cli("report", run, *(where or self.world.where), "--json",
                                        "--output", self.page, "--force", *options)
        assert got == code, (got, out, said)
        with open(self.page, encoding="utf-8") as file:
            return json.loads(out), Page(file.read())

    def made(self):
        """{step: its line} as the branch that lasts has it: the last line of each."""
        with open(self.lines, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return {line["step"]: line for line in lines if "grad_norm" in line}


def told(run):
    document, page = run.report("--metrics", run.lines)
    made = run.made()
    wrong = [name for name in ("loss", "grad_norm", "lr")
             if dict(zip(document["curves"][name]["steps"], document["curves"][name]["values"])) !=
             {step: line[name] for step, line in made.items()}]
    test("each step is once in the curves, with the file's numbers of the branch that lasts",
         sorted(made) == list(range(1, 13)) and not wrong, (wrong, document["curves"], made))
    rates = document["curves"]["tokens_per_second"]
    pairs = [(made[step - 1], line) for step, line in made.items()
             if made.get(step - 1, {}).get("attempt") == line["attempt"]]
    wanted = {line["step"]: (line["tokens"] - before["tokens"]) / (line["time"] - before["time"])
              for before, line in pairs if line["time"] > before["time"]}
    test("the rate of a step is that of its tokens since the step before of the same start",
         dict(zip(rates["steps"], rates["values"])) == wanted and 4 <= len(wanted) <= 10,
         (rates, wanted))
    test("it has a chart", set(page.measured(3)) == set(wanted), (page.measured(3), wanted))
    far = []
    for number, name in enumerate(("loss", "grad_norm", "lr")):
        drawn, values = page.measured(number), [line[name] for line in made.values()]
        reach = 0.01 * (max(values) - min(values))
        far += [(name, step, drawn.get(step), line[name]) for step, line in made.items()
                if abs(drawn.get(step, 1e9) - line[name]) > reach]
    test("and is drawn where its number belongs by the axes", not far, far)
    test("the page is whole HTML without scripts or links", page.is_whole(),
         (page.bad, page.open))
    starts = [[start.get(name) for name in ("attempt", "step", "from_attempt", "ranks",
                                            "lost_steps", "hosts")] for start in document["starts"]]
    test("starts have from where they went on, on how many ranks and hosts, and what was lost",
         starts == [[1, 0, None, 2, 0, 1], [2, 5, 1, 1, 3, 1]] and
         [start["mesh"]["dp_shard"] for start in document["starts"]] == [2, 1], document["starts"])
    table = page.tables[1]
    test("and so has their table", [row[:3] + row[4:] for row in table[1:]] ==
         [["1", "0", "-", "dp_shard 2", "2", "1", "0"], ["2", "5", "1", "one rank", "1", "1", "3"]],
         table)
    marks = [text for tag, attrs, text in page.charts[0] if tag == "title"]
    test("the second is marked in the curve", marks == [["attempt 2 went on from step 5"]], marks)
    head = document["head"]
    test("the head has the newest checkpoint, steps, tokens, attempts", head["newest"] == "r@12-a2"
         and head["steps"] == 12 and head["attempts"] == 2 and
         head["tokens"] == made[12]["tokens"] and head["begin"] <= head["time"], head)
    return document, page


def compared(run, document):
    found = {entry["what"]: (entry.get("first"), entry.get("second"))
             for change in document["changes"] for entry in change["settings"]}
    code, out, said = run.world.cli("diff", "r@5-a1", "r@12-a2", "--settings", "--json",
                                    *run.world.where)
    same = {entry["what"]: (entry.get("first"), entry.get("second"))
            for entry in json.loads(out)["settings"]}
    test("what changed between the attempts is what diff --settings finds",
         code == 1 and found == same and found["mesh.dp_shard"] == (2, 1), (found, same, said))
    rows = document["checkpoints"]
    listed = run.world.listed(*run.world.where)
    test("checkpoints are those of list, with what their saves measured",
         [{name: row.get(name) for name in old} for row, old in zip(rows, listed)] == listed and
         rows[0]["loss"] == run.made()[12]["loss"] and rows[0]["save_wait_seconds"] > 0 and
         rows[0]["durable_seconds"] > 0, (rows, listed))
    lineage = document["lineage"]
    test("the lineage is that of show", lineage["ancestors_complete"] and
         [(one["step"], one["attempt"]) for one in lineage["ancestors"]] == [(5, 1)], lineage)
    there, _ = run.report("--metrics", run.lines, where=("--store", run.world.store))
    for row in rows + there["checkpoints"]:
        for name in ("in_memory", "durable_seconds", "tiers"):
            row.pop(name, None)
    test("from the directory it is the same", there == document, (there, document))


def missing(run):
    document, page = run.report()
    made = run.made()
    loss = document["curves"].pop("loss")
    test("without --metrics the loss is the newest checkpoint's, to the bit",
         dict(zip(loss["steps"], loss["values"])) ==
         {step: line["loss"] for step, line in made.items()} and not document["curves"] and
         "Without --metrics" in document["notes"][0] and page.is_whole(), document)
    with open(run.lines, "r+", encoding="utf-8") as file:
        text = file.read()
        file.write('nonsense\n{"attempt": 2, "start_step": 0, "run": "x"}\n'
                   '{"attempt": 2, "step": 3, "loss": 77}\n'
                   '{"attempt": 2, "start_step": 0}\n{"attempt": 2, "step": 3, "loss": 78}\n' +
                   text[:text.index("\n", 3) - 5])
    notes = "\n".join(run.report("--metrics", run.lines)[0]["notes"])
    test("a cut last line, what is no JSON, and lines of another run are told", all(
        text in notes for text in ("last line, which is incomplete", "1 line that is not JSON.",
                                   "4 lines of other runs.")), notes)
    with open(run.lines, "w", encoding="utf-8") as file:
        file.write("")
    document, _ = run.report("--metrics", run.lines)
    test("an empty file leaves the newest checkpoint's curve", len(
        document["curves"]["loss"]["steps"]) == 12 and "has no step" in document["notes"][-1],
         document["notes"])


def damaged(run):
    world, copy = run.world, run.world.folder + "/copy"
    world.copy_store(copy)
    change(os.path.join(copy, "r/step-00000005-a0001/manifest.json"), 5000)
    document, page = run.report(where=("--store", copy), code=1)
    test("of a damaged checkpoint is told that it is, and the rest, with code 1",
         page.is_whole() and [row.get("flaw") for row in document["checkpoints"]] ==
         [None, None, "damaged"] and len(document["starts"]) == 1 and
         "r@5-a1" in document["notes"][0], document)
    for name in ("step-00000010-a0002", "step-00000012-a0002"):
        change(os.path.join(copy, "r", name, "manifest.json"), 5000)
    document, page = run.report(where=("--store", copy), code=1)
    test("a run whose checkpoints are all damaged has a page", page.is_whole() and
         "no checkpoint that can be read" in document["notes"][-1], document)
    shutil.rmtree(copy)
    world.save((1,))
    (other,) = {one["run"] for one in world.listed()} - {"r"}
    document, page = run.report(run=other)
    test("so has one checkpoint of another program, without losses", page.is_whole() and
         not document["curves"] and len(document["checkpoints"]) == 1, document)


def refused(run):
    world, where = run.world, run.world.where
    code, out, said = world.cli("report", "r", *where, "--output", run.page)
    test("a file that exists stays", code == 74 and "exists already" in said and "--force" in said,
         said)
    code, out, said = world.cli("report", "r", *where, "--output", run.page, "--force")
    test("unless --force says otherwise", code == 0 and "3 checkpoints" in out and
         out.endswith("local\n") and not os.path.exists(run.page + ".part"), out + said)
    same = subprocess.run([os.path.join(BUILD, "trainer"), "--report", "r", *where, "--json"],
                          capture_output=True, text=True, timeout=60)
    test("trainer --report gives the same", same.returncode == 0 and
         json.loads(same.stdout) == json.loads(world.cli("report", "r", *where, "--json")[1]),
         same.stderr)
    place = os.path.join(world.folder, "reports")
    os.mkdir(place)
    words = [os.path.join(BUILD, "trainer"), "--report", "r", *where]
    first, again = (subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60)
                    for _ in range(2))
    test("without --output the page is RUN.html in the current directory, and is not replaced",
         first.returncode == 0 and "written to r.html" in first.stdout and
         again.returncode == 74 and "exists already" in again.stderr and
         os.listdir(place) == ["r.html"], (first, again))
    code, _, said = world.cli("report", "r", *where, "--json", "--metrics", run.page + "x")
    test("metrics that are not there are an error", code == 66 and run.page in said, said)


def broken(run):
    world = run.world
    done = subprocess.run(
        command(world.folder, world.server, "b", "--training.steps", 4, "--training.nonfinite",
                "skip", "--debug.nonfinite_at_step", 3), capture_output=True, text=True,
        timeout=300)
    assert done.returncode == 0, done.stderr
    document, page = run.report(run="b")
    (step,) = document["broken"]
    reason = step.pop("reason")
    test("a step that was skipped is in the report, with its samples, policy and reason",
         step.pop("loss") > 0 and step == {
             "step": 3, "kind": "nonfinite", "policy": "skip", "first_sample": 4, "last_sample": 5,
             "grad_norm": None} and "gradient norm nan, first on rank 0" in reason, document)
    rows = [row for table in page.tables for row in table if row[1:3] == ["nonfinite", "skip"]]
    test("and in the page", len(rows) == 1 and rows[0][-1] == reason and page.is_whole(), rows)
    code, out, said = world.cli("show", "b", *world.where)
    test("and in show", code == 0 and
         f"\nskipped      step 3, nonfinite, samples 4 to 5: {reason}\n" in out, out + said)


def main():
    world = World()
    try:
        world.launch()
        make_tokens(world.folder, prose())
        run = Run(world)
        run.train("--comm.ranks", 2, "--debug.stop_after_step", 8)
        run.train("--comm.ranks", 1)
        document, _ = told(run)
        compared(run, document)
        missing(run)
        damaged(run)
        refused(run)
        broken(run)
    finally:
        world.close()
    end()


main()
