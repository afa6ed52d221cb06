"""One environment in separate worker processes, over ZeroMQ.

wire            requests, responses and errors; the frames between the processes, their msgpack and their addresses
dispatch        pure: assigns requests to workers, retries after a death, finds requests that kill workers
worker          one process that plays rollouts
supervisor      starts workers and replaces dead ones
server          `ZMQEnvServer`: clients on one side, workers on the other
client          `ZMQEnvClient`, for trainers and `Environment.evaluate`
server_process  a server as a child of this process, behind `Environment.start_server`

Read `wire` first, then `server` and `dispatch`. See docs/serve.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.serve.client import EnvClient as EnvClient
    from verifiers.serve.client import ZMQEnvClient as ZMQEnvClient
    from verifiers.serve.server import EnvServer as EnvServer
    from verifiers.serve.server import ZMQEnvServer as ZMQEnvServer
    from verifiers.serve.server_process import ServerProcess as ServerProcess
    from verifiers.serve.wire import BaseRequest as BaseRequest
    from verifiers.serve.wire import BaseResponse as BaseResponse
    from verifiers.serve.wire import EnvRouterStats as EnvRouterStats
    from verifiers.serve.wire import EnvWorkerStats as EnvWorkerStats
    from verifiers.serve.wire import EventLoopLagStats as EventLoopLagStats
    from verifiers.serve.wire import HealthRequest as HealthRequest
    from verifiers.serve.wire import HealthResponse as HealthResponse
    from verifiers.serve.wire import PendingRequest as PendingRequest
    from verifiers.serve.wire import RequestQuarantined as RequestQuarantined
    from verifiers.serve.wire import RunGroupRequest as RunGroupRequest
    from verifiers.serve.wire import RunGroupResponse as RunGroupResponse
    from verifiers.serve.wire import RunRolloutRequest as RunRolloutRequest
    from verifiers.serve.wire import RunRolloutResponse as RunRolloutResponse
    from verifiers.serve.wire import ServerError as ServerError
    from verifiers.serve.wire import ServerState as ServerState

__all__, __getattr__, __dir__ = lazy_names(__name__)
