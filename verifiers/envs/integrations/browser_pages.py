"""One headless Chromium an event loop, by Playwright, and what a model sees and does on its pages."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from verifiers.errors import BrowserSandboxError, ConfigError, ToolCallError

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
    """The browser could not be started, or has gone."""


class Element(NamedTuple):
    """Something on a page that can be acted on."""

    number: int
    role: str
    name: str
    value: str

    def __str__(self) -> str:
        value = f" = {self.value!r}" if self.value else ""
        return f'[{self.number}] {self.role} "{self.name}"{value}'


class Action(NamedTuple):
    """What an instruction asks for."""

    verb: str
    text: str
    """What to type or select, or the key to press."""
    target: str
    """The element's number in brackets, or words of its name; '' for the key presses."""


def parse_action(instruction: str) -> Action:
    """An instruction in the form that `act` describes. Raises ToolCallError that shows the forms."""
    found = _ACTION.match(instruction)
    if found is not None:
        verb, rest = found["verb"].lower(), found["rest"].strip().rstrip(".")
        into = _TEXT_INTO.match(rest)
        if verb in ("type", "enter", "fill", "select", "choose"):
            if into is not None:
                kind = "select" if verb in ("select", "choose") else "type"
                return Action(kind, into["text"], into["target"])
        elif verb == "press" and rest and not _NUMBER.search(rest):
            return Action("press", rest.strip("\"'"), "")
        elif rest:
            kind = {"tap": "click", "press": "click", "tick": "check"}.get(verb, verb)
            return Action(kind, "", rest)
    raise ToolCallError(
        f'{instruction!r} is not understood. Say one of: click [3]; click "Sign in"; type "text" into [4]; '
        'select "option" in [5]; check [6]; uncheck [6]; press Enter.'
    )


def chosen(elements: Sequence[Element], target: str) -> Element:
    """The element an instruction means, by number or by words of its name and role. Raises ToolCallError when it is
    none or more than one.
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
    """The elements, one a line."""
    lines = [str(element) for element in elements[:MOST_ELEMENTS]]
    more = len(elements) - len(lines)
    return "\n".join(lines + ([f"… and {more} more"] if more else [])) or "Nothing to act on."


async def elements_of(page: Any) -> list[Element]:
    """What can be acted on, numbered as it is now."""
    return [Element(**found) for found in await page.evaluate(_LIST_ELEMENTS)]


async def perform(page: Any, action: Action) -> str:
    """Act on the page and say what was done."""
    if action.verb == "press":
        await page.keyboard.press(action.text)
        return f"Pressed {action.text}."
    element = chosen(await elements_of(page), action.target)
    place = page.locator(f'[data-vf-number="{element.number}"]')
    match action.verb:
        case "type":
            await place.fill(action.text, timeout=ACTION_TIMEOUT_MS)
        case "select":
            await place.select_option(action.text, timeout=ACTION_TIMEOUT_MS)
        case "check" | "uncheck":
            await place.set_checked(action.verb == "check", timeout=ACTION_TIMEOUT_MS)
        case _:
            await place.click(timeout=ACTION_TIMEOUT_MS)
    return f"Done: {action.verb} {element}."


class Browsers:
    """A browser for each event loop, started when it is first needed and closed with the loop."""

    def __init__(self, *, allowed_hosts: Sequence[str] | None = None) -> None:
        self._allowed_hosts = None if allowed_hosts is None else {h.lower() for h in allowed_hosts}
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Running] = WeakKeyDictionary()

    async def new_page(self, width: int, height: int) -> Any:
        """A page with cookies and storage of its own; close its `context`."""
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
                # A loop that ends finishes its asynchronous generators first: the hook by which the browser ends.
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
                    "Chromium cannot be started. Install it (`playwright install chromium`, or your system's package "
                    f"chromium): {str(error).splitlines()[0]}"
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
