"""Who is let in: the right token, a Host that cannot be another's, and our own Origin.

The token stands in the address and is compared in constant time. A page of another origin that a
browser shows could guess the port, but not the token; and it could give its own name our address
(DNS rebinding), but its name then stands in Host. So a name is let in only where it is that of this
machine; an address is never somebody's name. Origin has to be what Host says.
"""

import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, field
from urllib.parse import parse_qs

__all__ = ["Gate", "Headers"]

Headers = list[tuple[bytes, bytes]]

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9.-]{1,253})(?::(\d{1,5}))?", re.IGNORECASE)


def _machine_names() -> frozenset[str]:
    return frozenset({"localhost", socket.gethostname().lower()})


@dataclass(frozen=True)
class Gate:
    """The token of a server, and the names that it has."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    names: frozenset[str] = field(default_factory=_machine_names)

    def refusal(self, query: bytes, headers: Headers, *, websocket: bool) -> str:
        """Why a request is not let in; "" for one that is."""
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return "The address has another name than this server."
        origins = _values(headers, b"origin")
        # Browsers send it with every websocket; a plain visit has none.
        if origins or websocket:
            ours = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
            if len(origins) != 1 or origins[0].lower() not in ours:
                return "The request comes from a page of another origin."
        if not self._has_token(query):
            return "The address has no token, or a wrong one; use the one that the server printed."
        return ""

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if not found:
            return False
        name = found[1].lower().strip("[]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True

    def _has_token(self, query: bytes) -> bool:
        try:
            given = parse_qs(query.decode("ascii"), max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(given) == 1 and secrets.compare_digest(given[0].encode(), self.token.encode())


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]
