"""An event loop's end of the relay: its sockets, and the one call by which a batch reaches all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from live import protocol
from live.access import Access, Credentials
from live.mailbox import Batch, Mailbox, Press
from live.protocol import Subscription
from live.subjects import Place

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Socket:
    """One open socket. ``rights`` and ``places`` belong to the relay's thread; what changes of the rest belongs to the
    event loop: ``access`` follows ``rights`` in the order of deliveries."""

    credentials: Credentials
    desk: Desk
    rights: Access
    access: Access
    mailbox: Mailbox = field(default_factory=Mailbox)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    answers: list[str] = field(default_factory=list)
    closing: int | None = None
    places: dict[Subscription, Place] = field(default_factory=dict)

    def receive(self, items: Batch) -> None:
        self.mailbox.put(items)
        self.wake.set()

    def tell(self, body: dict[str, Any]) -> None:
        self.answers.append(protocol.encode(body))
        self.wake.set()

    def close(self, code: int) -> None:
        self.closing = self.closing or code
        self.wake.set()

    def let_go(self) -> None:
        self.mailbox.overflow()
        self.wake.set()


@dataclass(eq=False)
class Desk:
    """One event loop's end of the relay. ``position``: everything up to it has been put into the mailboxes."""

    loop: asyncio.AbstractEventLoop
    position: int = 0
    sockets: int = 0
    press: Press = field(default_factory=Press)
    _work: list[Callable[[], None]] = field(default_factory=list)

    def add(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def send(self, position: int) -> None:
        """What was added is done by the loop, in that order, and its position is ``position``."""
        work, self._work = self._work, []
        if not work and position == self.position:
            return

        def deliver() -> None:
            for each in work:
                each()
            self.position = position

        try:
            self.loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            log.debug("an event loop ended with sockets open")
