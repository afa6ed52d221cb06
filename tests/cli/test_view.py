"""`vf-view`: its address, its refusals, its end."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from verifiers.runs.store import RunStore
from vf_cli import output, view


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "There is no folder nowhere"),
        (["--host", "0.0.0.0", "--no-token"], "would show all runs"),
    ],
)
def test_wrong_usage_is_explained(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(view.app, arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(view.app, [str(tmp_path), "-p", str(port)])
    assert result.exit_code == 2
    assert "Cannot listen on" in result.output


async def test_the_server_shows_the_runs_at_its_address_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore.create(tmp_path / "run", {"env_id": "demo", "model": "m"}) as store:
        store.append_and_wait([{"example_id": 0, "reward": 1.0}])
    announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(output, "show_json", announced.set_result)
    serving = asyncio.create_task(
        view._serve(
            [tmp_path], "127.0.0.1", 0, has_token=True, opens_browser=False, json_output=True
        )
    )
    done, _ = await asyncio.wait({serving, announced}, return_when=asyncio.FIRST_COMPLETED)
    assert announced in done, serving
    address = announced.result()["url"]
    assert announced.result()["runs"] == 1
    async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as client:
        assert (await client.get(address.partition("?")[0])).status_code == 401
        page = await client.get(address)
        assert page.status_code == 200
        assert "demo" in page.text
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
