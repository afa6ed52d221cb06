"""A viewer of saved runs, in this process."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from verifiers.view.app import create_app
from verifiers.view.sources import FolderSource, key_of

HOST = "127.0.0.1:8300"


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    """Writers of runs."""
    path = Path(__file__).with_name("sample_runs.py")
    spec = importlib.util.spec_from_file_location("sample_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_folder(tmp_path: Path, samples: ModuleType) -> Path:
    """A run with 6 examples and 4 rollouts of each."""
    return samples.write_run(
        tmp_path / "evals" / "sums--small" / "aaaa1111", samples.usual_outputs()
    )


@pytest.fixture
def key(run_folder: Path) -> str:
    """The key of the run in addresses."""
    return key_of(run_folder)


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a viewer without a token."""
    app = create_app(FolderSource([tmp_path]), token=None, hosts=[HOST])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        yield client
