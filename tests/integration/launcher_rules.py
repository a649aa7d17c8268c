#!/usr/bin/env python3
"""launcher_rules - the launcher's decisions: the ranks of the next start, their hosts, the pause,
and the end.

Goal: every rule of deploy/launch_rules.py, at its limits. Method: tables; a story is the sequence
of a run's starts, written as "exit code: ranks of each start". Real starts: launcher_starts.sh.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy"))
import launch_rules as rules
from lib_tap import end, test
from launch_rules import Ended, Options

KILL, SEGV = 9, 11


def equal(name, got, want):
    test(name, got == want, f"{got!r} is not {want!r}")


def again(ranks=2, **more):
    """All have ended with 75."""
    return Ended(75, dict.fromkeys(range(ranks), 75), **more)


def story(options, *ends):
    """The outcome as text, and the pauses."""
    ranks, failures, words, starts, pauses = options.ranks, 0, [], [], []
    for start, ended in enumerate(ends, 1):
        starts.append(ranks)
        next = rules.after_start(options, ended, ranks, failures, start)
        ranks, failures, words = next.ranks, next.failures, words + next.words
        if next.exit is not None:
            break
        pauses.append(next.pause)
    return f"{next.exit}: {' '.join(map(str, starts))}", words, pauses


DONE = Ended(0, {0: 0})
lost_one = Ended(137, {0: 75, 2: 75}, {1: KILL})
for name, options, ends, want in (
        ("a run that ends with 0 is done", Options(3), [DONE], "0: 3"),
        ("a lost rank is left out of the next start", Options(3), [lost_one, DONE], "0: 3 2"),
        ("so are two", Options(3), [Ended(137, {0: 1}, {1: KILL, 2: SEGV}), DONE], "0: 3 1"),
        ("those that end with 75 are started again", Options(3), [again(3), DONE], "0: 3 3"),
        ("so are those that end with another status", Options(2), [Ended(1, {0: 1}), DONE],
         "0: 2 2"),
        ("78 of mpirun is passed on", Options(3), [Ended(78)], "78: 3"),
        ("so is 78 of any rank", Options(3), [Ended(1, {0: 1, 1: 78})], "78: 3"),
        ("79, the run's time is over, ends it with 75", Options(3), [Ended(79, {0: 79})], "75: 3"),
        ("78 beside it goes first", Options(2), [Ended(79, {0: 79, 1: 78})], "78: 2"),
        ("when all are lost at once, all start again", Options(3),
         [Ended(137, {}, dict.fromkeys(range(3), KILL)), DONE], "0: 3 3"),
        ("fewer than --min-ranks are not started", Options(3, min_ranks=3), [lost_one, DONE],
         "0: 3 3"),
        ("as many are", Options(3, min_ranks=2), [lost_one, DONE], "0: 3 2"),
        ("a wrapper that was killed counts as one lost", Options(3), [Ended(137), DONE], "0: 3 2"),
        ("one that noted nothing else as none", Options(3), [Ended(128), DONE], "0: 3 3"),
        ("of a host that answers no rank is missed", Options(3, hosts_file="hosts"),
         [lost_one, DONE], "0: 3 3"),
        ("an mpirun that hung says nothing where all ranks do", Options(2),
         [again(hung=True)._replace(status=137), DONE], "0: 2 2"),
        ("their highest status is told", Options(2), [Ended(137, {0: 79, 1: 0}, hung=True)],
         "75: 2"),
        ("where one rank does not, mpirun's holds", Options(3),
         [again(hung=True)._replace(status=137), DONE], "0: 3 2"),
        ("after --restarts-max failed starts it gives up", Options(2, restarts_max=2),
         [again()] * 9, "75: 2 2 2"),
        ("with 0 after the first", Options(2, restarts_max=0), [again()], "75: 2"),
        ("a healthy start begins that count anew", Options(2, restarts_max=1, healthy=10),
         [again(), again(seconds=10), again()], "75: 2 2 2"),
        ("a shorter one does not", Options(2, restarts_max=1, healthy=10),
         [again(), again(seconds=9.9), again()], "75: 2 2"),
        ("asked to stop it starts nothing again", Options(2), [again(stopping=True)], "75: 2"),
        ("nor when a rank is lost", Options(2), [Ended(137, {}, {1: KILL}, stopping=True)],
         "75: 2"),
        ("a run that is done then is done", Options(2), [DONE._replace(stopping=True)], "0: 2"),
        ("one that must not be retried is not", Options(2), [Ended(78, stopping=True)], "78: 2")):
    equal(name, story(options, *ends)[0], want)

early, healthy = again(1), again(1, seconds=10)
equal("the first failure waits for nothing, the next ones doubling up to --backoff-max",
      story(Options(1, healthy=10, backoff=0.05, backoff_max=0.15),
            early, early, early, early, early, healthy, early)[2],
      [0, 0.05, 0.1, 0.15, 0.15, 0, 0.05])
equal("a --backoff longer than that is cut, too",
      story(Options(1, backoff=9, backoff_max=2), early, early)[2], [0, 2])
equal("a pause is said, and none is", story(Options(1, backoff=0.5), early, early)[1],
      ["ended with status 75; starting again", "ended with status 75; starting again in 0.5 s"])
equal("a lost rank is named, with its signal, and that all are taken",
      story(Options(2, min_ranks=2), Ended(139, {0: 75}, {1: SEGV}))[1][:2],
      ["rank 1 was lost to SIGSEGV", "1 ranks are left, fewer than 2: taking all 2 again"])
equal("and noted", rules.after_start(Options(2), Ended(139, {}, {1: SEGV}), 2, 0, 7).events,
      ["lost 7 1 SEGV"])
equal("ranks that did not save when asked to stop are counted",
      story(Options(3), Ended(137, {0: 75, 1: 1}, {2: KILL}, stopping=True))[1],
      ["2 of 3 ranks did not end with 75: what they did since the last save is lost"])
equal("of others nothing is said", story(Options(2), again(stopping=True))[1], [])

for name, written, start, want in (
        ("the number in --ranks-file decides", "12", 1, (None, 12)),
        ("one that becomes unreadable changes nothing", "two", 2, (None, 3)),
        ("a zero in front is none", "02", 2, (None, 3)),
        ("at the first start it ends with 78", "", 1, (78, 3))):
    next = rules.places(Options(4, ranks_file="f"), 3, start, written=written)
    equal(name, (next.exit, next.ranks), want)
equal("without it what is left starts", rules.places(Options(4), 3, 2).ranks, 3)


def choose(up, excluded=(), **options):
    """Among a, b, c: exit, ranks, hosts, events; and the hosts that were asked."""
    asked = []
    next = rules.places(Options(2, hosts_file="f", **options), 1, 5, list("abc"), excluded,
                        lambda host: asked.append(host) or host in up)
    return (next.exit, next.ranks, "".join(next.hosts), next.events), "".join(asked), next.words


equal("each host that answers has its ranks", choose("abc")[0], (None, 6, "abc", []))
equal("one that does not is left out and noted", choose("ac")[0],
      (None, 4, "ac", ["lost-host 5 b"]))
equal("and named", choose("ac")[2], ["the host b does not answer: starting without it"])
equal("the first --nodes are taken, the others spare and not asked", choose("abc", nodes=2)[:2],
      ((None, 4, "ab", []), "ab"))
equal("which is said", choose("abc", nodes=2)[2], ["spare: c"])
equal("a spare takes the place of a lost one", choose("bc", nodes=2)[0],
      (None, 4, "bc", ["lost-host 5 a"]))
equal("an excluded one is not asked", choose("abc", excluded=["a"])[:2],
      ((None, 4, "bc", ["excluded 5 a"]), "bc"))
equal("fewer than --min-nodes end with 75", (choose("a", min_nodes=2)[0][0],
                                             choose("a", min_nodes=2)[2][-1]),
      (75, "1 of 3 hosts can be used, fewer than 2 (--min-nodes)"))
equal("as many do not", choose("ac", min_nodes=2)[0][0], None)
equal("none do in any case", choose("", min_nodes=0)[0][0], 75)

SAID = "rank device state\n0  GPU-1 ok  fine\n3  GPU-2 broken  copies: other bits\n"
for name, hosts, ended, said, want in (
        ("ranks that are fit start", "ab", Ended(0), "0 GPU ok  fine\n", (None, [])),
        ("a broken one excludes its host", "ab", Ended(78), SAID,
         (None, [("b", "copies: other bits")])),
        ("so does one that is too slow; what is said of its node is no rank", "ab", Ended(78),
         "0  a ok  fine\n3  b broken  products at 20 % of the median\n2  b slow  copies at 80 %\n"
         "node   b 2 2/2\npreflight: rank 3 (host b): products at 20 % of the median\n",
         (None, [("b", "products at 20 % of the median")])),
        ("so does one that cannot begin", "ab", Ended(126, {1: 126, 2: 78}), "",
         (None, [("a", "it ended with status 126")])),
        ("or is lost", "ab", Ended(137, {}, {2: KILL}), "",
         (None, [("b", "it was lost to SIGKILL")])),
        ("or has not ended in time, as others have", "ab",
         Ended(137, {0: 75, 1: 75, 3: 75}, late=9), "",
         (None, [("b", "it did not answer within 9 s")])),
        ("in time it may be ended by mpirun", "ab", Ended(75, {0: 75, 1: 75, 3: 75}), "", (78, [])),
        ("when none has ended, no host is blamed", "ab", Ended(137, late=9), "", (78, [])),
        ("without hosts it ends with 78", "", Ended(78), SAID, (78, [])),
        ("so it does when no rank says why", "ab", Ended(1, {0: 1}), "", (78, [])),
        ("asked to stop, with 75", "ab", Ended(137, {}, {0: KILL}, stopping=True), "", (75, []))):
    next = rules.after_preflight(Options(2, hosts_file="f"), ended, 4, list(hosts), said, 3)
    equal("preflight: " + name, (next.exit, next.excluded), want)
for name, lost, want in (("SIGSEGV", {1: SEGV}, True), ("SIGKILL", {1: KILL}, False),
                         ("the signal of one that noted none", {1: -1}, False),
                         ("SIGKILL and SIGSEGV", {0: KILL, 2: SEGV}, True), ("nothing", {}, False)):
    equal(f"{name} is {'a' if want else 'no'} crash", rules.has_crash(lost), want)
equal("ranks wait for others for less time than a preflight has",
      [rules.preflight_limit(seconds)[1] for seconds in (1, 9, 120)], ["1", "6", "80"])
end()
