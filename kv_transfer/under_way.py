"""Messages that P is sending over one link, oldest first, and the blocks they are read from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kv_transfer.leases import Piece
from kv_transfer.link import Pending


class UnderWay:
    """Belongs to one thread. `let_go` is called once for each piece that was read from its place,
    when it is so no more."""

    def __init__(self, let_go: Callable[[Piece], None], timeout_s: float) -> None:
        self._let_go = let_go
        self._timeout_s = timeout_s
        self._messages: deque[tuple[Sequence[Pending], Piece | None]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, parts: Sequence[Pending], in_place: Piece | None = None) -> None:
        """A message that was started; `in_place`: its piece, if blocks of it are still read."""
        self._messages.append((parts, in_place))

    def wait(self) -> None:
        """For the oldest. Raises TransferError."""
        parts, in_place = self._messages.popleft()
        try:
            for part in parts:
                part.wait(self._timeout_s)
        finally:
            if in_place is not None:
                self._let_go(in_place)

    def drop(self) -> None:
        """The link has failed: nothing is read any more."""
        while self._messages:
            _, in_place = self._messages.popleft()
            if in_place is not None:
                self._let_go(in_place)
