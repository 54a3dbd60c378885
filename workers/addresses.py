"""Addresses to listen on, as users write them: 127.0.0.1:8900, [::1]:8900, :9108 (all of this machine's)."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from chunking.errors import UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    said: str
    family: socket.AddressFamily
    address: tuple[Any, ...]

    def bind(self) -> socket.socket:
        """A socket that listens. Raises UsageError where it cannot, as when another process has the port."""
        try:
            return socket.create_server(self.address[:2], family=self.family)
        except OSError as e:
            raise UsageError(f"{self.said} cannot be listened on: {e.strerror or e}") from e


def address(said: str, *, everywhere: bool = False) -> Address:
    """What was written (port 0: any free port). `everywhere`: without a host it is all of them. Raises UsageError."""
    whole = f"0.0.0.0{said}" if everywhere and said.startswith(":") else said  # noqa: S104 (who writes :PORT means it)
    try:
        parts = urlsplit(f"//{whole}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.netloc != whole or parts.username is not None:
        raise UsageError(f"{said} is no address to listen on; it looks like 127.0.0.1:8900 or [::1]:8900")
    try:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as e:
        raise UsageError(f"{said}: there is no host {host}") from e
    return Address(said, family, found)
