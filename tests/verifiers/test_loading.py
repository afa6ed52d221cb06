"""Finding and building environments."""

import sys
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.errors import ConfigError, EnvironmentNotFound, MissingKeyError
from verifiers.loading import (
    EnvironmentLoadError,
    evaluation_defaults,
    example_environments,
    load_path,
    module_name,
    path_of,
    require_present,
)
from verifiers.testing import ScriptedClient, run

ENVIRONMENT = """
import verifiers as vf

def load_environment(count: int = 2, *, level="easy"):
    return vf.SingleTurnEnv(dataset=[{"question": str(i)} for i in range(count)])
"""


@pytest.fixture
def installed(monkeypatch):
    """Make modules importable; gives a function that writes one."""
    folder = Path("site").resolve()
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(name: str, source: str = ENVIRONMENT) -> Path:
        (folder / f"{name}.py").write_text(source)
        return folder

    yield write
    for name, module in list(sys.modules.items()):
        if str(Path.cwd()) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize("env_id", ["an-env", "an_env", "owner/an-env", "owner/an-env@1.2"])
def test_an_id_is_the_module_with_underscores(installed, env_id):
    installed("an_env")

    environment = vf.load_environment(env_id, count=3)

    assert (environment.env_id, environment.env_args) == (env_id, {"count": 3})
    assert len(environment.get_dataset()) == 3


def test_a_missing_environment_names_the_nearest_installed_one(installed):
    folder = installed("right_name")
    metadata = folder / "right_name-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.1\nName: right-name\nVersion: 1.0\nRequires-Dist: verifiers>=0.1.8\n"
    )

    with pytest.raises(
        EnvironmentNotFound, match=r"Did you mean 'right-name'\? .*right-name.*vf-init rigth-name"
    ):
        vf.load_environment("rigth-name")


def test_a_local_folder_is_not_loaded_by_name_but_named_in_the_error():
    Path("environments/here").mkdir(parents=True)
    Path("environments/here/here.py").write_text(ENVIRONMENT)

    with pytest.raises(
        EnvironmentNotFound, match=r"environments/here is not installed: `vf-install here`"
    ):
        vf.load_environment("here")


def test_a_package_that_is_no_environment_names_the_environment_of_like_name(installed):
    folder = installed("puzzle_maker", "x = 1")
    installed("puzzle_maker_env")
    metadata = folder / "puzzle_maker_env-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.1\nName: puzzle-maker-env\nVersion: 1.0\nRequires-Dist: verifiers\n"
    )

    with pytest.raises(EnvironmentLoadError, match=r"Did you mean 'puzzle-maker-env'\?$"):
        vf.load_environment("puzzle-maker")


@pytest.mark.parametrize("env_id", ["puzzle-maker", "puzzle-makers-env"])
def test_an_environment_here_that_is_not_installed_is_named_too(installed, env_id):
    installed("puzzle_maker", "x = 1")
    folder = Path("environments/puzzle_maker_env")
    folder.mkdir(parents=True)
    (folder / "puzzle_maker_env.py").write_text(ENVIRONMENT)
    broken = Path("environments/broken")
    broken.mkdir()
    (broken / "pyproject.toml").write_text("[project")

    said = (
        r"Did you mean 'puzzle-maker-env'\? `vf-install puzzle-maker-env` installs it from "
        r"\./environments/puzzle_maker_env\."
    )
    with pytest.raises((EnvironmentLoadError, EnvironmentNotFound), match=said):
        vf.load_environment(env_id)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"cuont": 1}, "Did you mean 'count'"), ({"zzz": 1}, "It takes: count, level")],
)
def test_an_argument_it_does_not_take_is_refused_with_the_nearest(installed, arguments, said):
    installed("strict_env")
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        vf.load_environment("strict-env", **arguments)


def test_a_missing_argument_is_named(installed):
    installed("needy_env", "def load_environment(path): ...")
    with pytest.raises(ConfigError, match="needs the argument path"):
        vf.load_environment("needy-env")


def test_any_argument_goes_to_an_environment_that_takes_any(installed):
    installed("open_env", ENVIRONMENT.replace('level="easy"', "level='easy', **kwargs"))
    assert vf.load_environment("open-env", whatever=1).env_args == {"whatever": 1}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def load_environment(): raise KeyError('boom')", "raised KeyError: 'boom'"),
        ("import not_there_at_all", "needs the module 'not_there_at_all'"),
        ("1 / 0", "while its module broken_env was imported: ZeroDivisionError"),
        ("x = 1", "has no load_environment"),
        ("def load_environment(): return 3", "returned int"),
    ],
)
def test_an_environment_that_cannot_be_loaded_says_why_and_keeps_the_cause(installed, source, said):
    installed("broken_env", source)

    with pytest.raises(EnvironmentLoadError, match=said) as caught:
        vf.load_environment("broken-env")

    assert isinstance(caught.value, RuntimeError)


def test_keys_an_environment_asks_for_are_named(installed):
    installed(
        "keyed_env", "import verifiers as vf\ndef load_environment(): vf.ensure_keys(['ODD_KEY'])"
    )
    with pytest.raises(MissingKeyError, match="ODD_KEY"):
        vf.load_environment("keyed-env")


@pytest.mark.parametrize(
    "layout", ["{n}.py", "{n}/__init__.py", "src/{n}/__init__.py", "__init__.py"]
)
def test_a_folder_is_loaded_in_every_layout(installed, layout, request):
    name = f"layout{abs(hash(layout)) % 1000}"
    folder = Path("elsewhere") / name
    source = folder / layout.format(n=name)
    source.parent.mkdir(parents=True)
    source.write_text(ENVIRONMENT)

    assert load_path(folder).environment.env_id == name


def test_a_folder_without_its_module_is_explained():
    Path("empty").mkdir()
    with pytest.raises(EnvironmentNotFound, match=r"expected empty\.py or empty/__init__\.py"):
        load_path("empty")


def test_two_versions_of_a_folder_do_not_mix(installed):
    for where, count in (("one", 1), ("two", 2)):
        folder = Path(where) / "twin"
        folder.mkdir(parents=True)
        (folder / "twin.py").write_text(
            ENVIRONMENT.replace("count: int = 2", f"count: int = {count}")
        )

    assert [
        len(load_path(f"{where}/twin").environment.get_dataset()) for where in ("one", "two")
    ] == [1, 2]


@pytest.mark.parametrize("env_id", ["", "a b", "1x", "../up", "a/"])
def test_what_cannot_be_an_id_is_refused(env_id):
    with pytest.raises(EnvironmentNotFound, match="is not an environment id"):
        module_name(env_id)


def test_suggestions_come_from_the_file_beside_the_module_and_not_from_another_project(installed):
    folder = installed("asking_env")
    installed("other_env")
    text = '[project]\nname = "{}"\n[tool.verifiers.eval]\nnum_examples = {}\nmax_tokens = 9\n'
    (folder / "pyproject.toml").write_text(text.format("other-env", 7))
    (folder / "asking_env.pyproject.toml").write_text(text.format("asking-env", 5))

    assert evaluation_defaults("other-env") == {"num_examples": 7}
    assert evaluation_defaults("asking-env") == {"num_examples": 5}
    assert evaluation_defaults("not-there") == {}


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("single.py", "single"),
        ("./single_file.py", "single-file"),
        ("with-dash.v2.py", "with-dash-v2"),
        ("2nd try.py", "2nd-try"),
        ("deep/er/single2.py", "single2"),
        ("json.py", "json"),
        ("datasets.py", "datasets"),
        ("verifiers.py", "verifiers"),
        ("__main__.py", "main"),
    ],
)
def test_a_single_file_is_an_environment_whatever_its_name(installed, name, env_id):
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(ENVIRONMENT)
    before = {one: sys.modules.get(one) for one in ("json", "verifiers", "__main__")}

    environment = vf.load_environment(name, count=3)

    assert (environment.env_id, environment.env_args) == (env_id, {"count": 3})
    assert environment.loaded_from == file.resolve()
    assert before == {one: sys.modules.get(one) for one in before}
    import datasets

    assert hasattr(datasets, "Dataset")


def test_a_single_file_reads_data_and_modules_beside_it_and_is_read_again_after_an_edit(installed):
    folder = Path("beside")
    folder.mkdir()
    (folder / "rows_of_it.py").write_text("ROWS = [{'question': 'q'}]")
    (folder / "reader.py").write_text(
        "from pathlib import Path\nimport verifiers as vf\nfrom rows_of_it import ROWS\n"
        "def load_environment():\n"
        "    return vf.SingleTurnEnv(dataset=ROWS, system_prompt=Path(__file__).with_name('p').read_text())\n"
    )
    (folder / "p").write_text("beside it")
    assert vf.load_environment("beside/reader.py").system_prompt == "beside it"

    text = (folder / "reader.py").read_text()
    (folder / "reader.py").write_text(text.replace("read_text()", "read_text().upper()"))

    assert vf.load_environment("beside/reader.py").system_prompt == "BESIDE IT"


def test_the_file_of_a_project_is_that_project(installed):
    folder = Path("environments/projected")
    folder.mkdir(parents=True)
    (folder / "projected.py").write_text(ENVIRONMENT)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "projected"\n[tool.verifiers.eval]\nnum_examples = 7\n'
    )
    for path in ("environments/projected/projected.py", "environments/projected/", folder):
        environment = vf.load_environment(str(path))
        assert (environment.env_id, environment.loaded_from) == ("projected", folder.resolve())
        assert evaluation_defaults(str(path)) == {"num_examples": 7}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", r"odd\.py has no load_environment\(\), so the file is not an environment"),
        ("def load_env(): ...", r"Rename load_env\(\) to load_environment\(\)"),
        ("\ndef load_environment(:\n    pass", r"SyntaxError: .* \(.*odd\.py:2\)"),
        ("\n\nimport not_there_at_all", r"not_there_at_all' \(.*odd\.py:3\)"),
        ("def load_environment():\n    return {}['a']", r"KeyError: 'a' \(.*odd\.py:2\)"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(.*odd\.py:2\)"),
        ("from . import other", r"ImportError: .* \(.*odd\.py:1\)"),
    ],
)
def test_a_file_that_is_not_an_environment_says_why_with_its_line(installed, source, said):
    Path("odd.py").write_text(source)
    with pytest.raises(EnvironmentLoadError, match=said):
        vf.load_environment("./odd.py")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("./no.py", "There is no folder or file no.py"),
        ("./nearby", "Did you mean 'nearby.py'"),
        ("./data.json", "data.json is not a Python file"),
        ("./holder", r"nearby\.py there defines load_environment"),
        ("nearby", r"\./nearby\.py is an environment here: write \./nearby\.py"),
        ("./environments/x", "There is no folder or file environments/x"),
    ],
)
def test_a_path_without_an_environment_names_the_nearest_one(asked, said):
    Path("holder").mkdir()
    for file in ("nearby.py", "holder/nearby.py", "data.json"):
        Path(file).write_text(ENVIRONMENT)
    with pytest.raises(EnvironmentNotFound, match=said):
        vf.load_environment(asked)


def test_an_existing_folder_with_a_slash_is_that_folder_unless_the_name_is_installed(installed):
    folder = Path("environments/slashed")
    folder.mkdir(parents=True)
    (folder / "slashed.py").write_text(ENVIRONMENT)
    assert vf.load_environment("environments/slashed").loaded_from == folder.resolve()
    assert path_of("environments/slashed@1.0") is None
    assert path_of("environments/other") is None

    del sys.modules["slashed"]
    sys.path.remove(str(folder.resolve()))
    installed("slashed")
    with pytest.raises(ConfigError, match=r"Write '\./environments/slashed' for the folder"):
        vf.load_environment("environments/slashed")


def test_the_package_brings_examples_that_an_installed_environment_replaces(
    installed, monkeypatch, caplog
):
    assert example_environments() == ["addition", "higher-lower", "reverse-text"]
    with monkeypatch.context() as nothing_is_installed:
        nothing_is_installed.setattr("importlib.util.find_spec", lambda name: None)
        environment = vf.load_environment("reverse-text", num_eval_examples=3)
        assert environment.env_id == "reverse-text"
        assert environment.loaded_from is not None
        assert evaluation_defaults("reverse_text")["rollouts_per_example"] == 3
        assert not caplog.records
        Path("environments/reverse_text").mkdir(parents=True)
        Path("environments/reverse_text/reverse_text.py").write_text("mine = True")
        vf.load_environment("reverse-text")
        assert "Write ./environments/reverse_text for the folder here" in caplog.text
        sys.modules.pop("reverse_text")
        with pytest.raises(EnvironmentNotFound):
            require_present("alice/reverse-text")

    installed("reverse_text")

    assert vf.load_environment("reverse-text").loaded_from is None


async def test_the_guide_to_a_package_for_both_apis_is_right(installed):
    folder = installed("unused", "")
    package = folder / "sums"
    package.mkdir()
    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
    for name in ("__init__", "environment", "taskset"):
        block = page.partition(f"`sums/{name}.py`")[2].partition("```text\n")[2].partition("```")[0]
        (package / f"{name}.py").write_text(block)
    (package / "rows.py").write_text(
        "def rows(count):\n"
        "    return [{'question': f'{n} + {n}?', 'answer': str(2 * n)} for n in range(count)]\n\n"
        "def is_right(reply, answer):\n    return float(reply == answer)\n"
    )
    outputs = await run(vf.load_environment("sums", count=2), ScriptedClient(then="2"), n=2)
    assert [output["reward"] for output in outputs] == [0.0, 1.0]
    assert sys.modules["sums"].__all__ == ["load_environment"]


TASKSETS = {
    "imports v1": "import verifiers.v1 as vf\n\nclass Mine(vf.Taskset): ...",
    "imports from v1": "from verifiers.v1 import Taskset",
    "uses its names": "import verifiers as vf\n\nclass Mine(vf.Taskset): ...",
    "imports its names": "from verifiers import Harness, Taskset",
    "defines load_taskset": "def load_taskset(config=None): ...",
    "imports late": "def load_environment():\n    from verifiers.v1 import Env\n    return Env()",
}


@pytest.mark.parametrize("source", TASKSETS.values(), ids=TASKSETS)
@pytest.mark.parametrize("route", ["by id", "folder", "file", "package"])
def test_a_taskset_for_a_later_verifiers_is_named_as_one(installed, source, route):
    folder = installed("later_taskset", source)
    if route == "package":
        (folder / "later_taskset.py").rename(folder / "taskset_code.py")
        package = folder / "later_taskset"
        package.mkdir()
        (package / "__init__.py").write_text("from later_taskset.tasks import *")
        (folder / "taskset_code.py").rename(package / "tasks.py")
    if route == "folder":
        (folder / "later_taskset").mkdir()
        (folder / "later_taskset.py").rename(folder / "later_taskset" / "later_taskset.py")

    said = r"'later-taskset' is a taskset for verifiers 0\.4 or later .*load_environment\(\).*From v1 back"
    paths = {"folder": folder / "later_taskset", "file": folder / "later_taskset.py"}
    with pytest.raises(EnvironmentLoadError, match=said):
        vf.load_environment(str(paths.get(route, "later-taskset")))
