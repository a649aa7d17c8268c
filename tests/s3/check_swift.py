#!/usr/bin/env python3
"""check_swift - a bucket of OpenStack Swift: a real server without conditional PUTs.

Goal: where only the completion of an upload is conditional, publications are uploads of one part,
and nothing else is different for one writer. Method: lib_swift.py starts it; the story is that of
check_gateway.py. It takes ten seconds and more to start: `make check` has it (tests/check swift).

Swift looks whether the name is taken before it writes, so of writers that race at the same moment
several win. The probe races a few and refuses such a bucket for more than one writer; single_writer
says that there is only one.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import check_gateway as gateway  # noqa: E402
import lib_rgw  # noqa: E402
import lib_swift  # noqa: E402
import lib_tap  # noqa: E402

ALONE = {"HOLDFAST_S3_SINGLE_WRITER": "true"}


def the_probe_finds_that_several_win_and_refuses_two_writers(bed):
    with bed.driver("plain") as driver:
        said = driver.opened
        assert said[0] == "ERR_DENIED" and "writers that raced make one object" in said[1], said


def it_is_opened_for_one_writer(bed):
    with bed.driver("plain", **ALONE) as driver:
        said = driver.good("describe")
        assert "a conditional write that several win" in said, said


def it_keeps_what_it_is_given(bed):
    with bed.driver("plain", **ALONE) as driver:
        gateway.go_through(driver)


TESTS = [
    the_probe_finds_that_several_win_and_refuses_two_writers,
    it_is_opened_for_one_writer,
    it_keeps_what_it_is_given,
]


def tell(folder, swift):
    return lib_tap.run(TESTS, gateway.Bed(folder, swift))


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell, lib_swift.Swift))
