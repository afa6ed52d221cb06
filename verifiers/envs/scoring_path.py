"""Uploaded into sandboxes as `sitecustomize.py` before scoring: libraries are found before the files of the model.

Without this module, a test would import a file `json.py` or `unittest.py` that the model has placed beside it, instead
of the module of the standard library. Entries of the author's PYTHONPATH that the model can write also come after the
standard library. The module runs in the Python of the sandbox, so it uses only the standard library of Python 3.8. It
is a separate file because it is uploaded as text. Nothing imports it here: importing it changes how modules are found.
"""

import os
import sys
from importlib.machinery import PathFinder

PATH_VARIABLE = "SANDBOX_SCORING_PYTHONPATH"


def _names():
    known = getattr(sys, "stdlib_module_names", None)  # since Python 3.10
    if known is None:
        known = {name.partition(".")[0] for name in os.listdir(os.path.dirname(os.__file__))}
    return known


class _StandardLibraryFirst:
    names = _names()
    path = list(sys.path)  # The directory of the program is not known yet.

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Return the module of this name in the standard library, if there is one."""
        if path is None and name in cls.names:
            return PathFinder.find_spec(name, cls.path, target)
        return None


sys.meta_path.insert(0, _StandardLibraryFirst)
sys.path[1:1] = [entry for entry in os.environ.get(PATH_VARIABLE, "").split(":") if entry]
