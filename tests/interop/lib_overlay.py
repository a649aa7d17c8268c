"""lib_overlay - torch.distributed.checkpoint of another torch version, on the installed core.

DCP is pure Python. With DCP_FROM=FOLDER in the environment its files come from FOLDER, such as
torch/distributed/checkpoint out of the wheel of an older torch (of any platform: macOS's is small).
The rest of torch is the installed one. To be imported before torch. So tests/interop/dcp.py tests
holdfast.dcp with the calls of that DCP, and that the recorded ones are its calls too:

    pip download --no-deps --platform macosx_11_0_arm64 --only-binary=:all: --abi none torch==2.6.0
    unzip torch-2.6.0-*.whl 'torch/distributed/checkpoint/*' -d old
    DCP_FROM=old/torch/distributed/checkpoint VENV=build/interop-venv tests/run tests/interop/dcp.py
"""
import importlib.abc
import importlib.util
import os
import sys

NAME = "torch.distributed.checkpoint"


class Overlay(importlib.abc.MetaPathFinder):
    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name != NAME and not name.startswith(NAME + "."):
            return None
        place = os.path.join(self.folder, *name[len(NAME):].split("."))
        if os.path.isdir(place):
            return importlib.util.spec_from_file_location(
                name, os.path.join(place, "__init__.py"), submodule_search_locations=[place])
        return importlib.util.spec_from_file_location(name, place + ".py")


if "DCP_FROM" in os.environ:
    assert "torch" not in sys.modules
    sys.meta_path.insert(0, Overlay(os.path.abspath(os.environ["DCP_FROM"])))
    print(f"# the DCP of {os.environ['DCP_FROM']}", flush=True)
