"""The pages: what they show, hostile text, access, notes."""

import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from verifiers.view import transcript
from verifiers.view.app import create_app
from verifiers.view.comparing import difference
from verifiers.view.sources import FolderSource, key_of

HOST = "127.0.0.1:8300"
ALL = ("", "/rollouts", "/examples", "/examples/0", "/rollouts/0")


class Page(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


async def get(pages: httpx.AsyncClient, address: str) -> str:
    response = await pages.get(address)
    assert response.status_code == 200, (address, response.text)
    return response.text


async def test_the_list_of_runs_filters_and_sorts(
    pages: httpx.AsyncClient, run_folder: Path, samples: ModuleType, tmp_path: Path
) -> None:
    samples.write_run(
        tmp_path / "evals" / "words--large" / "bbbb",
        [samples.output(0)],
        env_id="words",
        model="large",
        avg_reward=0.9,
    )
    text = await get(pages, "/")
    assert ">sums<" in text
    assert ">words<" in text
    assert "0.438" in text
    assert ">words<" not in await get(pages, "/?q=SUMS")
    best = await get(pages, "/?sort=-reward")
    assert best.index(">words<") < best.index(">sums<")
    worst = await get(pages, "/?sort=reward")
    assert worst.index(">words<") > worst.index(">sums<")


async def test_a_run_whose_metadata_is_broken_is_listed_with_the_reason(
    pages: httpx.AsyncClient, run_folder: Path, key: str
) -> None:
    (run_folder / "metadata.json").write_text("{")
    assert "cannot be read" in await get(pages, "/")
    assert "Mean reward" in await get(pages, f"/runs/{key}")


async def test_a_run_shows_its_numbers_and_bins_lead_to_rollouts(
    pages: httpx.AsyncClient, key: str
) -> None:
    text = await get(pages, f"/runs/{key}")
    for words in (
        "Mean reward",
        "95 % interval",
        "pass@k",
        "ToolError",
        "Where the time goes",
        "temperature",
    ):
        assert words in text
    page = Page(text)
    bins = [
        attrs["href"]
        for tag, attrs in page.tags
        if tag == "a" and "filter=reward" in (attrs.get("href") or "")
    ]
    assert len(bins) == 4
    assert bins[0] is not None
    table = await get(pages, bins[0])
    assert "6 of 24" in re.sub(r"<[^>]+>|\s+", " ", table).replace("  ", " ")


async def test_the_table_of_rollouts_filters_searches_and_sorts(
    pages: httpx.AsyncClient, key: str
) -> None:
    text = await get(
        pages, f"/runs/{key}/rollouts?filter=reward+%3D%3D+1&search=LOOK+it&sort=-example_id"
    )
    ids = re.findall(r'title="All rollouts of the example"><bdi>(\d)<', text)
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 6
    assert "<mark>look it</mark>" in text
    wrong = await get(pages, f"/runs/{key}/rollouts?filter=reward+%3C+and")
    assert 'role="alert"' in wrong
    assert "Expected a field or a value" in wrong
    assert "There is no column" in await get(pages, f"/runs/{key}/rollouts?sort=nothing")


async def test_a_rollout_shows_messages_scores_and_neighbours(
    pages: httpx.AsyncClient, key: str
) -> None:
    text = await get(pages, f"/runs/{key}/rollouts/6?filter=reward+%3D%3D+1&sort=")
    for words in (
        "Reasoning",
        "search",
        "query: sum of 1",
        "The sum is 2.",
        "Compared with the answer.",
        "hard",
    ):
        assert words in text
    assert "2 of 6" in text
    hrefs = [
        attrs.get("href") for tag, attrs in Page(text).tags if attrs.get("rel") in ("next", "prev")
    ]
    assert [href.split("?")[0].rpartition("/")[2] for href in hrefs if href] == ["3", "9"]
    failed = await get(pages, f"/runs/{key}/rollouts/5")
    assert "the tool failed" in failed
    assert "Traceback" in failed


async def test_the_rollouts_of_an_example_are_side_by_side(
    pages: httpx.AsyncClient, key: str
) -> None:
    text = await get(pages, f"/runs/{key}/examples/2")
    assert text.count('class="member"') == 4
    assert text.count("What is 2 + 2?") == 1
    assert "Answer</b>" in text


async def test_raw_data_are_plain_text(pages: httpx.AsyncClient, key: str) -> None:
    for address in (f"/runs/{key}/rollouts/0/raw", f"/runs/{key}/rollouts/0/messages/2"):
        response = await pages.get(address)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        assert "sandbox" in response.headers["content-security-policy"]


@pytest.mark.parametrize(
    "address",
    [
        "/runs/unknown",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2fapp.py",
        "/static/app.py",
        "/runs/KEY/rollouts/99",
        "/runs/KEY/rollouts/-1",
        "/runs/KEY/examples/99",
        "/runs/KEY/rollouts/0/messages/99",
        "/nothing",
    ],
)
async def test_unknown_addresses_are_pages_with_404(
    pages: httpx.AsyncClient, key: str, address: str
) -> None:
    response = await pages.get(address.replace("KEY", key))
    assert response.status_code == 404
    assert "passwd" not in response.text
    assert "root:" not in response.text


async def test_invalid_parameters_are_pages_with_400(pages: httpx.AsyncClient, key: str) -> None:
    response = await pages.get(f"/runs/{key}/rollouts?page=minus")
    assert response.status_code == 400
    assert "text/html" in response.headers["content-type"]


# --- hostile text


async def test_no_text_of_a_rollout_becomes_markup(
    pages: httpx.AsyncClient, tmp_path: Path, samples: ModuleType
) -> None:
    folder = samples.write_run(
        tmp_path / "evals" / "hostile" / "x",
        samples.hostile_outputs(),
        env_id=samples.SCRIPT,
        model=samples.HOSTILE[4],
        sampling_args={samples.SCRIPT: samples.SCRIPT},
        failure=samples.SCRIPT,
    )
    key = key_of(folder)
    addresses = ["/", f"/runs/{key}", f"/runs/{key}/rollouts", f"/runs/{key}/examples"]
    addresses += [f"/runs/{key}/rollouts?search=script&filter=reward+%3C+2"]
    for row in range(len(samples.HOSTILE)):
        addresses += [f"/runs/{key}/rollouts/{row}", f"/runs/{key}/examples/{row}"]
    for address in addresses:
        text = await get(pages, address)
        for tag, attrs in Page(text).tags:
            names = set(attrs)
            assert not {name for name in names if name.startswith("on")}, (address, tag, attrs)
            assert "style" not in names, (address, tag)
            if tag == "script":
                assert attrs.get("src") == "/static/view.js"
            link = attrs.get("href") or attrs.get("src") or "#"
            assert link.startswith(("/", "#", "?", "data:,")), (address, tag, link)
            assert tag != "img"
        assert "\x1b" not in text
        assert "\u202e" not in text


async def test_templates_in_texts_are_texts(
    pages: httpx.AsyncClient, tmp_path: Path, samples: ModuleType
) -> None:
    folder = samples.write_run(tmp_path / "hostile", samples.hostile_outputs())
    assert "{{ 7 * 7 }}" in await get(pages, f"/runs/{key_of(folder)}/rollouts/5")


async def test_every_response_has_a_strict_policy(pages: httpx.AsyncClient, key: str) -> None:
    for address in ("/", f"/runs/{key}", "/static/view.css", "/nothing", "/runs/unknown"):
        response = await pages.get(address)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


def test_embedded_images_are_shown_and_others_are_not() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    view = transcript.message_view({"role": "user", "content": parts}, 0, is_prompt=True)
    assert view.images == ["data:image/png;base64,AAAA"]
    assert view.parts == ["image_url", "image_url"]


def test_long_texts_and_many_calls_are_cut(samples: ModuleType) -> None:
    message = {
        "role": "assistant",
        "content": "y" * 1_000_000,
        "tool_calls": [samples.tool_call(n, {"q": "z"}) for n in range(10_000)],
    }
    view = transcript.message_view(message, 0, is_prompt=False)
    assert len(view.text.text) + view.text.left_out == 1_000_000
    assert len(view.calls) + view.calls_left_out == 10_000
    assert len(view.calls) <= 50


async def test_messages_come_in_pages(
    pages: httpx.AsyncClient, tmp_path: Path, samples: ModuleType
) -> None:
    messages = [{"role": "assistant", "content": f"message {n}."} for n in range(120)]
    folder = samples.write_run(tmp_path / "long", [samples.output(0, completion=messages)])
    address = f"/runs/{key_of(folder)}/rollouts/0"
    first, last = await get(pages, address), await get(pages, f"{address}?page=3")
    assert "message 0." in first
    assert "message 60." not in first
    assert "message 119." in last


def test_tokens_have_colours_by_log_probability_and_mask() -> None:
    step = {
        "tokens": {
            "completion_ids": [5, 6, 7],
            "completion_logprobs": [0.0, -3.0, None],
            "completion_mask": [1, 1, 0],
        },
        "response": {"logprobs": {"content": [{"token": "a"}, {"token": "\x1b"}, {"token": "c"}]}},
    }
    [turn] = transcript.token_turns([step, {"tokens": None}])
    assert [token.text for token in turn.tokens] == ["a", "␛", "c"]
    assert [token.bucket for token in turn.tokens] == [0, 4, -1]
    assert [token.is_masked for token in turn.tokens] == [False, False, True]
    assert turn.mean_logprob == pytest.approx(-1.5)


# --- access


async def test_a_token_is_needed_and_becomes_a_cookie(tmp_path: Path, key: str) -> None:
    app = create_app(FolderSource([tmp_path]), token="secret", hosts=[HOST])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=f"http://{HOST}"
    ) as client:
        for address in ("/", f"/runs/{key}", f"/runs/{key}/rollouts/0/raw", "/?token=wrong"):
            assert (await client.get(address)).status_code == 401
        entered = await client.get(f"/runs/{key}?token=secret&x=1")
        assert entered.status_code == 303
        assert entered.headers["location"] == f"/runs/{key}?x=1"
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await client.get(f"/runs/{key}")).status_code == 200


async def test_other_host_names_are_refused(pages: httpx.AsyncClient, key: str) -> None:
    for host in ("attacker.example", "127.0.0.1:9999", ""):
        response = await pages.get("/", headers={"Host": host})
        assert response.status_code == 421


# --- notes


async def test_notes_are_stored_beside_the_results_and_shown(
    pages: httpx.AsyncClient, run_folder: Path, key: str, samples: ModuleType
) -> None:
    form = {"row": "6", "labels": f"wrong answer, {samples.SCRIPT[:50]}", "text": samples.SCRIPT}
    headers = {"Origin": f"http://{HOST}"}
    written = await pages.post(f"/runs/{key}/note", data=form, headers=headers)
    assert written.status_code == 303
    assert written.headers["location"] == f"/runs/{key}/rollouts/6"
    assert (run_folder / "notes.jsonl").read_text().count("\n") == 1
    for address in (f"/runs/{key}/rollouts/6", f"/runs/{key}/rollouts", f"/runs/{key}"):
        text = await get(pages, address)
        assert "wrong answer" in text
        assert "<script>w" not in text
    await pages.post(f"/runs/{key}/note", data={"labels": "keep"}, headers=headers)
    assert "keep" in await get(pages, "/?label=keep")
    await pages.post(f"/runs/{key}/note", data={"row": "6"}, headers=headers)
    assert "wrong answer" not in await get(pages, f"/runs/{key}/rollouts/6")


async def test_notes_from_other_sites_are_refused(
    pages: httpx.AsyncClient, run_folder: Path, key: str
) -> None:
    for headers in ({}, {"Origin": "http://attacker.example"}, {"Origin": "null"}):
        response = await pages.post(f"/runs/{key}/note", data={"labels": "x"}, headers=headers)
        assert response.status_code == 403
    assert not (run_folder / "notes.jsonl").exists()


async def test_a_note_that_is_too_long_is_refused(pages: httpx.AsyncClient, key: str) -> None:
    response = await pages.post(
        f"/runs/{key}/note", data={"labels": "x" * 100}, headers={"Origin": f"http://{HOST}"}
    )
    assert response.status_code == 400
    assert "at most 60 characters" in response.text


# --- several runs


@pytest.fixture
def two_keys(tmp_path: Path, run_folder: Path, samples: ModuleType) -> list[str]:
    """Keys of two runs of which the second lost on example 3 and won on example 0."""
    outputs = samples.usual_outputs()
    for output in outputs:
        if output["example_id"] == 0:
            output["reward"] = 1.0
        if output["example_id"] == 3:
            output["reward"] = 0.0
            output["completion"][-1:] = [
                {"role": "assistant", "content": f"The answer is {samples.SCRIPT}"}
            ]
    other = samples.write_run(tmp_path / "evals" / "sums--large" / "bbbb", outputs, model="large")
    return [key_of(run_folder), key_of(other)]


async def test_compared_runs_show_the_verdict_and_the_largest_losses_first(
    pages: httpx.AsyncClient, two_keys: list[str]
) -> None:
    text = await get(pages, f"/compare?run={two_keys[0]}&run={two_keys[1]}")
    assert "No difference between large and small was detected" in text
    assert "2 of 6" in text
    examples = re.findall(r"example=(\w+)[^>]*><bdi>(\d)<", text)
    assert [name for _, name in examples] == ["3", "0"]
    swapped = await get(pages, f"/compare?run={two_keys[1]}&run={two_keys[0]}")
    assert [name for _, name in re.findall(r"example=(\w+)[^>]*><bdi>(\d)<", swapped)] == ["0", "3"]
    side = await get(
        pages, f"/compare?run={two_keys[0]}&run={two_keys[1]}&example={examples[0][0]}"
    )
    assert "<del>6" in side
    assert "<script>w" not in re.sub(r"</?(?:ins|del)>", "", side)
    assert "What is 3 + 3?" in side


@pytest.mark.parametrize("count", [0, 1, 9])
async def test_a_comparison_needs_two_to_eight_runs(
    pages: httpx.AsyncClient, tmp_path: Path, samples: ModuleType, count: int
) -> None:
    keys = [
        key_of(samples.write_run(tmp_path / f"run{number}", [samples.output(0)]))
        for number in range(count)
    ]
    response = await pages.get("/compare", params={"run": keys})
    assert response.status_code == 400
    assert "2 to 8 runs" in response.text


def test_a_difference_of_texts_names_words() -> None:
    changes = [tuple(one) for one in difference("a big cat", "a small cat")]
    assert changes == [("same", "a "), ("removed", "big"), ("added", "small"), ("same", " cat")]
    long = "word " * 5000
    assert [one.kind for one in difference(long, long)] == ["same"]
