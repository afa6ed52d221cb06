"""One environment in processes of its own, over ZeroMQ.

dispatch     pure: which worker gets which request, what is done again after a death, who is to blame
encoding     pure: values → msgpack and back
wire         requests, responses and errors; the frames between the processes
addresses    free ports, socket files
python_process  a Python child that ends with its parent
worker       one process that plays rollouts
supervisor   starts workers, and starts them again
server       `ZMQEnvServer`: clients on one side, workers on the other
client       `ZMQEnvClient`: what a trainer or `Environment.evaluate` holds
server_process  a server as a child of this process, behind `Environment.start_server`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiers.serve.client import EnvClient, ZMQEnvClient
    from verifiers.serve.server import EnvServer, ZMQEnvServer
    from verifiers.serve.server_process import ServerProcess
    from verifiers.serve.wire import (
        BaseRequest,
        BaseResponse,
        EnvRouterStats,
        EnvWorkerStats,
        EventLoopLagStats,
        HealthRequest,
        HealthResponse,
        PendingRequest,
        RequestQuarantined,
        RunGroupRequest,
        RunGroupResponse,
        RunRolloutRequest,
        RunRolloutResponse,
        ServerError,
        ServerState,
    )

_NAMES = {
    "BaseRequest": "wire",
    "BaseResponse": "wire",
    "EnvClient": "client",
    "EnvRouterStats": "wire",
    "EnvServer": "server",
    "EnvWorkerStats": "wire",
    "EventLoopLagStats": "wire",
    "HealthRequest": "wire",
    "HealthResponse": "wire",
    "PendingRequest": "wire",
    "RequestQuarantined": "wire",
    "RunGroupRequest": "wire",
    "RunGroupResponse": "wire",
    "RunRolloutRequest": "wire",
    "RunRolloutResponse": "wire",
    "ServerError": "wire",
    "ServerProcess": "server_process",
    "ServerState": "wire",
    "ZMQEnvClient": "client",
    "ZMQEnvServer": "server",
}

__all__ = [
    "BaseRequest",
    "BaseResponse",
    "EnvClient",
    "EnvRouterStats",
    "EnvServer",
    "EnvWorkerStats",
    "EventLoopLagStats",
    "HealthRequest",
    "HealthResponse",
    "PendingRequest",
    "RequestQuarantined",
    "RunGroupRequest",
    "RunGroupResponse",
    "RunRolloutRequest",
    "RunRolloutResponse",
    "ServerError",
    "ServerProcess",
    "ServerState",
    "ZMQEnvClient",
    "ZMQEnvServer",
]


def __getattr__(name: str) -> Any:  # Any: the type depends on the name
    if name in _NAMES:
        return getattr(importlib.import_module(f"verifiers.serve.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'verifiers.serve' has no attribute {name!r}")
