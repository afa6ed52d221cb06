"""Where sockets are, when the place for temporary files is far away."""

from pathlib import Path

import pytest

from verifiers.serve.wire import LONGEST_SOCKET_FOLDER, address_in, new_socket_folder


@pytest.mark.parametrize("depth", [1, 40, 60, 90])
def test_a_socket_of_a_new_folder_can_be_bound_however_deep_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    import zmq

    deep = tmp_path / ("d" * depth)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = new_socket_folder()
    try:
        assert len(str(folder)) <= LONGEST_SOCKET_FOLDER
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.bind(address_in(folder, "workers-01234567"))
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
