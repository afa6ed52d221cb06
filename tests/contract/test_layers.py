"""Who may import whom: the table of docs/architecture.md, kept true."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYERS = {
    int(number): units.replace("`", "").split()
    for number, units in re.findall(r"^\| (\d) \| (`.*`) \|$", PAGE, re.MULTILINE)
}
LAYER_OF = {unit: layer for layer, units in LAYERS.items() for unit in units}
SIBLINGS_MAY_MEET = {0, 6, 7}
"""Layers whose units may import each other; in the others they may not."""
MODULES = sorted(
    path for path in (ROOT / "verifiers").rglob("*.py") if "templates" not in path.parts
)


def unit_of(module: str) -> str:
    """`verifiers.clients.connect` → `clients`; the longest name in the table that fits."""
    parts = module.split(".")[1:] or ["__init__"]
    for end in range(len(parts), 0, -1):
        if (unit := ".".join(parts[:end])) in LAYER_OF:
            return unit
    raise AssertionError(f"{module} has no place in the table of layers; give it one.")


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything a module imports at run time, inside functions too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # for type checkers only
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _absolute(node, path) if node.level else node.module or ""


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    """Code that is sent into a sandbox imports its neighbours relatively; elsewhere names are absolute."""
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


@pytest.mark.parametrize("unit", LAYER_OF)
def test_a_unit_of_the_table_of_layers_exists(unit: str) -> None:
    path = ROOT / "verifiers" / unit.replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").exists(), f"{unit} does not exist"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_the_layers_below(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    unit = unit_of(name)
    layer = LAYER_OF[unit]
    for imported in imports(path):
        package = imported.partition(".")[0]
        assert package != "hub_server", f"{name} imports {imported}"
        assert package != "vf_cli" or unit == "scripts", f"{name} imports {imported}"
        if package != "verifiers":
            continue
        assert imported != "verifiers" or unit == "__init__", f"{name} imports the root package"
        other = unit_of(imported)
        if other != unit:
            allowed = LAYER_OF[other] < layer or (
                LAYER_OF[other] == layer and layer in SIBLINGS_MAY_MEET
            )
            assert allowed, f"{name} (layer {layer}) imports {imported} (layer {LAYER_OF[other]})"


HUB_MAY_IMPORT = (
    "verifiers.files",
    "verifiers.hub.wire",
    "verifiers.packages.archive",
    "verifiers.packages.library",
    "verifiers.packages.wheel",
    "verifiers.types",
)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "hub_server").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_hub_server_knows_the_library_only_by_its_wire(path: Path) -> None:
    for imported in imports(path):
        package = imported.partition(".")[0]
        assert package != "vf_cli"
        assert package != "verifiers" or imported in HUB_MAY_IMPORT, f"{path} imports {imported}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "environments").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_bundled_environments_use_only_public_names(path: Path) -> None:
    for imported in imports(path):
        if imported.startswith("verifiers."):
            assert imported == "verifiers.testing", f"{path} imports {imported}; use `vf.…`"


BY_NAME = {"verifiers.envs.environment": "verifiers.serve.server_process"}
"""Module → module of a higher layer that it imports by its name, when an environment starts worker processes."""


def test_only_known_modules_import_a_higher_layer_by_name() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES}
    found = {}
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Constant) and node.value in names and node.value != name):
                continue
            if LAYER_OF[unit_of(node.value)] > LAYER_OF[unit_of(name)]:
                found[name] = node.value
    assert found == BY_NAME
