"""`BrowserEnv`: a web browser for the model, by elements of the page (`dom`) or by coordinates (`cua`)."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from verifiers.decorators import cleanup, teardown
from verifiers.envs.tool_env import StatefulToolEnv
from verifiers.errors import BrowserSandboxError, ConfigError, SandboxError, ToolCallError
from verifiers.messages import content_text, normalize_messages
from verifiers.state import State
from verifiers.types import Messages, UserMessage

INSTALLED = ("chromium", "chromium-browser", "google-chrome")
ACTION_TIMEOUT_MS = 10_000
MOST_ELEMENTS = 200

_LIST_ELEMENTS = """
() => {
  const wanted = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [role=button], [role=link], '
    + '[role=checkbox], [role=radio], [role=tab], [role=menuitem], [role=option], [contenteditable=true], [onclick]';
  const roles = {A: 'link', BUTTON: 'button', SELECT: 'select', TEXTAREA: 'textbox', SUMMARY: 'button'};
  const found = [];
  for (const element of document.querySelectorAll(wanted)) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || getComputedStyle(element).visibility === 'hidden') continue;
    const number = found.length + 1;
    element.setAttribute('data-vf-number', number);
    const type = element.getAttribute('type');
    const inputs = {checkbox: 'checkbox', radio: 'radio', submit: 'button', button: 'button'};
    const role = element.getAttribute('role') || (element.tagName === 'INPUT' ? inputs[type] || 'textbox'
      : roles[element.tagName] || 'element');
    const label = element.labels && element.labels.length ? element.labels[0].innerText : '';
    const name = element.getAttribute('aria-label') || label || element.innerText || element.getAttribute('placeholder')
      || element.getAttribute('title') || element.getAttribute('alt') || element.getAttribute('name')
      || (role === 'button' ? element.value : '') || '';
    found.push({number, role, name: name.trim().replace(/\\s+/g, ' ').slice(0, 120),
      value: String(element.type === 'checkbox' || element.type === 'radio' ? element.checked : element.value || '')
        .slice(0, 120)});
  }
  return found;
}
"""
_ACTION = re.compile(
    r"""^\s*(?P<verb>click|tap|press|type|enter|fill|select|choose|check|uncheck|tick)\b
        (?:\s+(?:on\s+)?(?:the\s+)?)?(?P<rest>.*)$""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_TEXT_INTO = re.compile(
    r"""^(?P<quote>["'])(?P<text>.*?)(?P=quote)\s+(?:in|into|from|on|to)\s+(?:the\s+)?(?P<target>.+)$""",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"\[(\d+)\]")


class BrowserError(BrowserSandboxError):
    """The browser could not be started, or it crashed."""


class Element(NamedTuple):
    """An element of a page that can be acted on."""

    number: int
    role: str
    name: str
    value: str

    def __str__(self) -> str:
        value = f" = {self.value!r}" if self.value else ""
        return f'[{self.number}] {self.role} "{self.name}"{value}'


class PageAction(NamedTuple):
    """A parsed instruction."""

    verb: str
    text: str
    """The text to type or select, or the key to press."""
    target: str
    """The number of the element in brackets, or words of its name; '' for keys."""


def parse_action(instruction: str) -> PageAction:
    """Return an instruction in the form that `act` describes. Raises ToolCallError that lists the forms."""
    found = _ACTION.match(instruction)
    if found is not None:
        verb, rest = found["verb"].lower(), found["rest"].strip().rstrip(".")
        into = _TEXT_INTO.match(rest)
        if verb in ("type", "enter", "fill", "select", "choose"):
            if into is not None:
                kind = "select" if verb in ("select", "choose") else "type"
                return PageAction(kind, into["text"], into["target"])
        elif verb == "press" and rest and not _NUMBER.search(rest):
            return PageAction("press", rest.strip("\"'"), "")
        elif rest:
            kind = {"tap": "click", "press": "click", "tick": "check"}.get(verb, verb)
            return PageAction(kind, "", rest)
    raise ToolCallError(
        f'{instruction!r} is not a valid instruction. Use one of: click [3]; click "Sign in"; type "text" into [4]; '
        'select "option" in [5]; check [6]; uncheck [6]; press Enter.'
    )


def chosen(elements: Sequence[Element], target: str) -> Element:
    """Return the element of an instruction, found by number or by words of its name and role. Raises ToolCallError if
    no element or several elements match.
    """
    if number := _NUMBER.search(target):
        for element in elements:
            if element.number == int(number[1]):
                return element
        raise ToolCallError(f"There is no element [{number[1]}] now. {described(elements)}")
    wanted = target.strip().strip("\"'").lower()
    exact = [element for element in elements if element.name.lower() == wanted]
    words = set(re.findall(r"\w+", wanted))
    close = exact or [
        element
        for element in elements
        if words and words <= set(re.findall(r"\w+", f"{element.name} {element.role}".lower()))
    ]
    if len(close) == 1:
        return close[0]
    what = "several elements" if close else "no element"
    raise ToolCallError(f"{target!r} means {what}. {described(close or elements)}")


def described(elements: Sequence[Element]) -> str:
    """Return the elements as text, one per line."""
    lines = [str(element) for element in elements[:MOST_ELEMENTS]]
    more = len(elements) - len(lines)
    return "\n".join(lines + ([f"… and {more} more"] if more else [])) or "Nothing to act on."


async def elements_of(page: Any) -> list[Element]:
    """Return the elements that can be acted on, with their current numbers."""
    return [Element(**found) for found in await page.evaluate(_LIST_ELEMENTS)]


async def perform(page: Any, action: PageAction) -> str:
    """Act on the page. Return a description of the action."""
    if action.verb == "press":
        await page.keyboard.press(action.text)
        return f"Pressed {action.text}."
    element = chosen(await elements_of(page), action.target)
    locator = page.locator(f'[data-vf-number="{element.number}"]')
    match action.verb:
        case "type":
            await locator.fill(action.text, timeout=ACTION_TIMEOUT_MS)
        case "select":
            await locator.select_option(action.text, timeout=ACTION_TIMEOUT_MS)
        case "check" | "uncheck":
            await locator.set_checked(action.verb == "check", timeout=ACTION_TIMEOUT_MS)
        case _:
            await locator.click(timeout=ACTION_TIMEOUT_MS)
    return f"Done: {action.verb} {element}."


class Browsers:
    """One browser per event loop, started on first use and closed with the loop."""

    def __init__(self, *, allowed_hosts: Sequence[str] | None = None) -> None:
        self._allowed_hosts = None if allowed_hosts is None else {h.lower() for h in allowed_hosts}
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Running] = WeakKeyDictionary()

    async def new_page(self, width: int, height: int) -> Any:
        """Return a page with separate cookies and storage. The caller closes its `context`."""
        running = self._by_loop.setdefault(asyncio.get_running_loop(), _Running())
        browser = await running.browser()
        context = await browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(ACTION_TIMEOUT_MS)
        if self._allowed_hosts is not None:
            await context.route("**/*", self._let_through)
        return await context.new_page()

    async def _let_through(self, route: Any) -> None:
        parts = urlsplit(route.request.url)
        is_free = parts.scheme in ("data", "about", "blob")
        if is_free or (parts.hostname or "").lower() in (self._allowed_hosts or ()):
            await route.continue_()
        else:
            await route.abort("blockedbyclient")

    async def aclose(self) -> None:
        """Close the browser of the running event loop."""
        running = self._by_loop.pop(asyncio.get_running_loop(), None)
        if running is not None:
            await running.aclose()


class _Running:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._browser: Any = None
        self._guard: AsyncGenerator[None] | None = None

    async def browser(self) -> Any:
        async with self._lock:
            if self._browser is None or not self._browser.is_connected():
                await self.aclose()
                # A loop that ends finishes its asynchronous generators first, and this generator then closes the
                # browser.
                self._guard = self._until_closed()
                await anext(self._guard)
            return self._browser

    async def _until_closed(self) -> AsyncGenerator[None]:
        try:
            from playwright.async_api import Error as PlaywrightError
            from playwright.async_api import async_playwright
        except ImportError as error:
            raise ConfigError(
                "BrowserEnv drives Chromium by Playwright: pip install 'playwright>=1.49'."
            ) from error
        async with async_playwright() as playwright:
            program = next(filter(None, map(shutil.which, INSTALLED)), None)
            try:
                self._browser = await playwright.chromium.launch(
                    executable_path=program, headless=True
                )
            except PlaywrightError as error:
                raise ConfigError(
                    "Chromium cannot be started. Install it (`playwright install chromium`, or the package chromium "
                    f"of your system): {str(error).splitlines()[0]}"
                ) from error
            try:
                yield
            finally:
                browser, self._browser = self._browser, None
                await browser.close()

    async def aclose(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            await guard.aclose()


ModeType = Literal["dom", "cua"]
MOST_PAGE_CHARACTERS = 20_000
_HIDDEN = ("page", "state")
_OLD_SCREENSHOT = {"type": "text", "text": "[an earlier screenshot]"}


class BrowserEnv(StatefulToolEnv):
    """Gives each rollout a page with separate cookies in a headless Chromium of this machine.

    `mode="dom"` offers the tools `navigate`, `observe`, `act` and `extract`. `mode="cua"` offers `click`,
    `type_text`, `screenshot` and others, each answered with a screenshot. v0 used Browserbase and Stagehand in
    their cloud. Arguments that need that cloud (`env="BROWSERBASE"`, `project_id`, `proxies`, `advanced_stealth`)
    raise ConfigError; arguments about its servers and sandboxes are ignored.

    The browser uses the network of this machine; `allowed_hosts` limits the hosts of pages. Screenshots are saved
    in `screenshot_dir`, unless `save_screenshots` is False.
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
                f"BrowserEnv runs a Chromium on this machine, but {', '.join(asked)} needs the cloud of Browserbase. "
                "Omit it; there is no replacement for proxies and cloud sessions."
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
        """Open the page of the rollout."""
        self._keep_open()
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
        """Add the page, and the state for the tools that take it."""
        page = state["browser_page"]
        if page.is_closed():
            raise BrowserError(
                "The page of the rollout has been closed; the browser may have crashed."
            )
        known = {"page": page, "state": state}
        wanted = self.skipped_args.get(tool_name, [])
        return {**tool_args, **{name: known[name] for name in wanted}}

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the conversation without screenshots older than the latest `keep_recent_screenshots`."""
        messages = await super().get_prompt_messages(state)
        if self.keep_recent_screenshots is None:
            return messages
        return without_old_screenshots(messages, self.keep_recent_screenshots)

    @cleanup
    async def cleanup_session(self, state: State) -> None:
        """Close the page of the rollout."""
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
    """Return the messages with all but the latest `kept` screenshots replaced by text. The originals do not change."""
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
