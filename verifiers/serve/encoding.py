"""Values → msgpack and back: what a dataset row and a rollout may hold, arrays and large integers included.

`pack` is for requests and refuses what it cannot carry; `pack_result` is for answers and saves such a value as its
`repr`, because one odd value must not cost the rollout. Records and mappings arrive as dicts, tuples as lists, sets as
sorted lists, dates and paths as text; numpy arrays stay arrays, and bytes stay bytes.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from verifiers.errors import ConfigError
from verifiers.runs.output import jsonable, safe_repr

try:
    import msgpack
except ImportError as error:
    raise ConfigError(
        "Environments in processes of their own need pyzmq and msgpack: pip install 'pyzmq>=26' 'msgpack>=1.0'."
    ) from error

logger = logging.getLogger(__name__)

ARRAY = 1
"""msgpack extension: dtype, shape, and the raw bytes in C order."""
INTEGER = 2
"""msgpack extension: an integer beyond 64 bits, as decimal digits."""


def _packed(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    packed = msgpack.packb(
        value, default=default, use_bin_type=True, unicode_errors="surrogatepass"
    )
    assert packed is not None  # the stub allows for subclasses that give nothing
    return packed


def pack(value: Any) -> bytes:
    """The bytes of a request. Raises ConfigError for a value that cannot be sent, naming its type."""
    try:
        return _packed(value, msgpack_encoder)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"A request to an environment server cannot be sent: {error}") from error


def pack_result(value: Any) -> bytes:
    """The bytes of an answer. Never fails on a value: see the module."""
    try:
        return _packed(value, _lenient)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _packed(jsonable(value))  # it contains itself, or is nested deep


def unpack(payload: bytes | memoryview) -> Any:
    """The value again. Raises ValueError for bytes that are no msgpack."""
    options = {"ext_hook": _extension, "strict_map_key": False, "unicode_errors": "surrogatepass"}
    try:
        return msgpack.unpackb(payload, **options)
    except TypeError:  # a dict has a tuple for a key, which came back as a list
        return _with_lists(msgpack.unpackb(payload, use_list=False, **options))


def msgpack_encoder(obj: Any) -> Any:
    """The `default` of msgpack: a form it knows for values it does not. Raises TypeError when there is none."""
    np = sys.modules.get("numpy")  # half a second to import, and without it there are no arrays
    if np is not None and isinstance(obj, np.generic):
        return obj.item()
    if np is not None and isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
        header = _packed([obj.dtype.str, list(obj.shape)])
        return msgpack.ExtType(ARRAY, header + obj.tobytes())
    if isinstance(obj, int):
        return msgpack.ExtType(INTEGER, str(int(obj)).encode())
    if isinstance(obj, Enum):
        return obj.value
    if isinstance(obj, datetime | date | time):
        return obj.isoformat()
    if isinstance(obj, PurePath | UUID):
        return str(obj)
    if isinstance(obj, timedelta):
        return obj.total_seconds()
    if isinstance(obj, Decimal):
        return float(obj)
    if isinstance(obj, set | frozenset):
        return _listed(obj)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, Sequence) and not isinstance(obj, str | bytes):
        return list(obj)
    if not isinstance(obj, type):
        for name in ("model_dump", "tolist"):
            if callable(convert := getattr(obj, name, None)):
                return convert()
    raise TypeError(f"Object of type {type(obj)} is not msgpack serializable: {safe_repr(obj)}")


def decode_tensor_payload(obj: Any, *, to_torch: bool = True) -> Any:
    """torch tensor (`to_torch=False`: numpy array) of a tensor that came from an environment server; None for None.

    `obj` is an array, a tensor, a nested list, or the published package's dict `{"__torch_tensor__": True, "dtype",
    "shape", "data"}`. The result can be written to. Raises ValueError when `data` and `shape` do not fit together.
    """
    if obj is None:
        return None
    import numpy as np

    if hasattr(obj, "detach"):  # a torch tensor
        return obj if to_torch else obj.detach().cpu().numpy()
    if isinstance(obj, Mapping):
        flat = np.frombuffer(obj["data"], np.dtype(obj["dtype"]))
        values = flat.reshape(tuple(obj["shape"])).copy()
    else:
        values = np.array(obj)
    if not to_torch:
        return values
    import importlib  # torch is the trainer's, and type checkers must pass without it

    return importlib.import_module("torch").from_numpy(values)


def _lenient(obj: Any) -> Any:
    if isinstance(obj, BaseException):
        return repr(obj)
    try:
        return msgpack_encoder(obj)
    except TypeError:
        logger.warning(
            "A value of type %s cannot leave the environment's process; its repr was sent. Store plain values, or "
            "leave its key out of state_columns.",
            type(obj).__name__,
        )
        return safe_repr(obj)


def _listed(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def _extension(code: int, data: bytes) -> Any:
    if code == INTEGER:
        return int(data)
    if code == ARRAY:
        import numpy as np

        unpacker = msgpack.Unpacker()
        unpacker.feed(data[:1024])
        dtype, shape = unpacker.unpack()
        # A copy: arrays over the message itself could not be written to.
        return np.frombuffer(data, np.dtype(dtype), offset=unpacker.tell()).reshape(shape).copy()
    return msgpack.ExtType(code, data)


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, tuple) and not isinstance(value, msgpack.ExtType):
        return [_with_lists(item) for item in value]
    return value
