"""`BrowserEnv`: a web browser for the model, by elements of the page (`dom`) or by coordinates (`cua`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from verifiers.decorators import cleanup, teardown
from verifiers.envs import open_environments
from verifiers.envs.integrations.browser_pages import (
    BrowserError,
    Browsers,
    described,
    elements_of,
    parse_action,
    perform,
)
from verifiers.envs.stateful_tool_env import StatefulToolEnv
from verifiers.errors import BrowserSandboxError, ConfigError, SandboxError
from verifiers.messages import content_text, normalize_messages
from verifiers.state import State
from verifiers.types import Messages, UserMessage

ModeType = Literal["dom", "cua"]
MOST_PAGE_CHARACTERS = 20_000
_HIDDEN = ("page", "state")
_OLD_SCREENSHOT = {"type": "text", "text": "[an earlier screenshot]"}


class BrowserEnv(StatefulToolEnv):
    """Gives each rollout a page in a headless Chromium of this machine, with cookies of its own.

    `mode="dom"`: tools `navigate`, `observe`, `act`, `extract`. `mode="cua"`: `click`, `type_text`, `screenshot` and so
    on, each answered with a screenshot. v0 drove Browserbase and Stagehand in their cloud; what asks for those
    (`env="BROWSERBASE"`, `project_id`, `proxies`, `advanced_stealth`) is a ConfigError, and the arguments about its
    servers and sandboxes have no effect. The browser has the network of this machine: `allowed_hosts` limits where
    pages may come from. `screenshot_dir`: where screenshots are kept, unless `save_screenshots` is False.
    """

    def __init__(
        self,
        mode: ModeType = "dom",
        project_id: str | None = None,
        browserbase_api_key_var: str = "BROWSERBASE_API_KEY",
        model_api_key_var: str = "MODEL_API_KEY",
        stagehand_model: str = "openai/gpt-4o-mini",
        proxy_model_to_stagehand: bool = False,
        use_sandbox: bool = True,
        server_url: str = "http://localhost:3000",
        env: Literal["LOCAL", "BROWSERBASE"] = "LOCAL",
        viewport_width: int = 1024,
        viewport_height: int = 768,
        save_screenshots: bool = True,
        keep_recent_screenshots: int | None = 2,
        proxies: bool = False,
        advanced_stealth: bool = False,
        server_port: int = 3000,
        server_ready_timeout: int = 120,
        server_ready_poll_interval: float = 2.0,
        docker_image: str = "node:18-slim",
        cpu_cores: int = 2,
        memory_gb: int = 4,
        disk_size_gb: int = 10,
        sandbox_timeout_minutes: int = 60,
        sandbox_timeout_per_command_seconds: int = 60,
        use_binary: bool = True,
        use_prebuilt_image: bool = True,
        prebuilt_image: str = "deepdream19/cua-server:latest",
        stop_errors: Sequence[type[Exception]] | None = None,
        *,
        allowed_hosts: Sequence[str] | None = None,
        screenshot_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        if mode not in ("dom", "cua"):
            raise ConfigError(f"Unknown mode: {mode!r}. It must be 'dom' or 'cua'.")
        cloud = {
            "env": env == "BROWSERBASE",
            "project_id": project_id is not None,
            "proxies": proxies,
            "advanced_stealth": advanced_stealth,
        }
        if asked := [name for name, is_asked in cloud.items() if is_asked]:
            raise ConfigError(
                f"BrowserEnv runs a Chromium of this machine; {', '.join(asked)} asks for the cloud of Browserbase. "
                "Leave it out; what a proxy or a cloud session is needed for cannot be done here."
            )
        super().__init__(
            stop_errors=[SandboxError] if stop_errors is None else stop_errors, **kwargs
        )
        self.mode = mode
        self.viewport = (viewport_width, viewport_height)
        self.keep_recent_screenshots = keep_recent_screenshots if mode == "cua" else None
        self.screenshot_dir = Path(screenshot_dir) if screenshot_dir and save_screenshots else None
        self.browsers = Browsers(allowed_hosts=allowed_hosts)
        names = _DOM_TOOLS if mode == "dom" else _CUA_TOOLS
        for name in names:
            tool = getattr(self, name)
            self.add_tool(tool, args_to_skip=[n for n in _HIDDEN if n in _parameters(tool)])

    # -------------------------------------------------------------------------------------------- the session

    async def setup_state(self, state: State) -> State:
        """Open the rollout's page."""
        open_environments.add(self)
        state["browser_page"] = await self.browsers.new_page(*self.viewport)
        return state

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Add the page, and the state for the tools that ask for it."""
        page = state["browser_page"]
        if page.is_closed():
            raise BrowserError("The rollout's page has been closed; the browser may have crashed.")
        known = {"page": page, "state": state}
        wanted = self.skipped_args.get(tool_name, [])
        return {**tool_args, **{name: known[name] for name in wanted}}

    async def get_prompt_messages(self, state: State) -> Messages:
        """The conversation, without screenshots older than the latest `keep_recent_screenshots`."""
        messages = await super().get_prompt_messages(state)
        if self.keep_recent_screenshots is None:
            return messages
        return without_old_screenshots(messages, self.keep_recent_screenshots)

    @cleanup
    async def cleanup_session(self, state: State) -> None:
        """Close the rollout's page."""
        page = state.pop("browser_page", None)
        if page is not None:
            await page.context.close()

    @teardown
    async def teardown_browser(self) -> None:
        """Close the browser."""
        await self.browsers.aclose()

    # ------------------------------------------------------------------------------------------------ by elements

    async def navigate(self, url: str, page: Any) -> str:
        """Open a URL.

        Args:
            url: The URL to open.
        """
        await page.goto(url)
        return f"Opened {page.url}: {await page.title()}"

    async def observe(self, instruction: str, page: Any) -> str:
        """List what can be acted on, each with a number for act().

        Args:
            instruction: Words to look for; everything is listed when nothing has them.
        """
        elements = await elements_of(page)
        words = [word for word in instruction.lower().split() if len(word) > 2]
        found = [e for e in elements if any(word in str(e).lower() for word in words)]
        return f"{page.url}\n{described(found or elements)}"

    async def act(self, instruction: str, page: Any) -> str:
        """Act on the page.

        Args:
            instruction: One of: click [3]; click "Sign in"; type "text" into [4]; select "option" in [5]; check [6];
                uncheck [6]; press Enter. Numbers are those of observe(); words of a name do, too.
        """
        done = await perform(page, parse_action(instruction))
        await page.wait_for_load_state("domcontentloaded")
        return f"{done} The page is {page.url}: {await page.title()}"

    async def extract(self, instruction: str, schema_json: str, page: Any, state: State) -> str:
        """Read data off the page.

        Args:
            instruction: What to read.
            schema_json: JSON schema of the answer.
        """
        try:
            json.loads(schema_json)
        except ValueError as error:
            raise ValueError(f"schema_json is not valid JSON: {error}") from error
        text = (await page.inner_text("body"))[:MOST_PAGE_CHARACTERS]
        asked = (
            f"{instruction}\n\nAnswer with JSON only, of this schema: {schema_json}\n\n"
            f"Page {page.url}, {await page.title()}:\n{text}"
        )
        prompt = normalize_messages([UserMessage(content=asked)], field_name="extract")
        answer = await self.get_model_response(state, prompt, tool_defs=[])
        return content_text(answer.message.content or "")

    # --------------------------------------------------------------------------------------------- by coordinates

    async def click(
        self, x: int, y: int, page: Any, button: Literal["left", "right", "middle"] = "left"
    ) -> list[dict[str, Any]]:
        """Click at a point of the page."""
        await page.mouse.click(x, y, button=button)
        return await self._seen(page)

    async def double_click(self, x: int, y: int, page: Any) -> list[dict[str, Any]]:
        """Click twice at a point of the page."""
        await page.mouse.dblclick(x, y)
        return await self._seen(page)

    async def type_text(self, text: str, page: Any) -> list[dict[str, Any]]:
        """Type text where the focus is."""
        await page.keyboard.type(text)
        return await self._seen(page)

    async def keypress(self, keys: str | list[str], page: Any) -> list[dict[str, Any]]:
        """Press a key, or several together, e.g. "Enter" or ["Control", "a"]."""
        await page.keyboard.press(keys if isinstance(keys, str) else "+".join(keys))
        return await self._seen(page)

    async def scroll(
        self, page: Any, x: int = 0, y: int = 0, scroll_x: int = 0, scroll_y: int = 0
    ) -> list[dict[str, Any]]:
        """Scroll by pixels with the mouse at a point."""
        await page.mouse.move(x, y)
        await page.mouse.wheel(scroll_x, scroll_y)
        return await self._seen(page)

    async def goto(self, url: str, page: Any) -> list[dict[str, Any]]:
        """Open a URL."""
        await page.goto(url)
        return await self._seen(page)

    async def back(self, page: Any) -> list[dict[str, Any]]:
        """Go back to the page before."""
        await page.go_back()
        return await self._seen(page)

    async def forward(self, page: Any) -> list[dict[str, Any]]:
        """Go forward again."""
        await page.go_forward()
        return await self._seen(page)

    async def wait(self, page: Any, time_ms: int = 1000) -> list[dict[str, Any]]:
        """Wait, for ten seconds at most."""
        await page.wait_for_timeout(min(max(time_ms, 0), 10_000))
        return await self._seen(page)

    async def screenshot(self, page: Any) -> list[dict[str, Any]]:
        """Look at the page."""
        return await self._seen(page)

    async def _seen(self, page: Any) -> list[dict[str, Any]]:
        picture = await page.screenshot()
        if self.screenshot_dir is not None:
            self.screenshot_dir.mkdir(parents=True, exist_ok=True)
            number = len(list(self.screenshot_dir.iterdir()))
            (self.screenshot_dir / f"{number:06}.png").write_bytes(picture)
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        return [
            {"type": "text", "text": f"{page.url}: {await page.title()}"},
            {"type": "image_url", "image_url": {"url": url}},
        ]


_DOM_TOOLS = ("navigate", "observe", "act", "extract")
# fmt: off
_CUA_TOOLS = (
    "click", "double_click", "type_text", "keypress", "scroll", "goto", "back", "forward", "wait", "screenshot",
)
# fmt: on


def _parameters(tool: Any) -> tuple[str, ...]:
    return tool.__func__.__code__.co_varnames[: tool.__func__.__code__.co_argcount]


def without_old_screenshots(messages: Messages, kept: int) -> Messages:
    """The messages with all but the latest `kept` screenshots replaced by a word; the originals stay as they are."""
    cleaned: list[Any] = []
    for message in reversed(messages):
        content = message.get("content")
        if message["role"] == "tool" and isinstance(content, list):
            parts = []
            for part in reversed(content):
                is_picture = isinstance(part, Mapping) and part.get("type") == "image_url"
                kept -= is_picture
                parts.append(_OLD_SCREENSHOT if is_picture and kept < 0 else part)
            if _OLD_SCREENSHOT in parts:
                message = type(message)(**{**message, "content": parts[::-1]})
        cleaned.append(message)
    return cleaned[::-1]


__all__ = ["BrowserEnv", "BrowserSandboxError", "ModeType"]
