"""The token in an Authorization header. Pure."""

import base64
import binascii

from hub_server.errors import Unauthorized


def token_from_header(header: str | None) -> str | None:
    """The token of `Bearer …` or of `Basic …`, where it is the password (or the name alone).

    None without a header; Unauthorized for a header of another form.
    """
    if not header:
        return None
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    if scheme.lower() == "basic":
        try:
            name, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Unauthorized("The Basic credentials cannot be read.") from error
        return password or name or None
    raise Unauthorized("Send the API token as `Bearer TOKEN`, or as the password of Basic.")
