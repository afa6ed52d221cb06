import pytest

from verifiers.endpoint.model import one_blas_thread, thread_control


@pytest.fixture
def threads():
    control = thread_control()
    if control is None:
        pytest.skip("numpy carries no OpenBLAS here")
    before = control.get()
    yield control
    control.set(before)


def test_a_block_borrows_one_thread_and_gives_the_others_back(threads):
    threads.set(2)
    with one_blas_thread():
        assert threads.get() == 1
    assert threads.get() == 2


def test_an_error_gives_the_threads_back(threads):
    threads.set(2)
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert threads.get() == 2


def test_without_openblas_nothing_happens(monkeypatch):
    monkeypatch.setattr("verifiers.endpoint.model.thread_control", lambda: None)
    with one_blas_thread():
        pass
