"""The requests in this house by the names under which they can be cancelled."""

from __future__ import annotations

from typing import Protocol

from core.errors import BadRequestError

PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""What answers put before a request's id."""


class RequestNotFoundError(BadRequestError):
    """No request of this name runs here: it has ended, or another router has it."""

    code = "request_not_found"
    http_status = 404


class AmbiguousRequestError(BadRequestError):
    """Clients chose the same name for several requests; none of them is touched."""

    code = "ambiguous_request_id"
    http_status = 409


_Key = tuple[str, str]
"""A tenant, empty without keys, and a name among its requests."""


class Cancellable(Protocol):
    """A request, or a part of one."""

    def cancel(self) -> None: ...


class RunningRequests:
    """Parts (one for each prompt) by their request's own id and by the name the client chose.

    Names are looked up among one tenant's requests only, so nobody ends another's. Two clients of a
    tenant may choose the same, so a name that means several requests cancels none.
    """

    def __init__(self) -> None:
        self._parts: dict[_Key, list[Cancellable]] = {}
        self._chosen: dict[_Key, dict[str, int]] = {}
        """The client's name > own ids under it > parts of each."""

    def add(self, part: Cancellable, tenant: str, request_id: str, client_id: str) -> None:
        """Followed by exactly one `remove` with the same arguments. `client_id` may be empty."""
        self._parts.setdefault((tenant, request_id), []).append(part)
        if client_id:
            ids = self._chosen.setdefault((tenant, client_id), {})
            ids[request_id] = ids.get(request_id, 0) + 1

    def remove(self, part: Cancellable, tenant: str, request_id: str, client_id: str) -> None:
        parts = self._parts[tenant, request_id]
        parts.remove(part)
        if not parts:
            del self._parts[tenant, request_id]
        if client_id:
            ids = self._chosen[tenant, client_id]
            ids[request_id] -= 1
            if not ids[request_id]:
                del ids[request_id]
            if not ids:
                del self._chosen[tenant, client_id]

    def cancel(self, tenant: str, name: str) -> str:
        """Ends the request, soon; returns its own id.

        Raises RequestNotFoundError, and AmbiguousRequestError for a name of several requests.
        """
        request_id = self._find(tenant, name)
        for part in tuple(self._parts[tenant, request_id]):
            part.cancel()
        return request_id

    def _find(self, tenant: str, name: str) -> str:
        for prefix in ("", *PREFIXES):
            if name.startswith(prefix) and (tenant, name.removeprefix(prefix)) in self._parts:
                return name.removeprefix(prefix)
        ids = list(self._chosen.get((tenant, name), ()))
        if not ids:
            raise RequestNotFoundError(f"no request '{name[:64]}' runs here")
        if len(ids) > 1:
            raise AmbiguousRequestError(
                f"{len(ids)} requests are called '{name[:64]}'; cancel each by its own id"
            )
        return ids[0]
