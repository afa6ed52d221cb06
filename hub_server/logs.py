"""The hub's own log: one JSON object a line on stderr."""

import logging

import orjson

from hub_server.moments import iso, utc_now


class JsonFormatter(logging.Formatter):
    """One JSON object a line; control characters in messages cannot start a line of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "at": iso(utc_now()),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def configure_logging() -> None:
    """Send the log of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
