"""What can travel between processes, and how it arrives."""

from array import array
from collections import OrderedDict
from datetime import datetime
from pathlib import Path
from threading import Lock

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.serve.wire import BaseResponse as Answer
from verifiers.serve.wire import (
    HealthRequest,
    RunRolloutRequest,
    ServerError,
    decode_request,
    encode_request,
    error_of,
    failure,
    pack,
    pack_result,
    unpack,
)
from verifiers.utils.serve_utils import (
    decode_tensor_payload,
    get_free_port,
    make_ipc_address,
    msgpack_encoder,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(json_values)
def test_plain_values_arrive_as_they_were(value):
    assert unpack(pack(value)) == value
    assert unpack(pack_result(value)) == value


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((0, 4), np.float32),
        np.array(2.5),
        np.array([True, False]),
        np.arange(12).reshape(3, 4)[:, ::2],
    ],
)
def test_arrays_stay_arrays_and_can_be_written_to(values):
    arrived = unpack(pack({"ids": values}))["ids"]

    assert (arrived.dtype, arrived.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(arrived, values)
    assert arrived.flags.writeable


def test_other_values_take_the_nearest_plain_form():
    sent = {
        "message": vf.UserMessage(content="hello"),
        "when": datetime(2026, 1, 2, 3),
        "where": Path("/data"),
        "tags": {"b", "a"},
        "ids": array("i", [1, 2]),
        "order": OrderedDict(x=1),
        "scalar": np.float32(0.5),
        "pair": (1, 2),
        ("a", 1): "tuple key",
    }

    assert unpack(pack(sent)) == {
        "message": {"role": "user", "content": "hello"},
        "when": "2026-01-02T03:00:00",
        "where": "/data",
        "tags": ["a", "b"],
        "ids": [1, 2],
        "order": {"x": 1},
        "scalar": 0.5,
        "pair": [1, 2],
        ("a", 1): "tuple key",
    }


def test_a_request_refuses_what_it_cannot_carry_and_a_result_keeps_its_repr(caplog):
    with pytest.raises(
        ConfigError, match=r"cannot be sent: Object of type <class '_thread\.lock'>"
    ):
        pack({"info": Lock()})

    arrived = unpack(pack_result({"kept": 1, "odd": Lock()}))

    assert arrived["kept"] == 1
    assert "lock" in arrived["odd"]
    assert "cannot leave the environment's process" in caplog.text


def test_a_result_that_contains_itself_is_sent_all_the_same():
    loop: dict = {"reward": 1.0}
    loop["self"] = loop

    assert unpack(pack_result(loop))["reward"] == 1.0


def test_v0s_encoder_is_a_default_for_msgpack():
    assert msgpack.unpackb(msgpack.packb({"x": np.int64(3)}, default=msgpack_encoder)) == {"x": 3}
    with pytest.raises(TypeError, match="not msgpack serializable"):
        msgpack_encoder(object())


def test_requests_arrive_as_their_types():
    request = RunRolloutRequest(
        input={"prompt": [], "image": b"\xff", "weights": np.ones(2)},
        client_config=vf.ClientConfig(api_base_url="http://localhost:1/v1"),
        model="m",
        sampling_args={"temperature": 0.5},
        max_retries=1,
        state_columns=["trajectory"],
    )

    arrived = decode_request(encode_request(request))

    assert isinstance(arrived, RunRolloutRequest)
    assert arrived.client_config == request.client_config
    assert arrived.input["image"] == b"\xff"
    assert isinstance(decode_request(encode_request(HealthRequest())), HealthRequest)
    with pytest.raises(ValueError, match="not a request"):
        decode_request(pack({"request_type": "other"}))


def test_errors_keep_their_type_when_it_is_one_of_ours():
    assert type(error_of(Answer(**failure(ConfigError("wrong"))))) is ConfigError
    other = error_of(Answer(**failure(KeyError("answer"))))
    assert type(other) is ServerError
    assert "KeyError: 'answer'" in str(other)


def test_ports_and_addresses():
    assert 1024 <= get_free_port() < 65536
    assert make_ipc_address("run1", "server") == "ipc:///tmp/vf-run1-server"


def test_tensors_of_an_environment_server_are_decoded_in_every_form_they_travel_in():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    published = {
        "__torch_tensor__": True,
        "dtype": "float32",
        "shape": [2, 3],
        "data": values.tobytes(),
    }
    for form in (published, values, values.tolist(), unpack(pack(values))):
        found = decode_tensor_payload(form, to_torch=False)
        assert np.array_equal(found, values)
        found[0, 0] = 9.0  # may be written to
    assert decode_tensor_payload(None) is None
    with pytest.raises(ValueError, match="reshape"):
        decode_tensor_payload(published | {"shape": [4, 2]}, to_torch=False)


def test_tensors_of_an_environment_server_become_torch_tensors():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3)
    assert decode_tensor_payload(tensor) is tensor
    assert np.array_equal(decode_tensor_payload(tensor, to_torch=False), np.ones((2, 3)))
    assert torch.equal(decode_tensor_payload(np.ones((2, 3), np.float32)), tensor)
