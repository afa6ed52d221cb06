"""`BrowserEnv` with a real Chromium and pages of this machine."""

import base64
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.integrations.browser_env import (
    INSTALLED,
    BrowserEnv,
    Element,
    PageAction,
    chosen,
    parse_action,
)
from verifiers.testing import ScriptedClient, call, run

ROWS = [{"question": "Sign in.", "answer": "x"}]
PAGE = """<!doctype html><title>Shop</title><h1>Shop</h1><p>Tea costs 7.</p>
<form action=/hello><input name=who aria-label="Your name"><select aria-label=Size><option>small<option>large</select>
<label><input type=checkbox>Agree</label><button>Sign in</button></form><a href=/hello?who=link>About</a>
<button style="position:absolute;left:500px;top:300px;width:80px;height:40px"
 onclick="document.title='clicked'">Corner</button>"""


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_shop = self.path == "/"
        body = PAGE if is_shop else f"<!doctype html><title>Hello</title><p>{self.path}</p>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def needs_a_browser() -> None:
    pytest.importorskip("playwright", reason="the extra browser is not installed")
    if not any(map(shutil.which, INSTALLED)):
        pytest.skip("no Chromium is installed")


def results(output: Any) -> list[Any]:
    return [m["content"] for m in output["completion"] if m["role"] == "tool"]


async def test_a_model_reads_and_acts_by_elements(site: str) -> None:
    needs_a_browser()
    client = ScriptedClient(
        [
            [call("navigate", url=site)],
            [call("observe", instruction="sign in button")],
            [call("act", instruction='type "Ada" into [1]')],
            [
                call("act", instruction='select "large" in Size'),
                call("act", instruction="check Agree"),
            ],
            [call("extract", instruction="price of tea", schema_json='{"type": "integer"}')],
            "7",
            [call("act", instruction="dance")],
            [call("act", instruction='click "Sign in"')],
            "done",
        ]
    )
    env = BrowserEnv(dataset=ROWS, max_turns=20)
    [output] = await run(env, client)

    assert output["error"] is None
    opened, observed, typed, selected, checked, extracted, danced, clicked = results(output)
    assert opened == f"Opened {site}: Shop"
    assert '[4] button "Sign in"' in observed
    assert typed.startswith('Done: type [1] textbox "Your name".')
    assert selected.startswith("Done: select [2]")
    assert checked.startswith("Done: check [3]")
    assert extracted == "7"
    assert "Tea costs 7." in client.requests[5].prompt[-1]["content"]
    assert "is not a valid instruction. Use one of: click [3]" in danced
    assert f"The page is {site}hello?who=Ada" in clicked
    assert {t.name for t in client.requests[0].tools or []} == {
        "navigate",
        "observe",
        "act",
        "extract",
    }
    assert set((client.requests[0].tools or [])[3].parameters["properties"]) == {
        "instruction",
        "schema_json",
    }
    await env.aclose()


async def test_a_model_sees_screenshots_and_acts_by_coordinates(site: str, tmp_path: Any) -> None:
    needs_a_browser()
    steps = [
        call("goto", url=site),
        call("click", x=540, y=320),
        call("scroll", scroll_y=10),
        call("goto", url=f"{site}hello"),
        call("back"),
        call("forward"),
        call("keypress", keys=["Control", "a"]),
        call("type_text", text="x"),
        call("wait", time_ms=0),
        call("double_click", x=1, y=1),
        call("screenshot"),
    ]
    client = ScriptedClient([[step] for step in steps], then="done")
    env = BrowserEnv(
        mode="cua", dataset=ROWS, max_turns=20, keep_recent_screenshots=2, screenshot_dir=tmp_path
    )
    [output] = await run(env, client)

    assert output["error"] is None
    seen = results(output)
    assert all([part["type"] for part in one] == ["text", "image_url"] for one in seen[-2:])
    assert seen[1][0]["text"] == f"{site}: clicked"
    prefix, _, picture = seen[-1][1]["image_url"]["url"].partition(",")
    assert prefix == "data:image/png;base64"
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    pictures = [
        part["type"]
        for m in client.requests[-1].prompt
        if m["role"] == "tool"
        for part in m["content"]
    ]
    assert pictures.count("image_url") == 2
    assert len(list(tmp_path.iterdir())) == len(steps)
    await env.aclose()


async def test_rollouts_have_cookies_of_their_own_and_hosts_can_be_limited(site: str) -> None:
    needs_a_browser()
    env = BrowserEnv(dataset=ROWS, allowed_hosts=["example.org"])
    [output] = await run(env, ScriptedClient([[call("navigate", url=site)], "done"]))
    assert "ERR_BLOCKED_BY_CLIENT" in results(output)[0]
    first, second = [await env.browsers.new_page(300, 200) for _ in range(2)]
    assert first.context is not second.context
    await env.aclose()
    assert first.is_closed()


@pytest.mark.parametrize(
    "options",
    [{"env": "BROWSERBASE"}, {"project_id": "p"}, {"proxies": True}, {"advanced_stealth": True}],
)
def test_what_asks_for_the_cloud_is_refused_with_advice(options: Any) -> None:
    with pytest.raises(vf.ConfigError, match=f"{next(iter(options))} needs the cloud .*Omit it"):
        BrowserEnv(dataset=ROWS, **options)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(vf.ConfigError, match="must be 'dom' or 'cua'"):
        BrowserEnv(mode="x", dataset=ROWS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("instruction", "action"),
    [
        ("click [3]", PageAction("click", "", "[3]")),
        ('Click on the "Sign in" button.', PageAction("click", "", '"Sign in" button')),
        ('type "a b" into the search field', PageAction("type", "a b", "search field")),
        ("select 'large' from [5]", PageAction("select", "large", "[5]")),
        ("press Enter", PageAction("press", "Enter", "")),
        ("press [4]", PageAction("click", "", "[4]")),
        ("tick Agree", PageAction("check", "", "Agree")),
    ],
)
def test_instructions_are_understood(instruction: str, action: PageAction) -> None:
    assert parse_action(instruction) == action


def test_an_element_that_is_not_clear_is_said_with_the_choices() -> None:
    elements = [Element(1, "button", "Save", ""), Element(2, "link", "Save all", "")]
    assert chosen(elements, '"save"').number == 1
    assert chosen(elements, "link save").number == 2
    with pytest.raises(vf.ToolCallError, match=r"no element \[7\] now"):
        chosen(elements, "[7]")
    with pytest.raises(vf.ToolCallError, match=r"means no element.*\[1\] button"):
        chosen(elements, "Delete")
