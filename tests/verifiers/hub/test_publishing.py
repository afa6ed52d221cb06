"""The next version of a project, written into its pyproject.toml."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from verifiers.errors import ConfigError
from verifiers.hub.publishing import raised, with_version_raised


@pytest.mark.parametrize(
    ("version", "bump", "expected"),
    [
        ("1.2.3", "patch", "1.2.4"),
        ("1.2", "patch", "1.2.1"),
        ("1", "patch", "1.0.1"),
        ("1.2.3rc1", "patch", "1.2.3"),
        ("0.1.12.dev3", "patch", "0.1.12"),
        ("1.2.3.post1", "patch", "1.2.4"),
        ("1.2.3", "rc", "1.2.3rc0"),
        ("1.2.3.rc1", "rc", "1.2.3rc2"),
        ("1.2.3", "post", "1.2.3.post0"),
        ("1.2.3rc1", "post", "1.2.3rc1.post0"),
        ("1.2.3.post1", "post", "1.2.3.post2"),
    ],
)
def test_versions_are_raised_as_the_public_command_does_where_that_is_a_version(
    version, bump, expected
):
    assert raised(version, bump) == expected


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=5),
    st.sampled_from(["", "rc2", ".post3", ".dev1"]),
)
def test_a_raised_version_is_a_later_one(numbers, end):
    version = ".".join(map(str, numbers)) + end
    for bump in ("patch", "post"):
        assert Version(raised(version, bump)) > Version(version)


@pytest.mark.parametrize(("version", "bump"), [("1.0.post1", "rc"), ("one", "patch")])
def test_versions_that_cannot_be_raised_are_said(version, bump):
    with pytest.raises(ConfigError):
        raised(version, bump)


def test_only_the_projects_version_line_changes():
    text = (
        '# version = "0"\n[tool.x]\nversion = "9"\n[project]\nname = "a"\n'
        "version = '1.0' # why\n[b]\nversion = \"8\"\n"
    )
    assert with_version_raised(text, "patch") == text.replace("'1.0'", "'1.0.1'")
    for broken in ("[tool]\n", '[project]\ndynamic = ["version"]\n[x]\nversion = "1"\n'):
        with pytest.raises(ConfigError):
            with_version_raised(broken, "patch")
