"""The address in what `cloudflared` prints; the expected values are those of the public package."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.utils.tunnel_utils import extract_tunnel_url_from_line


@pytest.mark.parametrize(
    ("line", "url"),
    [
        (
            "2024 INF |  https://foo-bar.trycloudflare.com  |",
            "https://foo-bar.trycloudflare.com",
        ),
        ("https://a.b.trycloudflare.com/x y", "https://a.b.trycloudflare.com/x"),
        ("xhttps://foo.trycloudflare.com/", "https://foo.trycloudflare.com"),
        (
            "| https://foo.trycloudflare.com |https://bar.trycloudflare.com",
            "https://foo.trycloudflare.com",
        ),
        ("http://foo.trycloudflare.com", None),
        ("https://foo.com", None),
        ("https://trycloudflare.com", None),
        ("INF Requesting new quick Tunnel on trycloudflare.com...", None),
        ("", None),
    ],
)
def test_the_address_of_a_tunnel_is_found_in_its_output(line: str, url: str | None):
    assert extract_tunnel_url_from_line(line) == url


@given(st.text(), st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), st.text())
def test_an_address_is_found_among_anything_else(before: str, name: str, after: str):
    if "https" in before or "|" in before or "/" in before:
        return
    found = extract_tunnel_url_from_line(f"{before} https://{name}.trycloudflare.com {after}")
    assert found == f"https://{name}.trycloudflare.com"
