"""Makes helper modules of this folder importable by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from code_programs import made


@pytest.fixture
async def env():
    async with made() as env:
        yield env
