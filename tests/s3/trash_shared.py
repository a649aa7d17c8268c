#!/usr/bin/env python3
"""trash_shared - two ckptd on one bucket: the trash of what one of them has in its hands.

Goal: while the rules of one put a checkpoint into the trash, `rm --now` at the other gives way, and
what lies in the trash then is whole; while one takes a checkpoint back, the other's sweep, for
which its term is over, leaves it, and it comes back whole; where `rm --now` comes at what another
ckptd has put into the trash, nothing of it is left. Method: the real programs on the strict server
of the tests, which holds the one request back on which it turns.
"""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_store import PATIENCE, comes_to, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from shared import OPTIONS, Bed  # noqa: E402

LOCAL = "--retention.keep_last", "1", "--retention.may_remove_most", "true"
DAY = "--tier.trash_s", "86400"


def trashed(bed):
    return sorted(int(key.split("/step-")[1][:8]) for key in bed.keys("/trash/", "manifest.json"))


def listed(bed):
    return sorted(int(key.split("/step-")[1][:8]) for key in bed.keys("manifest.json")
                  if "/trash/" not in key)


def held(bed, step, command, is_trash):
    """Requests for that step's manifest wait from here on; True once one does."""
    came = threading.Event()

    def is_it(request):
        found = (request.command == command and f"step-{step:08d}" in request.path and
                 request.path.endswith("manifest.json") and
                 ("/trash/" in request.path) == is_trash)
        if found:
            came.set()
        return found

    bed.hold_back(is_it)
    return lambda: came.wait(PATIENCE)


def gives_way(bed):
    one, other = bed.one, bed.other
    one.start(*OPTIONS, *LOCAL)
    bed.save(one, 1, 2)
    name = bed.name(one, 1)
    one.stop()
    other.start(*OPTIONS, *LOCAL)
    wait_until(lambda: bed.entry(other, 1), other.log)
    is_held = held(bed, 1, "PUT", True)
    one.start(*OPTIONS, *LOCAL, *DAY, "--tier.keep_last", "2")
    one.save_one(3)
    came = is_held()
    code, out, err = other.cli("rm", name, "--yes", "--now", *other.where)
    bed.let_go()
    test("rm --now gives way to a ckptd that puts it into the trash", came and code != 0 and
         "somebody else removes" in err, (came, code, out, err))
    test("which ends well", comes_to(lambda: (listed(bed), trashed(bed)), ([2, 3], [1])),
         (listed(bed), trashed(bed), one.log()[-2000:]))
    one.stop()
    one.start(*OPTIONS, *LOCAL, *DAY)
    code, out, err = one.cli("undelete", name, *one.where)
    good, said = verifies(bed, 1)
    test("and what lies in the trash is whole", code == 0 and good, (out, err, said))


def verifies(bed, step):
    code, out, err = bed.one.cli("verify", f"{bed.run}@{step}", "--store", OPTIONS[1])
    return code == 0, out + err


def sweep_gives_way(bed):
    one, other = bed.one, bed.other
    name = bed.name(one, 1)
    code, out, err = one.cli("rm", name, "--yes", *one.where)
    test("it goes into the trash again", code == 0 and trashed(bed) == [1], (out, err))
    is_held = held(bed, 1, "PUT", False)
    said = []
    undelete = threading.Thread(target=lambda: said.append(one.cli("undelete", name, *one.where)))
    undelete.start()
    came = is_held()
    other.stop()
    other.start(*OPTIONS, *LOCAL, "--tier.trash_s", "1")
    swept = comes_to(lambda: "stays: " in other.log(), True)
    shards = len(bed.keys("/step-00000001", "/shard-"))
    bed.let_go()
    undelete.join(PATIENCE)
    test("a sweep at whose term it is over leaves what another ckptd takes back",
         came and swept and shards == 2, (came, shards, other.log()[-2000:]))
    good, text = verifies(bed, 1)
    test("which comes back whole", said and said[0][0] == 0 and good and trashed(bed) == [] and
         1 in listed(bed), (said, text))


def final(bed):
    """`other` still lists what `one` has put."""
    one, other = bed.one, bed.other
    other.stop()
    other.start(*OPTIONS, *LOCAL, "--tier.look_ms", "86400000")
    name = bed.name(other, 1)
    code, out, err = one.cli("rm", name, "--yes", *one.where)
    put = trashed(bed)
    code, out, err = other.cli("rm", name, "--yes", "--now", *other.where)
    test("rm --now leaves nothing of what another ckptd has put into the trash", put == [1] and
         code == 0 and not bed.keys("step-00000001"), (put, out, err, bed.keys("step-00000001")))


def main():
    bed = Bed()
    try:
        for story in (gives_way, sweep_gives_way, final):
            story(bed)
    finally:
        bed.close()
    end()


if __name__ == "__main__":
    main()
