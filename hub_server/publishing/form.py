"""Streaming reader of the upload form of `twine` and `uv publish`.

The file goes straight to the staging folder and is hashed on the way. Fields are kept in memory, within limits. No
data is buffered twice, and every size is bounded.
"""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from hub_server.errors import BadRequest, TooLarge, Unavailable
from hub_server.private_files import create
from hub_server.storage.service import Staged
from verifiers.files import write_all

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS = 1_000
MAX_FIELD_BYTES = 2 * 1024**2
"""Maximum size of one field; `description` contains the README."""
MAX_FIELDS_BYTES = 4 * 1024**2
MAX_HEADER_BYTES = 8 * 1024


class UploadForm:
    """The fields of the form with all their values, and its one file."""

    def __init__(self, path: Path, max_file_bytes: int) -> None:
        self.fields: dict[str, list[str]] = {}
        self.filename: str | None = None
        self.staged: Staged | None = None
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._file_bytes = 0
        self._field_bytes = 0
        self._parts = 0
        self._header = (bytearray(), bytearray())
        self._headers: dict[str, bytes] = {}
        self._name = ""
        self._value: bytearray | None = None
        self._ended = False

    async def read(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        """Read the whole body. Raises BadRequest for a broken form, TooLarge for a large one."""
        media_type, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if media_type != b"multipart/form-data" or not boundary:
            raise BadRequest("Send the upload as multipart/form-data, as twine and uv do.")
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._on_part_begin,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_end": self._on_end,
        }
        try:
            parser = MultipartParser(boundary, callbacks)
            async for piece in body:
                parser.write(piece)
            parser.finalize()
        except FormParserError as error:
            raise BadRequest(f"The upload form is damaged: {error}.") from error
        except OSError as error:
            raise Unavailable(f"The file cannot be stored: {error.strerror}.") from error
        finally:
            if self._file is not None:
                self._file.close()
        if not self._ended:
            raise BadRequest("The upload form was cut short.")
        if self._file is None or self.filename is None:
            raise BadRequest("The upload form has no file in its field `content`.")
        self.staged = Staged(self._path, self._digest.hexdigest(), self._file_bytes)

    def text(self, name: str) -> str | None:
        """Return the value of a field, or None if it is missing or empty. Some clients send empty fields."""
        values = [value for value in self.fields.get(name, []) if value]
        return values[0] if values else None

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"The upload form has more than {MAX_PARTS} fields.")
        self._headers = {}
        self._header = (bytearray(), bytearray())

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])
        self._check_header()

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])
        self._check_header()

    def _check_header(self) -> None:
        if len(self._header[0]) + len(self._header[1]) > MAX_HEADER_BYTES:
            raise TooLarge("A header inside the upload form is too long.")

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header[0]).decode("latin-1").lower()] = bytes(self._header[1])
        self._header = (bytearray(), bytearray())

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._value = bytearray()
        if self._name == "content" and filename is not None:
            if self._file is not None:
                raise BadRequest("The upload form has two files; send one at a time.")
            self.filename = filename.decode("utf-8", "replace")
            self._file = create(self._path)
            self._value = None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if self._value is None:
            assert self._file is not None, "a part without a value is the file"
            self._file_bytes += len(piece)
            if self._file_bytes > self._max_file_bytes:
                raise TooLarge(
                    f"The file is larger than the maximum of {self._max_file_bytes} bytes."
                )
            self._digest.update(piece)
            write_all(self._file.fileno(), piece)
            return
        self._field_bytes += len(piece)
        if len(self._value) + len(piece) > MAX_FIELD_BYTES or self._field_bytes > MAX_FIELDS_BYTES:
            raise TooLarge(f"The field {self._name[:60]!r} of the upload form is too long.")
        self._value.extend(piece)

    def _on_part_end(self) -> None:
        if self._value is not None:
            text = self._value.decode("utf-8", "replace")
            self.fields.setdefault(self._name[:200], []).append(text)

    def _on_end(self) -> None:
        self._ended = True
