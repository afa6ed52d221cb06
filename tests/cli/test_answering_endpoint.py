"""The endpoint of these tests leaves nothing behind: a leaked socket fails whichever test runs when it is collected."""

import gc
import socket
import warnings

import pytest
from answering_endpoint import AnsweringEndpoint


@pytest.mark.parametrize("sent", [b"", b"POST /v1 HTTP/1.1\r\n", b"POST /v1 HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("closes", [True, False])
def test_an_endpoint_closes_every_connection_that_it_has_accepted(sent, closes):
    leaks: list[object] = []
    gc.collect()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error", ResourceWarning)
        patch.setattr("sys.unraisablehook", lambda leak: leaks.append(leak.exc_value))
        for _ in range(20):
            endpoint = AnsweringEndpoint(hold_after=0).__enter__()
            clients = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(3)]
            for client in clients:
                client.sendall(sent)
                if closes:
                    client.close()
            endpoint.__exit__()
            for client in clients:
                client.close()
        gc.collect()

    assert leaks == []
