"""A run as static files: every link leads to a file of the bundle."""

from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

from verifiers.errors import ConfigError
from verifiers.view.bundle import write_bundle


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.policies: list[str] = []
        self.forms = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [value for name in ("href", "src") if (value := values.get(name))]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(values.get("content") or "")
        self.forms += values.get("method") == "post"


def test_every_link_of_a_bundle_leads_to_a_file_in_it(
    run_folder: Path, tmp_path: Path, samples: ModuleType
) -> None:
    target = tmp_path / "site"
    pages = write_bundle(run_folder, target)
    files = list(target.rglob("*.html"))
    assert len(files) == pages == 1 + 1 + 1 + 6 + 24
    for path in files:
        links = Links(path.read_text())
        assert len(links.policies) == 1
        assert "script-src 'self'" in links.policies[0]
        assert links.forms == 0
        for link in links.found:
            address = urlsplit(link)
            if address.scheme == "data" or link.startswith("#"):
                continue
            assert not address.scheme
            assert not address.netloc
            assert not address.query, (path, link)
            linked = (path.parent / address.path).resolve()
            assert linked.is_file(), (path, link)
            assert linked.is_relative_to(target.resolve())
    assert "What is 1 + 1?" in (target / "rollout" / "4.html").read_text()


def test_a_bundle_of_hostile_rollouts_contains_no_markup_of_them(
    tmp_path: Path, samples: ModuleType
) -> None:
    run = samples.write_run(tmp_path / "hostile", samples.hostile_outputs(), env_id=samples.SCRIPT)
    write_bundle(run, tmp_path / "site")
    for path in (tmp_path / "site").rglob("*.html"):
        assert "<script>window" not in path.read_text()


def test_a_bundle_replaces_a_bundle_and_no_other_folder(run_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    assert write_bundle(run_folder, target) == write_bundle(run_folder, target)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        write_bundle(run_folder, other)
    assert [path.name for path in other.iterdir()] == ["mine.txt"]
