"""The pictures of `docs/view.md`, from a real run of `reverse-text` with the embedded model.

python tests/benchmarks/view_pictures.py [CHROMIUM]      default: /usr/bin/chromium
"""

import asyncio
import socket
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig
from verifiers.view.app import create_app
from verifiers.view.sources import FolderSource, key_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


async def evaluate(folder: Path) -> None:
    """Save a run of 25 examples with 4 rollouts each."""
    async with EmbeddedEndpoint(EndpointConfig(port=0)) as endpoint:
        client = vf.ClientConfig(api_base_url=endpoint.base_url)
        await vf.load_environment("reverse-text").evaluate(
            client, "embedded", num_examples=25, rollouts_per_example=4, results_path=folder
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "evals", "reverse-text--embedded", "1a2b3c4d")
        asyncio.run(evaluate(folder))
        app = create_app(FolderSource([Path(temporary)]), token=None, hosts=[])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{port}/runs/{key_of(folder)}"
        take({"view_run.png": address, "view_rollouts.png": f"{address}/rollouts?sort=reward"})
        server.should_exit = True
        thread.join()


def take(pictures: dict[str, str]) -> None:
    """Save a picture of each address."""
    program = sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 700})
        for name, address in pictures.items():
            page.goto(address)
            page.screenshot(path=IMAGES / name)
        browser.close()


if __name__ == "__main__":
    main()
