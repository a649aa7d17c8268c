#!/usr/bin/env python3
"""prometheus - the files of deploy/ for Prometheus and Grafana, on the real Prometheus.

Goal: promtool finds no fault in /metrics, in the rules and in the example of a configuration; each
alert fires when it should, and not before; every expression of the rules and of the dashboard is
answered without an error, and each metric that it names is there. Method: two nodes over TLS while
a run trains at one of them and after a load, one with a directory as its far tier and one with a
bucket; Prometheus reads both by the example's configuration with other addresses.
disk_hours_to_full takes a minute of saves: the test looks for it in metrics_text.c instead.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import lib_train
from lib_nodes import Cluster, free_port, scratch
from lib_store import PATIENCE, SAVER, comes, make_tier, wait_until
from lib_tap import end, need, need_programs, test

need("yaml")
need_programs("prometheus", "promtool", "openssl")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../s3"))
import yaml  # noqa: E402
from lib_server import Server  # noqa: E402

HOST = "127.0.0.1"
EXAMPLE = "deploy/prometheus/prometheus.yml"
RULES = "deploy/prometheus/holdfast.rules.yml"
IN_TABLE = {"holdfast_disk_hours_to_full": '"disk.hours_to_full"'}
UNIT = "holdfast_pace_quiet_wait_ms metric names should not contain abbreviated units\n"
MINUTE = 60


def rules():
    with open(RULES) as file:
        (group,) = yaml.safe_load(file)["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def drawn():
    """The expressions of the dashboard."""
    with open("deploy/grafana/ckptd.json") as file:
        panels = json.load(file)["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def named(expressions):
    return {name for text in expressions for name in re.findall(r"\b(?:holdfast_\w+|up)\b", text)}


def promtool(*words, text=None):
    done = subprocess.run(["promtool", *words], input=text, capture_output=True, text=True,
                          timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


def asked(port, path, **query):
    path += "?" + urllib.parse.urlencode(query) if query else ""
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=PATIENCE) as answer:
        return answer.read().decode()


# ---- promtool ----


def summary(rule, value, **labels):
    text = re.sub(r"{{ if \$labels.(\w+) }}(.*?){{ else }}(.*?){{ end }}",
                  lambda choice: choice[2] if choice[1] in labels else choice[3],
                  rule["annotations"]["summary"])
    for name, label in labels.items():
        text = text.replace("{{ $labels.%s }}" % name, label)
    return re.sub(r"{{ \$value[^}]*}}", value, text)


def alert(name, at, fires, value="", **labels):
    """A line of a rule test: does it fire then, and with which text?"""
    rule = rules()[name]
    told = {"exp_labels": {**rule["labels"], **labels},
            "exp_annotations": {"summary": summary(rule, value, **labels)}}
    return {"eval_time": f"{at}m", "alertname": name, "exp_alerts": [told] if fires else []}


# alert: series in steps of a minute, the minute at which it fires first, its value as told, and
# the labels of its series.
N1 = {"instance": "n1"}
N2, BOOK, SLOW = {"node": "n2", **N1}, {"run": "book", **N1}, {"tier": "far", "op": "put", **N1}
FIRES = [
    ("HoldfastDown", {"up": "1 0x9"}, 3, "", {"job": "ckptd", **N1}),
    ("HoldfastNoCommit", {"run_commit_wait_seconds": "0+60x70"}, 63, "1h 3m 0s", BOOK),
    ("HoldfastSavesFail", {"run_failures_in_row": "2 3"}, 1, "3", BOOK),
    ("HoldfastDiskFull", {"disk_hours_to_full": "12 11x9"}, 6, "11", N1),
    ("HoldfastCertificateEnds", {"tls_certificate_seconds_left": "1209600 1209599"}, 1,
     "13d 23h 59m 59s", N1),
    ("HoldfastClockOff", {"tier_clock_ahead_seconds": "30 -31x9"}, 6, "31s", N1),
    ("HoldfastClockOff", {"node_clock_ahead_seconds": "-30 31x9"}, 6, "31s", N2),
    ("HoldfastLeak", {"process_leak_bytes_per_hour": "0 1048576"}, 1, "1Mi", N1),
    ("HoldfastTierSlow", {'tier_io_seconds_bucket{le="20"}': "0x30",
                          'tier_io_seconds_bucket{le="40"}': "0+60x30",
                          'tier_io_seconds_bucket{le="+Inf"}': "0+60x30"}, 11, "39.8s", SLOW),
    ("HoldfastReplicationLags", {"replication_lag_seconds": "900 901x9"}, 6, "15m 1s", BOOK),
    ("HoldfastNodeLost", {"node_lost": "0 1"}, 1, "", N2),
    ("HoldfastDrainGivenUp", {"tier_given_up": "0 2"}, 1, "2", N1),
    ("HoldfastDrainGivenUp", {"node_given_up": "0 2"}, 1, "2", N2),
    ("HoldfastScrubFoundDamage", {"scrub_damaged_total": "0 0 1"}, 2, "", N1),
    ("HoldfastScrubFoundDamage", {"far_scrub_damaged_total": "0 0 1"}, 2, "", N1),
    ("HoldfastDamaged", {"run_damaged": "0 1x19"}, 11, "1", BOOK),
]


def series(name, labels):
    name, _, own = name.partition("{")
    text = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return ("" if name == "up" else "holdfast_") + f"{name}{{{text}{', ' + own if own else '}'}"


def fires(name, inputs, minute, value, labels):
    """A rule test: not in the minute before, and with this text in that minute."""
    return {"interval": "1m", "input_series": [
        {"series": series(one, labels), "values": values} for one, values in inputs.items()],
        "alert_rule_test": [alert(name, minute - 1, False),
                            alert(name, minute, True, value, **labels)]}


def rules_hold(folder):
    """A run that commits every ten minutes stops at once; a disk fills up and is cleared. Then each
    of the others."""
    wait = " ".join(str(MINUTE * minute) for minute in range(36)) + " 0"
    labels = {"run": "book", "instance": "n1"}
    cases = {
        "rule_files": [os.path.abspath(RULES)], "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": [
            {"series": 'holdfast_run_commit_wait_seconds{run="book", instance="n1"}',
             "values": wait},
            {"series": 'holdfast_run_commit_interval_seconds{run="book", instance="n1"}',
             "values": "600x36"},
            {"series": 'holdfast_health_saving{instance="n1"}', "values": "1 1 0 0 0 1"}],
            "alert_rule_test": [
                alert("HoldfastNoCommit", 30, False), alert("HoldfastNoCommit", 32, False),
                alert("HoldfastNoCommit", 33, True, "33m 0s", **labels),
                alert("HoldfastNoCommit", 36, False),
                alert("HoldfastCannotSave", 2, False),
                alert("HoldfastCannotSave", 3, True, instance="n1"),
                alert("HoldfastCannotSave", 5, False)]},
            *(fires(*case) for case in FIRES)]}
    path = os.path.join(folder, "cases.yml")
    with open(path, "w") as file:
        yaml.safe_dump(cases, file)
    code, said = promtool("test", "rules", path)
    test("no commit for three intervals, no save to come, and every other alert is told in its "
         "minute, and not before", code == 0, said)
    told = {"HoldfastCannotSave", *(name for name, *_ in FIRES)}
    test("no alert is left out", told == rules().keys(), rules().keys() - told)


def is_clean(folder, ports):
    test("promtool takes the rules", promtool("check", "rules", RULES)[0] == 0,
         promtool("check", "rules", RULES))
    test("and the example of a configuration with them",
         promtool("check", "config", EXAMPLE)[0] == 0, promtool("check", "config", EXAMPLE))
    for name, port in ports.items():
        code, said = promtool("check", "metrics", text=asked(port, "/metrics"))
        test(f"and the metrics of {name}, but for a setting in milliseconds, which has its name",
             (code, said) == (3, UNIT), (code, said))
    rules_hold(folder)
    test("each alert says what to do", all(
        rule["labels"]["severity"] in ("critical", "warning") and
        len(rule["annotations"]["summary"]) > 60 for rule in rules().values()))


# ---- the real one ----


class Prometheus:
    """It reads those ports each second."""

    def __init__(self, folder, ports):
        with open(EXAMPLE) as file:
            config = yaml.safe_load(file)
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [os.path.abspath(RULES)]
        config["scrape_configs"][0]["static_configs"] = [
            {"targets": [f"{HOST}:{port}" for port in ports.values()]}]
        path, self.port = os.path.join(folder, "prometheus.yml"), free_port(HOST)
        with open(path, "w") as file:
            yaml.safe_dump(config, file)
        self.log = open(os.path.join(folder, "prometheus.log"), "w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--web.listen-address={HOST}:{self.port}",
             f"--storage.tsdb.path={folder}/tsdb"], stdout=self.log, stderr=self.log)

    def said(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def query(self, expression):
        """The samples, or the text of the error."""
        try:
            return json.loads(asked(self.port, "/api/v1/query", query=expression))["data"]["result"]
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:  # it has just been started
            return []

    def rules(self):
        data = json.loads(asked(self.port, "/api/v1/rules"))["data"]
        return [rule for group in data["groups"] for rule in group["rules"]]

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.log.close()


def is_answered(prometheus):
    every = drawn() + [rule["expr"] for rule in rules().values()]

    def up():
        return [one["value"][1] for one in prometheus.query('up{job="ckptd"}')] == ["1", "1"]
    wait_until(up, prometheus.said)
    with open("ckptd/status/metrics_text.c") as file:
        table = file.read()
    names = named(every) - IN_TABLE.keys()
    comes(lambda: all(prometheus.query(name) for name in names))
    absent = [name for name in names if not prometheus.query(name)]
    test("each metric of the dashboard and of the rules is there",
         len(names) > 30 and absent == [], absent)
    test("or in the table of names", all(path in table for path in IN_TABLE.values()))
    p99 = "histogram_quantile(0.99, rate(holdfast_tier_io_seconds_bucket[10m]))"
    wanted = {("local", "write"), ("local", "sync"), ("n2", "write"), ("far", "put")}

    def computed():
        return {(one["metric"]["tier"], one["metric"]["op"]) for one in prometheus.query(p99)
                if float(one["value"][1]) > 0}
    test("Prometheus computes percentiles of each tier, node and kind of request",
         comes(lambda: wanted <= computed()), computed())
    wrong = {text: said for text in every if isinstance(said := prometheus.query(text), str)}
    test("every expression is answered", wrong == {}, wrong)

    def evaluated():
        found = prometheus.rules()
        return len(found) == len(rules()) and all(rule["health"] == "ok" for rule in found)
    test("every rule is evaluated", comes(evaluated), prometheus.rules())
    test("what goes well raises no critical alert", not [
        rule for rule in prometheus.rules() if rule["labels"]["severity"] == "critical" and
        rule["state"] == "firing"], prometheus.rules())


def train(folder, node):
    """Until it is stopped."""
    lib_train.make_tokens(folder, lib_train.prose())
    return subprocess.Popen(
        lib_train.command(folder, node.server, "book", "--training.steps", 1000000,
                          "--checkpoint.interval", 5),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    server = Server()
    os.environ.update(server.environment)
    with scratch("pr-") as folder:
        cluster = Cluster(folder, ("a", "b"))
        one, other = cluster.nodes
        ports = {node.name: free_port(HOST) for node in cluster.nodes}
        far = os.path.join(folder, "far")
        make_tier(folder, far)
        run = prometheus = None
        try:
            for node, tier in (one, f"dir:{far}"), (other, "s3://checkpoints/far"):
                node.spawn("--http.listen", f"{HOST}:{ports[node.name]}", "--tier.store", tier,
                           "--retention.keep_last", "3")
            for node in cluster.nodes:
                node.wait_until_it_answers()
            prometheus = Prometheus(folder, ports)
            one.save_one(1)
            subprocess.run([SAVER, "load", one.server, "2", "1", "1"], check=True, timeout=PATIENCE)
            run = train(folder, one)
            is_answered(prometheus)
            is_clean(folder, ports)
        finally:
            if run:
                run.send_signal(signal.SIGTERM)
                run.wait(PATIENCE)
            if prometheus:
                prometheus.close()
            cluster.close()
            server.close()
    end()


main()
