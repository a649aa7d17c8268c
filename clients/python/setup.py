"""setup - the package with libckpt.so.1 inside; pyproject.toml has the rest.

`make python` puts the library there. An install from source builds it, which needs a C compiler and
the packages that `deploy/deps build` names.
"""
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "src/holdfast/_native/libckpt.so.1"
TREE = HERE.parent.parent


def build_library():
    built = TREE / "build/libckpt.so.1"
    try:
        subprocess.run(["make", "-s", "-C", str(TREE), "build/libckpt.so.1"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"holdfast: libckpt could not be built ({error}). An install from source needs the "
            "whole repository, make, a C compiler and the packages that `deploy/deps build` "
            "installs; a wheel (`make python`) needs none of them.") from None
    NATIVE.parent.mkdir(exist_ok=True)
    shutil.copy2(built, NATIVE)


class BuildWithLibrary(build_py):
    def run(self):
        if not NATIVE.exists():
            build_library()
        super().run()


class PlatformWheel(bdist_wheel):
    """Of no Python in particular, but of one platform."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class HasLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=HasLibrary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
