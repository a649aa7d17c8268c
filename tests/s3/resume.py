#!/usr/bin/env python3
"""resume - a run on a bucket of a real S3 server, Ceph's RADOS gateway, as ckptd's far tier.

Goal: as tests/integration/tier.py on a directory: a fresh machine resumes bit for bit from the
bucket alone. Method: its story, with the gateway of lib_rgw.py. ROUNDS=<n> sets how often.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
import tier as story  # noqa: E402


def tell(_, gateway):
    print(f"# SEED={story.SEED}")
    os.environ.update(gateway.environment)
    world, _ = story.new_world(far="s3://checkpoints/far")
    story.resumes(world, ("--tier.store", world.far, "--tier.quiet", "false"),
                  int(os.environ.get("ROUNDS", "5")))
    return lib_tap.end()


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
