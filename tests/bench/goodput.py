#!/usr/bin/env python3
"""goodput - which part of its time a cluster that fails trains.

    goodput.py FILE HELD DURABLE LOAD COMMIT    # seconds; FILE as goodput.toml

A run trains, and saves every so many steps: each save holds it up for HELD seconds, and is durable
DURABLE seconds after it began, and COMMIT more. A failure throws away what was trained since the
newest save that it leaves: where a node was lost, one whose copy had gone to another node, as fast
as the network is. Then it is detected, the job is queued again, processes start, and load: from the
node's own memory or disk (LOAD seconds), or, of a lost node, over the network. A failure in the
midst of that begins it anew. Times between failures are exponential, from a seed.
"""
import random
import sys
import tomllib

DAYS, SEED = 1000, 1
DAY = 86400.0


def simulate(cluster, times, seed=SEED, days=DAYS):
    """Seconds by their use, "trained" among them."""
    chance = random.Random(seed)
    mean = cluster["hours_between_failures"] * 3600
    every = cluster["save_every_steps"] * cluster["step_seconds"]
    period = every + times["held"]
    durable = times["held"] + times["durable"] + times["commit"]
    fetch = bytes_of_node(cluster) / cluster["network_bytes_per_second"]
    spent = dict.fromkeys(("trained", "held up by saves", "trained again", "detection", "requeue",
                           "start", "load", "failures in a restart"), 0.0)
    left = days * DAY
    while left > 0:
        until = min(chance.expovariate(1 / mean), left)
        left -= until
        is_lost = chance.random() < cluster["lost_node_share"]
        saves = int(max(until - durable - is_lost * fetch, 0) / period)  # to go back to
        begun = int(until / period)
        spent["trained"] += saves * every
        spent["held up by saves"] += begun * times["held"]
        spent["trained again"] += until - saves * every - begun * times["held"]
        parts = {"detection": cluster["detection_seconds"], "requeue": cluster["requeue_seconds"],
                 "start": cluster["start_seconds"], "load": max(times["load"], is_lost * fetch)}
        down = sum(parts.values())
        while left > 0:
            next_failure = chance.expovariate(1 / mean)
            if next_failure >= down:
                break
            spent["failures in a restart"] += next_failure
            left -= next_failure
        for part, seconds in parts.items():
            spent[part] += seconds
        left -= down
    return spent


def bytes_of_node(cluster):
    return (cluster["parameters"] * cluster["bytes_per_parameter"] * cluster["ranks_per_node"] /
            cluster["ranks"])


def goodput(spent):
    return spent["trained"] / sum(spent.values())


def arithmetic(spent):
    """A line per part, largest first."""
    whole = sum(spent.values())
    return [f"{100 * seconds / whole:7.3f} %  {part}"
            for part, seconds in sorted(spent.items(), key=lambda item: -item[1])]


def main():
    if len(sys.argv) != 6:
        print(__doc__)
        return 2
    with open(sys.argv[1], "rb") as file:
        cluster = tomllib.load(file)
    spent = simulate(cluster, dict(zip(("held", "durable", "load", "commit"),
                                       map(float, sys.argv[2:]))))
    print("\n".join(arithmetic(spent)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
