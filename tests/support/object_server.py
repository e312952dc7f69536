"""A small object store in memory that speaks the dialects of S3, Google Cloud Storage and Azure, as obstore uses them.

For Google and Azure there is no server on the package index that obstore can use. Signatures are not checked.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from typing import Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from support.served import served

__all__ = ["ObjectServer", "running_object_server"]

_META: Final = ("x-amz-meta-", "x-goog-meta-", "x-ms-meta-", "content-type", "x-ms-blob-content-type")
_REASONS: Final = {200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 206: "Partial Content"}


@dataclass(frozen=True)
class _Object:
    content: bytes
    fields: Mapping[str, str]
    generation: int
    at: float

    def headers(self) -> dict[str, str]:
        number = str(self.generation)
        return {
            **self.fields,
            "ETag": f'"{number}"',
            "x-goog-generation": number,
            "Last-Modified": formatdate(self.at, usegmt=True),
        }


@dataclass
class ObjectServer:
    """A running server with one bucket, `bucket`."""

    delay: float = 0
    """Seconds before each answer."""
    page: int = 1000
    tags: Literal["either", "bare", "none"] = "either"
    """In which form the tag of a conditional put is taken: with quotes or without, without, or not at all."""
    port: int = 0
    objects: dict[str, _Object] = field(default_factory=dict)
    requests: int = 0
    received: int = 0
    """The bytes of the contents that were sent to it."""
    sent: int = 0
    """The bytes that it answered."""
    turns: int = 0
    """How often it had answered all requests before the next one came."""
    _running: int = 0
    _generations: Iterator[int] = field(default_factory=lambda: count(1_700_000_000_000_000))
    _serving: set[object] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self) -> dict[str, str]:
        """The options of an `S3Backend`."""
        secrets = {"access_key_id": "id-of-a-key", "secret_access_key": "a-secret-key"}
        return {"endpoint_url": self.url, "region": "us-east-1", **secrets}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                given = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(given.get("content-length", 0)))
                self._count(len(body))
                if self.delay:
                    await asyncio.sleep(self.delay)
                method, target, _ = head[0].split(" ")
                answer = self._answer(method, target, given, body)
                self._running -= 1
                self.sent += len(answer)
                writer.write(answer)
        self._serving.discard(task)

    def _count(self, size: int) -> None:
        self.requests += 1
        self.received += size
        self.turns += self._running == 0
        self._running += 1

    def _answer(self, method: str, target: str, given: dict[str, str], body: bytes) -> bytes:
        parts = urlsplit(target)
        key = unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        options = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if method == "GET" and not key:
            azure = "comp" in options
            return _rendered(200, {"Content-Type": "application/xml"}, self._listed(options, azure=azure).encode())
        if method == "POST":
            return self._deleted_batch(body) if "comp" in options else self._deleted_all(body)
        if method == "PUT":
            return self._put(key, given, body)
        if method == "DELETE":
            return _rendered(202 if self.objects.pop(key, None) else 404, {}, b"")
        return self._got(key, given, has_body=method == "GET")

    def _put(self, key: str, given: dict[str, str], body: bytes) -> bytes:
        now = self.objects.get(key)
        generation = given.get("x-goog-if-generation-match")
        if now is not None and (given.get("if-none-match") == "*" or generation == "0"):
            return _rendered(412 if generation else 409 if "x-ms-version" in given else 412, {}, b"")
        tag = given.get("if-match", "")
        if (self.tags == "bare" and tag.startswith('"')) or (self.tags == "none" and tag):
            return _rendered(412, {}, b"")
        wanted = generation if generation not in (None, "0") else tag.strip('"')
        if wanted and (now is None or str(now.generation) != wanted):
            return _rendered(412, {}, b"")
        fields = {name: value for name, value in given.items() if name.startswith(_META)}
        if "x-ms-blob-content-type" in fields:
            fields["content-type"] = fields.pop("x-ms-blob-content-type")
        stored = self.objects[key] = _Object(body, fields, next(self._generations), time.time())
        return _rendered(201 if "x-ms-version" in given else 200, stored.headers(), b"")

    def _got(self, key: str, given: dict[str, str], *, has_body: bool) -> bytes:
        found = self.objects.get(key)
        if found is None:
            return _rendered(404, {}, b"")
        if given.get("if-match", "").strip('"') not in ("", str(found.generation)):
            return _rendered(412, {}, b"")
        content, status, headers = found.content, 200, found.headers()
        if (asked := given.get("range") or given.get("x-ms-range")) is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if int(first) >= len(content):
                return _rendered(416, {}, b"")
            end = min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
            content, status = content[int(first) : end + 1], 206
        return _rendered(status, headers, content, has_body=has_body)

    def _deleted_all(self, body: bytes) -> bytes:
        keys = re.findall("<Key>.*?</Key>", body.decode())
        for key in keys:
            self.objects.pop(unescape(key[5:-6], {"&quot;": '"', "&apos;": "'"}), None)
        deleted = "".join(f"<Deleted>{key}</Deleted>" for key in keys)
        return _rendered(200, {}, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _deleted_batch(self, body: bytes) -> bytes:
        answers = []
        for number, target in enumerate(re.findall(r"DELETE (\S+) HTTP", body.decode())):
            key = unquote(urlsplit(target).path).removeprefix("/bucket/")
            status = "202 Accepted" if self.objects.pop(key, None) else "404 Not Found"
            part = "--answers\r\nContent-Type: application/http\r\nContent-ID: {}\r\n\r\nHTTP/1.1 {}\r\n\r\n\r\n"
            answers.append(part.format(number, status))
        headers = {"Content-Type": "multipart/mixed; boundary=answers"}
        return _rendered(202, headers, "".join([*answers, "--answers--\r\n"]).encode())

    def _listed(self, options: dict[str, str], *, azure: bool) -> str:
        prefix, delimiter = options.get("prefix", ""), options.get("delimiter")
        after = max(options.get("marker", ""), options.get("continuation-token", ""), options.get("start-after", ""))
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        shown, prefixes, last = [], {}, None
        for key in keys:
            if len(shown) + len(prefixes) >= self.page:
                break
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes[prefix + rest.split(delimiter)[0] + delimiter] = None
            else:
                shown.append(key)
            last = key
        more = last if last is not None and last != keys[-1] else None
        return (_azure_list if azure else _s3_list)({key: self.objects[key] for key in shown}, prefixes, more)


def _s3_list(objects: Mapping[str, _Object], prefixes: Mapping[str, None], more: str | None) -> str:
    contents = "".join(
        f'<Contents><Key>{escape(key)}</Key><Size>{len(each.content)}</Size><ETag>"{each.generation}"</ETag>'
        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(each.at))}</LastModified></Contents>"
        for key, each in objects.items()
    )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes)
    token = "" if more is None else f"<NextContinuationToken>{escape(more)}</NextContinuationToken>"
    return f"<ListBucketResult>{contents}{common}{token}</ListBucketResult>"


def _azure_list(objects: Mapping[str, _Object], prefixes: Mapping[str, None], more: str | None) -> str:
    blobs = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{formatdate(each.at, usegmt=True)}</Last-Modified>"
        f"<Content-Length>{len(each.content)}</Content-Length><Content-Type>text/plain</Content-Type>"
        f'<Etag>"{each.generation}"</Etag></Properties></Blob>'
        for key, each in objects.items()
    )
    common = "".join(f"<BlobPrefix><Name>{escape(each)}</Name></BlobPrefix>" for each in prefixes)
    marker = f"<NextMarker>{escape(more or '')}</NextMarker>"
    return f"<EnumerationResults><Blobs>{blobs}{common}</Blobs>{marker}</EnumerationResults>"


def _rendered(status: int, headers: Mapping[str, str], body: bytes, *, has_body: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body if has_body else b"")


@contextmanager
def running_object_server() -> Iterator[ObjectServer]:
    """A server on the loopback interface, on a thread of its own."""
    server = ObjectServer()
    with served(server.serve) as server.port:
        yield server
