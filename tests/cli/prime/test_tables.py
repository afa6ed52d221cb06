"""Tables for people, on terminals of any width."""

import contextvars

import pytest

from vf_cli.prime.command import choose, show_table

COLUMNS = ["evaluation", "environment", "model", "status", "reward", "rollouts"]
ROW = ["cjtz8lw0reoonlnak31ence7n", "alice/addition@0.1.0", "embedded", "COMPLETED", 0.4875, 80]


def show_as_table() -> None:
    choose(format="table", is_plain=False)  # whatever the last command in this process chose
    show_table({}, COLUMNS, [ROW])


@pytest.mark.parametrize("width", [70, 80, 120])
def test_nothing_of_a_row_is_cut_away_where_the_table_is_wider_than_the_terminal(
    width, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", str(width))
    contextvars.copy_context().run(show_as_table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    first, second = lines[0].index("environment"), lines[0].index("model")
    assert "".join(line[:first].strip() for line in lines[2:]) == ROW[0]
    assert "".join(line[first:second].strip() for line in lines[2:]) == ROW[1]
    assert "0.4875" in lines[2]
    assert "COMPLETED" in lines[2]
    assert "rollouts" in lines[0]


def test_what_reads_a_table_from_a_pipe_finds_every_row_on_one_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [[*ROW[:-1], "a long description " * 20]]

    def show() -> None:
        choose(format="table", is_plain=False)
        show_table({}, COLUMNS, rows)

    contextvars.copy_context().run(show)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(str(cell).strip() in lines[2] for cell in rows[0])
