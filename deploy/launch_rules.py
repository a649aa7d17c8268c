"""launch_rules - the decisions of the launcher; pure functions, without I/O and clock.

Each returns a Decision; the launcher prints its words, notes its events, and executes it.

after_start: how a start ended -> the next one's ranks and the pause before it, or the exit code.
The next start has the remaining ranks. If those are fewer than --min-ranks, the job was lost and
not its places: the next start has all --ranks again. After exit 75 ("run again") it has as many as
before. 78 ("do not retry", also of a kill switch) and 0 (done) are passed on. So is 79, as 75: the
run's time is over (the trainer's training.exit_duration_in_mins), and a start at once uses more.
The first failure leads to a restart at once, and so does the failure of a start that lived
--healthy seconds. Before further restarts the pause doubles from --backoff to --backoff-max
seconds. After --restarts-max starts in a row, none of which lived --healthy seconds, the launcher
exits with 75.

places: the hosts that answer, or the number in --ranks-file -> where the next start has ranks.
Before each start the launcher contacts every host. It skips one that does not answer, and uses it
again at a later start when it does. A host that answers has all its ranks in the next start, after
any failure. With --nodes only so many hosts have ranks, the first of the file that answer; the
others are spares. With fewer hosts than --min-nodes the launcher exits with 75, and its scheduler
provides other hosts.

after_preflight: the results of the ranks -> which hosts are excluded; without other hosts the
launcher exits with 78. Ranks that wait for others give up when two thirds of --preflight-seconds
are over. So those that have not ended after all of them are broken. If none has, mpirun itself
hangs, and no host is excluded.
"""

import re
import signal
from typing import NamedTuple, Optional

RUN_AGAIN, NO_RETRY, TIME_IS_OVER = 75, 78, 79


class Options(NamedTuple):
    """The options that matter here; with hosts_file `ranks` are those of one host."""
    ranks: int = 1
    min_ranks: int = 1
    hosts_file: str = ""
    nodes: int = 0
    min_nodes: int = 1
    ranks_file: str = ""
    restarts_max: int = 10
    healthy: int = 600
    backoff: float = 1
    backoff_max: float = 60


class Ended(NamedTuple):
    """How a start ended. ends, lost: by rank, its exit status or the signal that it died of."""
    status: int  # mpirun's exit status
    ends: dict = {}
    lost: dict = {}
    hung: bool = False  # mpirun did not end after its ranks, and was killed
    seconds: float = 0  # how long it lived
    stopping: bool = False  # the launcher got a request to stop
    late: int = 0  # seconds, after which its ranks were ended; 0: they ended by themselves


class Decision(NamedTuple):
    words: list = []  # a line each
    events: list = []
    exit: Optional[int] = None  # None: go on
    ranks: int = 0  # of the next start
    hosts: list = []
    excluded: list = []  # (host, why)
    pause: float = 0  # seconds
    failures: int = 0  # in a row


FINAL = {
    0: (0, "the run is done"),
    NO_RETRY: (NO_RETRY, "a rank ended with 78: not starting again"),
    TIME_IS_OVER: (RUN_AGAIN, "the time of the run is over: not starting again"),
}


CRASHES = {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE,
           signal.SIGSEGV, signal.SIGSYS}


def has_crash(lost):
    """Some rank died of its own fault, and not because others killed it."""
    return not CRASHES.isdisjoint(lost.values())


def signal_name(number):
    try:
        return signal.Signals(number).name[3:]
    except ValueError:
        return str(number)


def start_status(ended, ranks):
    """mpirun's status; or, if it was killed, that of the ranks, if all have noted one."""
    return max(ended.ends.values()) if ended.hung and len(ended.ends) == ranks else ended.status


def pause_after(failures, options):
    """No pause after the first failure in a row; after the second it doubles each time."""
    if failures == 1:
        return 0
    return min(options.backoff * 2 ** min(failures - 2, 99), options.backoff_max)


def after_start(options, ended, ranks, failures, start):
    """ranks: of the ended start. failures: failed starts in a row before it."""
    status = NO_RETRY if NO_RETRY in ended.ends.values() else start_status(ended, ranks)
    if status in FINAL:
        code, words = FINAL[status]
        return Decision([words], exit=code)
    if ended.stopping:
        unsaved = ranks - list(ended.ends.values()).count(RUN_AGAIN)
        words = [f"{unsaved} of {ranks} ranks did not end with 75: "
                 "what they did since the last save is lost"] if unsaved else []
        return Decision(words, exit=RUN_AGAIN)

    names = {rank: signal_name(number) for rank, number in sorted(ended.lost.items())}
    words = [f"rank {rank} was lost to SIG{name}" for rank, name in names.items()]
    events = [f"lost {start} {rank} {name}" for rank, name in names.items()]
    if not options.hosts_file:
        # A killed wrapper notes nothing.
        ranks -= len(names) or int(status > 128)
    if ranks < options.min_ranks:
        words.append(f"{ranks} ranks are left, fewer than {options.min_ranks}: "
                     f"taking all {options.ranks} again")
        ranks = options.ranks

    failures = 1 if ended.seconds >= options.healthy else failures + 1
    if failures > options.restarts_max:
        words.append(f"{options.restarts_max} restarts in a row failed: giving up")
        return Decision(words, events, exit=RUN_AGAIN)
    pause = pause_after(failures, options)
    words.append(f"ended with status {status}; starting again" +
                 (f" in {pause:g} s" if pause else ""))
    return Decision(words, events, ranks=ranks, pause=pause, failures=failures)


def places(options, ranks, start, named=(), excluded=(), answers=None, written=""):
    """named: the lines of --hosts-file; answers(host) is called for no more than are needed.
    written: the contents of --ranks-file; an unreadable one changes nothing."""
    if options.hosts_file:
        return choose_hosts(options, start, named, excluded, answers)
    if not options.ranks_file:
        return Decision(ranks=ranks)
    if re.fullmatch(r"[1-9][0-9]{0,5}", written):
        return Decision(ranks=int(written))
    return Decision([f'the file "{options.ranks_file}" (--ranks-file) must hold a number of ranks, '
                     f'not "{written}"'], exit=None if start > 1 else NO_RETRY, ranks=ranks)


def choose_hosts(options, start, named, excluded, answers):
    hosts, spares, words, events = [], [], [], []
    for host in named:
        if host in excluded:
            words.append(f"the host {host} is excluded: starting without it")
            events.append(f"excluded {start} {host}")
        elif 0 < options.nodes <= len(hosts):
            spares.append(host)
        elif answers(host):
            hosts.append(host)
        else:
            words.append(f"the host {host} does not answer: starting without it")
            events.append(f"lost-host {start} {host}")
    if spares:
        words.append(f"spare: {' '.join(spares)}")
    if len(hosts) < max(options.min_nodes, 1):
        words.append(f"{len(hosts)} of {len(named)} hosts can be used, "
                     f"fewer than {options.min_nodes} (--min-nodes)")
        return Decision(words, events, exit=RUN_AGAIN)
    return Decision(words, events, ranks=options.ranks * len(hosts), hosts=hosts)


def preflight_limit(seconds):
    """The trainer's options for a preflight that may take so long."""
    return ["--comm.init_timeout_seconds", str(max(seconds * 2 // 3, 1))]


def silent_ranks(ended, ranks):
    """Those that did not end, though others did."""
    silent = [rank for rank in range(ranks) if rank not in {*ended.ends, *ended.lost}]
    return silent if ended.late and len(silent) < ranks else []


def broken_ranks(ended, ranks, said):
    """(rank, why) for each broken rank, and for each that ended unlike a preflight, because it
    could not even begin, or did not end."""
    found = re.findall(r"^(\d+) .* broken  +(.*)", said, re.M)
    return ([(int(rank), why) for rank, why in found] +
            [(rank, f"it ended with status {status}")
             for rank, status in sorted(ended.ends.items()) if status >= 126] +
            [(rank, f"it was lost to SIG{signal_name(number)}")
             for rank, number in sorted(ended.lost.items())] +
            [(rank, f"it did not answer within {ended.late} s")
             for rank in silent_ranks(ended, ranks)])


def after_preflight(options, ended, ranks, hosts, said, start):
    """exit is None and nothing is excluded: all ranks are fit."""
    status, broken = start_status(ended, ranks), broken_ranks(ended, ranks, said)
    events = [f"preflight {start} {status} {len(broken)}"]
    if ended.stopping:
        return Decision(exit=RUN_AGAIN)
    if not broken:
        words = [f"no rank of the preflight ended within {ended.late} s" if ended.late else
                 f"the preflight ended with status {status} and says of no rank why"]
        return Decision(events=events) if status == 0 else Decision(words, events, exit=NO_RETRY)
    words, excluded = [], []
    for rank, why in broken:
        host = hosts[rank // options.ranks] if hosts else ""
        words.append(f"rank {rank}{host and ' on ' + host} is broken: {why}")
        if host:
            excluded.append((host, why))
    return Decision(words, events, exit=None if hosts else NO_RETRY, excluded=excluded)
