"""The fixtures and dialects of the clients' own tests, here for the suite that every client passes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_CLIENTS = Path(__file__).parents[2] / "verifiers" / "clients"
sys.path.insert(0, str(_CLIENTS))

_spec = importlib.util.spec_from_file_location("client_fixtures", _CLIENTS / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_environment = _module._environment
endpoint = _module.endpoint
waits = _module.waits
make_client = _module.make_client
