"""What every model client promises, over real HTTP on loopback. A new client passes this suite by adding its dialect.

The fixtures and dialects are those of the clients' own tests.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_CLIENTS = Path(__file__).parents[2] / "verifiers" / "clients"
sys.path[:0] = [str(_CLIENTS), str(Path(__file__).parent)]

from dialects import DIALECTS  # noqa: E402  # found through the path above

_spec = importlib.util.spec_from_file_location("client_fixtures", _CLIENTS / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_environment = _module._environment
endpoint = _module.endpoint
waits = _module.waits
make_client = _module.make_client


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.client_type)
def dialect(request):
    """How one API is spoken."""
    return request.param
