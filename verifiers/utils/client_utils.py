"""v0 import path; the code is in `verifiers.clients`."""

from verifiers.clients.connect import load_prime_config as load_prime_config
from verifiers.clients.connect import resolve_client_config as resolve_client_config
from verifiers.clients.connect import resolve_client_configs as resolve_client_configs
from verifiers.clients.connect import setup_anthropic_client as setup_anthropic_client
from verifiers.clients.connect import setup_http_client as setup_http_client
from verifiers.clients.connect import setup_openai_client as setup_openai_client
