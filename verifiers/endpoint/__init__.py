"""A small language model behind an OpenAI-compatible server, so that a first run needs no key and no network.

    from verifiers.endpoint import EmbeddedEndpoint, endpoint_process

    async with EmbeddedEndpoint() as endpoint:      # in this event loop
        ...endpoint.base_url...

    with endpoint_process() as endpoint:            # in a separate process
        ...endpoint.base_url...

The model really samples: seeds, temperatures, log-probabilities and failures behave as on a large server. See
docs/endpoint.md. Read `engine.py` first (continuous batching), then `server.py` (HTTP routes) and `requests.py`.
Modules load on first use of a name, so that a process can choose the number of BLAS threads before numpy loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.endpoint.embedded import EmbeddedEndpoint as EmbeddedEndpoint
    from verifiers.endpoint.engine import Engine as Engine
    from verifiers.endpoint.engine import FinishReason as FinishReason
    from verifiers.endpoint.engine import Generation as Generation
    from verifiers.endpoint.engine import PauseMode as PauseMode
    from verifiers.endpoint.errors import EndpointError as EndpointError
    from verifiers.endpoint.errors import EndpointStartError as EndpointStartError
    from verifiers.endpoint.errors import RequestError as RequestError
    from verifiers.endpoint.errors import WeightsError as WeightsError
    from verifiers.endpoint.model import load_model as load_model
    from verifiers.endpoint.process import EndpointProcess as EndpointProcess
    from verifiers.endpoint.process import endpoint_process as endpoint_process
    from verifiers.endpoint.process import start_endpoint_process as start_endpoint_process
    from verifiers.endpoint.sampling import Sampling as Sampling
    from verifiers.endpoint.server import EndpointConfig as EndpointConfig

__all__, __getattr__, __dir__ = lazy_names(__name__)
