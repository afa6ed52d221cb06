"""The generated reference is what the code says."""

import sys
from importlib import util
from pathlib import Path

ROOT = Path(__file__).parents[2]

_spec = util.spec_from_file_location(
    "write_reference", Path(__file__).with_name("write_reference.py")
)
assert _spec is not None
assert _spec.loader is not None
write_reference = util.module_from_spec(_spec)
sys.modules["write_reference"] = write_reference
_spec.loader.exec_module(write_reference)


def test_the_command_reference_is_up_to_date_and_lists_every_option():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

    assert page == write_reference.command_page(), "run `make docs`"
    for name in write_reference.COMMANDS:
        assert f"## vf-{name}\n" in page
    assert "### prime env push\n" in page


def test_the_api_reference_has_every_public_name():
    import verifiers

    page = write_reference.api_page()
    for name in verifiers.__all__:
        assert f"### {name}\n" in page or write_reference.entry_of(name) is None
