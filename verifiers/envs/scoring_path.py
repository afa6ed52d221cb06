"""Uploaded into sandboxes as `sitecustomize.py` before they are scored: libraries are found before the model's files.

A file `json.py` or `unittest.py` beside a hidden test would otherwise be imported by that test in the place of the
standard library's. Entries of the author's PYTHONPATH that the model can write come after the standard library, too.
It runs in the sandbox's Python, so it uses only the standard library of Python 3.8. It is a separate file because it is
uploaded as text; nothing imports it here, since importing it changes how modules are found.
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
    path = list(sys.path)  # no directory of the program yet

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """The module of the standard library, if it has one of this name."""
        if path is None and name in cls.names:
            return PathFinder.find_spec(name, cls.path, target)
        return None


sys.meta_path.insert(0, _StandardLibraryFirst)
sys.path[1:1] = [entry for entry in os.environ.get(PATH_VARIABLE, "").split(":") if entry]
