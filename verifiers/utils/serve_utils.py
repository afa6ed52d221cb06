"""v0 import path: what processes of an environment server share."""

from verifiers.child_process import get_free_port as get_free_port
from verifiers.serve.wire import decode_tensor_payload as decode_tensor_payload
from verifiers.serve.wire import make_ipc_address as make_ipc_address
from verifiers.serve.wire import msgpack_encoder as msgpack_encoder
