"""v0 import path; see `verifiers.interception.tunnel_output`."""

from verifiers.interception.tunnel_output import (
    extract_tunnel_url_from_line as extract_tunnel_url_from_line,
)
