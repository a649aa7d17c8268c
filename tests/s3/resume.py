#!/usr/bin/env python3
"""resume - a run on a bucket of a real S3 server, Ceph's RADOS gateway, as ckptd's far tier.

Goal: as tests/integration/tier.py on a directory: a fresh machine resumes bit for bit from the
bucket alone. Method: its story, with the gateway of lib_rgw.py. ROUNDS=<n> sets how often.
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
import tier as story  # noqa: E402


def main():
    missing = lib_rgw.missing()
    if missing:
        print(f"of Ceph {', '.join(missing)} is missing: deploy/deps test")
        return 77
    print(f"# SEED={story.SEED}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder, \
            lib_rgw.Gateway(os.path.join(folder, "rgw")) as gateway:
        os.environ.update(gateway.environment)
        world, _ = story.new_world(far="s3://checkpoints/far")
        story.resumes(world, ("--tier.store", world.far, "--tier.quiet", "false"),
                      int(os.environ.get("ROUNDS", "5")))
    lib_tap.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
