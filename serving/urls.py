"""Fetch recordings from addresses that the server's owner allows, and from nowhere else.

Notable choices:

- An address is allowed by a prefix: same scheme, host and port, and a path at or below the prefix's. Paths with `..`,
  however written, and addresses with a user name are refused.
- What a name resolves to is checked by the resolver that the connection uses, so that it cannot change in between. A
  private address is reached only where the prefix itself is written with it.
- A redirect is an address like any other.
- What one request may have fetched is bounded in number, bytes and time: a small request can name many addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL


_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_PART_BYTES = 2**16
# As many as a multipart request may bring files.
_MAX_ADDRESSES = 1024
_MAX_AT_ONCE = 8


class UrlError(ValueError):
    """Raised for an address that is not fetched, or gives nothing."""


def parse_prefixes(prefixes: Iterable[str]) -> tuple[URL, ...]:
    """Check the prefixes that the server was started with.

    Raises:
        ValueError: One is no `http` or `https` address, or has a user name, a query or a fragment.
    """
    found = []
    for prefix in prefixes:
        url = _parse(prefix)
        if url is None or url.query_string or url.fragment:
            raise ValueError(f"{prefix!r} is no prefix of addresses; give one like https://example.org/recordings/.")
        found.append(url)
    return tuple(found)


def _parse(text: str) -> URL | None:
    """Return an address, None for one that could mean another than it says."""
    if re.search(r"[\s\\\x00-\x1f\x7f]", text):
        return None
    try:
        url = URL(text)
        well_formed = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
    except ValueError:
        return None
    # A server may decode a path twice.
    path = unquote(unquote(text.split("#")[0].split("?")[0]))
    if not well_formed or url.user is not None or url.password is not None or "\\" in path:
        return None
    return None if ".." in path.split("/") else url


@dataclass
class _Visit:
    """Hold what the addresses of one request share.

    Args:
        session (`aiohttp.ClientSession`): What fetches.
        bytes_left (`int`): How much they may still give.
        end (`float`): When the event loop's clock says that it took too long.
        slots (`asyncio.Semaphore`): How many are fetched at once.
    """

    session: aiohttp.ClientSession
    bytes_left: int
    end: float
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_AT_ONCE))


class UrlFetcher:
    """Fetch recordings.

    Args:
        prefixes (`Iterable[str]`): What addresses may begin with; without any nothing is fetched.
        max_bytes (`int`): Of all recordings of one request together.
        timeout_s (`float`): For one recording, redirects included.
        total_timeout_s (`float`): For all recordings of one request.

    Raises:
        ValueError: A prefix is no address.
    """

    def __init__(self, prefixes: Iterable[str], *, max_bytes: int, timeout_s: float, total_timeout_s: float):
        self.prefixes = parse_prefixes(prefixes)
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s
        self.total_timeout_s = total_timeout_s

    async def fetch_all(self, addresses: Iterable[str]) -> dict[str, bytes | str]:
        """Return for each address what it gave, or why there is nothing."""
        wanted = list(dict.fromkeys(addresses))
        if not wanted:
            return {}
        if len(wanted) > _MAX_ADDRESSES:
            reason = f"its request names {len(wanted)} addresses; send at most {_MAX_ADDRESSES} at once."
            return dict.fromkeys(wanted, reason)
        connector = aiohttp.TCPConnector(resolver=_PublicResolver(), limit=_MAX_AT_ONCE)
        # Neither a proxy nor credentials of this machine, no cookies from one client to the next.
        options: dict[str, Any] = {
            "trust_env": False,
            "cookie_jar": aiohttp.DummyCookieJar(),
            "auto_decompress": False,
        }
        async with aiohttp.ClientSession(connector=connector, **options) as session:
            visit = _Visit(session, self.max_bytes, asyncio.get_running_loop().time() + self.total_timeout_s)
            found = await asyncio.gather(*(self._fetch_in_turn(visit, address) for address in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _fetch_in_turn(self, visit: _Visit, address: str) -> bytes | str:
        """Return what an address gave, once fewer are being fetched: only then its own time begins."""
        try:
            async with asyncio.timeout_at(visit.end), visit.slots:
                return await self._fetch_or_reason(visit, address)
        except TimeoutError:
            return f"the recordings of its request took longer than {self.total_timeout_s:g} s; send fewer at once."

    async def _fetch_or_reason(self, visit: _Visit, address: str) -> bytes | str:
        try:
            async with asyncio.timeout(self.timeout_s) as own_time:
                return await self._fetch(visit, address)
        except UrlError as error:
            return str(error)
        except TimeoutError:
            if not own_time.expired():
                raise
            return f"its address did not answer within {self.timeout_s:g} s."
        except (aiohttp.ClientError, OSError) as error:
            reason = error.__cause__ or error
            return f"its address cannot be fetched ({reason if isinstance(reason, UrlError) else 'no answer'})."

    async def _fetch(self, visit: _Visit, address: str) -> bytes:
        url = self.require_allowed(address)
        for _ in range(_MAX_REDIRECTS + 1):
            async with visit.session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    target = response.headers.get("Location", "")
                    url = self.require_allowed(str(url.join(URL(target, encoded=True))))
                    continue
                if response.status != 200:
                    raise UrlError(f"its address answered with status {response.status}.")
                return await self._read(response, visit)
        raise UrlError(f"its address redirects more than {_MAX_REDIRECTS} times.")

    async def _read(self, response: aiohttp.ClientResponse, visit: _Visit) -> bytes:
        data = bytearray()
        async for part in response.content.iter_chunked(_PART_BYTES):
            visit.bytes_left -= len(part)
            if visit.bytes_left < 0:
                raise UrlError(f"the addresses of its request give more than {self.max_bytes} bytes; send fewer.")
            data += part
        return bytes(data)

    def require_allowed(self, address: str) -> URL:
        """Return an address that may be fetched.

        Raises:
            UrlError: It may not.
        """
        if not self.prefixes:
            raise UrlError("this server fetches no addresses; send the recording itself.")
        url = _parse(address)
        if url is None or not any(_is_below(url, prefix) for prefix in self.prefixes):
            raise UrlError("its address is not among those that this server fetches; send the recording itself.")
        return url


def _is_below(url: URL, prefix: URL) -> bool:
    if (url.scheme, url.host, url.port) != (prefix.scheme, prefix.host, prefix.port):
        return False
    start = prefix.path if prefix.path.endswith("/") else f"{prefix.path}/"
    return url.path == prefix.path or url.path.startswith(start)


class _PublicResolver(AbstractResolver):
    """Resolve names, but not to addresses of private networks or of this machine."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        require_public([result["host"] for result in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def require_public(hosts: Sequence[str]) -> None:
    """Raise unless all numeric addresses are public.

    Raises:
        UrlError: One is private, of this machine, or otherwise not for everyone.
    """
    for host in hosts:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address.sixtofour or address
        if not address.is_global or address.is_multicast:
            raise UrlError("its name stands for a private address")
