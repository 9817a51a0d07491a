"""The socket itself: what comes in is understood or refused, what waits is sent, at most four frames a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from channels.exceptions import DenyConnection
from channels.generic.websocket import AsyncWebsocketConsumer

from live import protocol
from live.desk import Socket
from live.protocol import Misunderstood
from live.relay import Gone, relay

log = logging.getLogger(__name__)

FRAME_S = 0.25
SIGN_OF_LIFE_S = 15.0
# A reader that takes nothing for so long is gone, or cannot follow.
PATIENCE_S = 30.0


class LiveSocket(AsyncWebsocketConsumer):
    """One browser or script. Reads nothing from the database by itself: the relay does, for all."""

    # No layer: nothing is sent to a socket but by the relay of its own process.
    channel_layer_alias = "none"

    socket: Socket | None = None
    pump: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        try:
            self.socket = await relay.open(self.scope["credentials"])  # type: ignore[typeddict-item]
        except Gone as gone:
            # Accepted first, because a browser is not told why a handshake was refused.
            await self.accept()
            await self.close(code=gone.code)
            return
        except Exception:
            log.exception("a socket could not be opened")
            raise DenyConnection from None
        await self.accept()
        self.pump = asyncio.create_task(self._pump(self.socket))

    async def __call__(self, *args: Any) -> None:
        """However it ends, a fault or a cancellation included (the other side may go away in the middle of an answer,
        before a disconnect is told): the relay keeps no socket that nobody reads."""
        try:
            await super().__call__(*args)
        finally:
            await self._leave()

    async def disconnect(self, code: int) -> None:
        await self._leave()

    async def _leave(self) -> None:
        if self.pump is not None:
            pump, self.pump = self.pump, None
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
        if self.socket is not None:
            socket, self.socket = self.socket, None
            await relay.leave(socket)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.socket is None:
            return
        given = text_data if text_data is not None else bytes_data or b""
        if len(given) > protocol.LONGEST_MESSAGE:
            await self._answer({"error": {"code": "too_large", "message": "A message has at most 8,192 characters."}})
            await self.close(code=protocol.TOO_LARGE)
            return
        ref: str | int | None = None
        try:
            if text_data is None:
                raise Misunderstood("not_json", "A message is a JSON object, sent as text.")
            message = protocol.understood(text_data)
            ref = message.ref
            if message.verb == "ping":
                body = {"pong": message.payload}
            else:
                body = await relay.handle(self.socket, message)
        except Misunderstood as misunderstood:
            body = {"error": misunderstood.told}
        except Gone as gone:
            await self.close(code=gone.code)
            return
        except Exception:
            log.exception("a message could not be answered")
            await self.close(code=protocol.BROKEN)
            return
        await self._answer(body if ref is None else {**body, "ref": ref})

    async def _answer(self, body: dict[str, Any]) -> None:
        await self.send(text_data=protocol.encode(body))

    async def _pump(self, socket: Socket) -> None:
        """Sends what waits, until the socket is closed from either side."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        await socket.wake.wait()
                quiet = not socket.wake.is_set()
                socket.wake.clear()
                async with asyncio.timeout(PATIENCE_S):
                    if socket.closing is not None:
                        await self._say(socket)
                        await self.close(code=socket.closing)
                        return
                    await self._say(socket)
                    frame = socket.mailbox.take(socket.access, socket.desk.position, socket.desk.press)
                    if frame is None and quiet:
                        frame = f'{{"seq":{socket.desk.position}}}'
                    if frame is not None:
                        await self.send(text_data=frame)
                await asyncio.sleep(FRAME_S)
        except TimeoutError:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await self.close(code=protocol.TOO_SLOW)
        except asyncio.CancelledError:
            raise
        except Exception:
            # The other side went away in the middle; disconnect follows.
            log.debug("a socket went away while it was written to", exc_info=True)

    async def _say(self, socket: Socket) -> None:
        answers, socket.answers[:] = list(socket.answers), []
        for answer in answers:
            await self.send(text_data=answer)
