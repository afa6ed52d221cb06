"""Ids that may be meant for a hub, before anything is asked of one."""

import pytest

from verifiers.errors import ConfigError
from vf_cli.eval_hub import install_missing


def test_a_folder_of_that_name_is_pointed_out_where_a_hub_is_meant(tmp_path, monkeypatch):
    (tmp_path / "mine" / "sums").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"Write './mine/sums'"):
        install_missing(["mine/sums"], is_sure=True)


def test_a_plain_name_is_none_of_a_hub(tmp_path, monkeypatch):
    (tmp_path / "sums").mkdir()
    monkeypatch.chdir(tmp_path)
    assert install_missing(["sums", "./sums"], is_sure=True) is False


def test_a_folder_that_holds_an_environment_is_none_of_a_hub(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "sums"
    folder.mkdir(parents=True)
    (folder / "sums.py").write_text("def load_environment(): ...")
    monkeypatch.chdir(tmp_path)
    assert install_missing(["mine/sums", "mine/sums/", "sums.py"], is_sure=True) is False
