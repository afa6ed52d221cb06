"""The pages in Chromium: nothing is blocked or executed, keys work, a live page follows its run."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
import uvicorn

from verifiers.runs.store import RunStore
from verifiers.view.app import create_app
from verifiers.view.sources import FolderSource, key_of

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytest.importorskip("playwright")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no Chromium at {CHROMIUM}")


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a viewer of `tmp_path`."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = create_app(FolderSource([tmp_path]), token=None, hosts=[f"127.0.0.1:{port}"])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server._serve([listener]))
    yield f"http://127.0.0.1:{port}"
    server.should_exit = server.force_exit = True
    await serving
    listener.close()


@pytest.fixture
async def page(address: str) -> AsyncIterator["Page"]:  # noqa: F821
    """A page whose problems end the test."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        page = await browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on(
            "request",
            lambda r: None if r.url.startswith((address, "data:")) else problems.append(r.url),
        )
        yield page
        await browser.close()
        assert problems == []


async def test_keys_lead_from_the_table_to_a_rollout_and_on(
    page, address: str, run_folder: Path, key: str
) -> None:
    await page.goto(f"{address}/runs/{key}/rollouts?filter=reward+%3D%3D+1")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/rollouts/6?**")
    await page.keyboard.press("n")
    await page.wait_for_url("**/rollouts/9?**")
    await page.keyboard.press("e")
    assert await page.locator("details.reasoning[open]").count() == 1
    await page.keyboard.press("?")
    assert await page.locator("dialog[open]").count() == 1
    await page.keyboard.press("Escape")
    await page.keyboard.press("u")
    await page.wait_for_url("**/rollouts?filter=*")
    await page.keyboard.press("/")
    await page.keyboard.type("answer is 2")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**search=answer*")
    assert await page.locator("mark").count() > 0


@pytest.mark.long
async def test_hostile_rollouts_execute_nothing_at_any_width(
    page, address: str, tmp_path: Path, samples: ModuleType
) -> None:
    folder = samples.write_run(
        tmp_path / "hostile", samples.hostile_outputs(), env_id=samples.SCRIPT, model=samples.SCRIPT
    )
    base = f"{address}/runs/{key_of(folder)}"
    addresses = [address, base, f"{base}/rollouts?search=script", f"{base}/examples"]
    addresses += [f"{base}/{kind}/{row}" for kind in ("rollouts", "examples") for row in range(7)]
    for width in (390, 1400):
        await page.set_viewport_size({"width": width, "height": 800})
        for one in addresses:
            await page.goto(one)
            assert await page.evaluate("window.hacked") is None
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                one,
                width,
            )


@pytest.mark.long
async def test_the_page_of_a_run_follows_its_rollouts(
    page, address: str, tmp_path: Path, samples: ModuleType
) -> None:
    folder = tmp_path / "live"
    with RunStore.create(folder, {"env_id": "sums", "model": "m", "num_examples": 9}) as store:
        store.append_and_wait([samples.output(0)])
        await page.goto(f"{address}/runs/{key_of(folder)}")
        assert await page.locator("h1 .live").count() == 1
        store.append_and_wait([samples.output(number) for number in range(1, 6)])
        await page.locator(".tabs", has_text="Rollouts 6").wait_for()
    await page.locator("h1 .live").wait_for(state="detached")
