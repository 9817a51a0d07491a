"""From the event log to the sockets of this process.

One thread a process follows the table of events by sequence (whoever wrote them, in whatever process: the table is the
only thing that all have in common, so there is no broker to lose messages in). It is woken at once where the writer is
in the same process, and looks every 150 ms otherwise: one query on the primary key. What happened is read once, encoded
once, and handed to each event loop in one call, so that a thousand sockets cost a thousand dictionary updates.

Channel layers are not used: a layer's group sends a message a thousand times, each encoded, queued and decoded by
itself, which was measured at 3,700 (in memory) to 107,000 (Redis Pub/Sub) messages a second; and it forgets what was
sent while nobody listened.

All reading of the database for sockets, and every judgement of who may hear what, is made by this thread, one thing
after the other. So a subscription begins exactly between two batches: what happened before is replayed from the table,
what happens after is delivered; nothing twice, nothing missed. Before a batch that holds a change of rights is
delivered, every socket's rights are read anew; besides that they are every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import close_old_connections, connection
from django.utils import timezone

from events.services import bell
from live import protocol, selectors
from live.access import Access, Credentials, read_accesses
from live.desk import Desk, Socket
from live.mailbox import Item
from live.measurements import Measurements
from live.protocol import Message, Misunderstood, Subscription
from live.subjects import Place, Topic, missed, place_of, still_visible, topics_of
from tenants.policy import Tree, team_tree

log = logging.getLogger(__name__)

POLL_S = 0.15
SLICE_S = 0.025  # how soon a new request is taken up
RIGHTS_S = 4.0
TOTALS_S = 0.5
READINGS_S = 2.0
BREATH_S = 0.03  # after a batch, so that a burst of commits is taken together
TROUBLE_S = 1.0
TIDY_S = 60.0  # how often a database connection that went bad unnoticed is let go
BATCH = 2000
# Who is so far behind (the process slept, or a replay floods the log) is told to read anew instead of every step.
MOST_BEHIND = 20_000


class Gone(Exception):
    """The socket is not, or no longer, allowed to be there; ``code`` is what it is closed with."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


@dataclass
class _Request:
    run: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    desk: Desk | None = None


class Relay:
    """``open``, ``handle`` and ``leave`` are for event loops; the thread lives as long as there are sockets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: deque[_Request] = deque()
        self._thread: threading.Thread | None = None
        self._desks: dict[asyncio.AbstractEventLoop, Desk] = {}
        self._sockets: dict[Socket, None] = {}
        self._topics: dict[Topic, dict[Socket, None]] = {}
        self._tree = Tree({}, {})
        self._pools: dict[int, str] = {}
        self._position = 0
        self._measurements = Measurements()

    # -- for event loops ----------------------------------------------------------------------------------------------

    async def open(self, credentials: Credentials) -> Socket:
        """A socket for who these credentials are; raises Gone where they are nobody's."""
        loop = asyncio.get_running_loop()
        return await self._ask(lambda: self._open(credentials, loop))

    async def handle(self, socket: Socket, message: Message) -> dict[str, Any]:
        """The answer to a subscribe or unsubscribe; raises Misunderstood where it names what is not there."""
        run = self._subscribe if message.verb == "subscribe" else self._unsubscribe
        return await self._ask(lambda: run(socket, message), socket.desk)

    async def leave(self, socket: Socket) -> None:
        """The socket hears nothing any more."""
        await self._ask(lambda: self._leave(socket))

    async def _ask(self, run: Callable[[], Any], desk: Desk | None = None) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._requests.append(_Request(run, loop, answer, desk))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live-relay", daemon=True)
                self._thread.start()
        return await answer

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens, and no thread reads the database for them."""
        with self._lock:
            return self._thread is None

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    self._follow()
                except Exception:
                    # Whatever it was (the database may be away): sockets wait, nobody else would go on for them.
                    log.exception("the relay stumbled and goes on")
                    close_old_connections()
                    time.sleep(TROUBLE_S)
        finally:
            connection.close()

    def _is_over(self) -> bool:
        """Whether nobody is left; then the thread is as good as gone, and the next request starts another."""
        with self._lock:
            over = not self._sockets and not self._requests
            if over:
                self._thread = None
            return over

    def _follow(self) -> None:
        """Goes on from wherever it is until nobody is left. After a fault everything is read anew."""
        if not self._sockets:
            self._position = selectors.position()
        self._recheck()
        seen, polled, measured, totalled, checked, tidied = -1, 0.0, 0.0, 0.0, time.monotonic(), time.monotonic()
        while True:
            served = self._serve()
            self._send()
            if not self._sockets:
                return
            clock = time.monotonic()
            rung = bell.wait(seen, 0 if served else SLICE_S)
            if rung != seen or served or clock - polled >= POLL_S:
                seen, polled = rung, clock
                while self._tail():
                    pass
                time.sleep(BREATH_S)
            if clock - checked >= RIGHTS_S:
                checked = clock
                self._recheck()
            if clock - measured >= READINGS_S:
                measured = clock
                self._deliver(self._measurements.readings(self._topics, self._tree, timezone.now()))
            if clock - totalled >= TOTALS_S:
                totalled = clock
                self._deliver(self._measurements.totals(self._pools, timezone.now()))
            if clock - tidied >= TIDY_S:
                tidied = clock
                close_old_connections()

    def _send(self) -> None:
        for desk in list(self._desks.values()):
            if desk.loop.is_closed():
                # A server that ended without closing its sockets: nobody is behind them any more.
                for socket in [each for each in self._sockets if each.desk is desk]:
                    self._leave(socket)
            else:
                desk.send(self._position)

    def _serve(self) -> bool:
        """Every request so far is answered; returns whether there was one."""
        served = False
        while self._requests:
            served = True
            with self._lock:
                request = self._requests.popleft()
            try:
                result, error = request.run(), None
            except Exception as problem:
                result, error = None, problem
            self._send()
            try:
                request.loop.call_soon_threadsafe(_settle, request.answer, result, error)
            except RuntimeError:
                log.debug("an event loop ended before its answer came")
        return served

    # -- requests -----------------------------------------------------------------------------------------------------

    def _open(self, credentials: Credentials, loop: asyncio.AbstractEventLoop) -> Socket:
        access = read_accesses([credentials]).get(credentials)
        if access is None:
            raise Gone(protocol.SIGNED_OUT)
        desk = self._desks.setdefault(loop, Desk(loop, self._position))
        desk.sockets += 1
        socket = Socket(credentials, desk, access, access)
        self._sockets[socket] = None
        return socket

    def _leave(self, socket: Socket) -> None:
        if socket not in self._sockets:
            return
        del self._sockets[socket]
        for subscription in list(socket.places):
            self._drop(socket, subscription)
        socket.desk.sockets -= 1
        if not socket.desk.sockets:
            self._desks.pop(socket.desk.loop, None)

    def _subscribe(self, socket: Socket, message: Message) -> dict[str, Any]:
        subscription = message.subscription
        assert subscription is not None
        if socket not in self._sockets:
            raise Gone(protocol.SIGNED_OUT)
        if subscription not in socket.places and len(socket.places) >= protocol.MOST_SUBSCRIPTIONS:
            raise Misunderstood("too_many", f"One socket has at most {protocol.MOST_SUBSCRIPTIONS} subscriptions.")
        # Every change of rights so far is taken in first: the socket is judged by what it may see now.
        while self._tail():
            pass
        if socket not in self._sockets:
            raise Gone(protocol.SIGNED_OUT)
        place = place_of(subscription, socket.rights)
        socket.places[subscription] = place
        self._topics.setdefault(place.topic, {})[socket] = None
        self._catch_up(socket, place, message)
        return {"subscribed": subscription.words(), "seq": self._position}

    def _catch_up(self, socket: Socket, place: Place, message: Message) -> None:
        now = timezone.now()
        if message.after is not None:
            events = missed(place, message.after, self._position, self._tree)
            if events is None:
                socket.desk.add(socket.let_go)
            elif events:
                for items in self._items(events, {place.topic: {socket: None}}).values():
                    self._put(socket, items)
        if place.topic[0] == "pool":
            pool_id = place.topic[1]
            if message.snapshot:
                devices = selectors.device_items(selectors.device_ids_of(pool_id), now)
                self._put(socket, devices.get(pool_id, ()))
                self._put(socket, selectors.pool_nodes(pool_id))
            totals = selectors.pool_items([pool_id], self._pools, now)
            self._put(socket, list(totals.values()))

    def _unsubscribe(self, socket: Socket, message: Message) -> dict[str, Any]:
        subscription = message.subscription
        assert subscription is not None
        self._drop(socket, subscription)
        return {"unsubscribed": subscription.words()}

    def _drop(self, socket: Socket, subscription: Subscription) -> None:
        place = socket.places.pop(subscription, None)
        if place is None or any(other.topic == place.topic for other in socket.places.values()):
            return
        listeners = self._topics.get(place.topic, {})
        listeners.pop(socket, None)
        if not listeners:
            self._topics.pop(place.topic, None)
            self._measurements.forget(place.topic)

    def _end(self, socket: Socket, code: int) -> None:
        """The socket is closed with ``code`` and hears nothing more, not even what already waited for it."""
        self._leave(socket)
        socket.desk.add(lambda: socket.close(code))
        if socket.desk.loop not in self._desks:
            socket.desk.send(self._position)

    # -- rights -------------------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """The tree of teams and the pools' names are as they are now."""
        self._tree = team_tree()
        self._pools = selectors.pool_names()

    def _recheck(self) -> None:
        """Every socket has the rights that it has at this moment, and no subscription beyond them."""
        self._look_around()
        accesses = read_accesses(socket.credentials for socket in self._sockets)
        for socket in list(self._sockets):
            access = accesses.get(socket.credentials)
            if access is None:
                self._end(socket, protocol.SIGNED_OUT)
            elif access != socket.rights:
                self._set_access(socket, access)
                self._drop_what_is_hidden(socket, access)

    def _set_access(self, socket: Socket, access: Access) -> None:
        def change() -> None:
            socket.access = access

        if access != socket.rights:
            socket.rights = access
            socket.desk.add(change)

    def _drop_what_is_hidden(self, socket: Socket, access: Access) -> None:
        hidden = [each for each, place in socket.places.items() if not still_visible(place, access)]
        for subscription in hidden:
            self._drop(socket, subscription)
            body = {"ended": subscription.words(), "why": "not_visible"}
            socket.desk.add(lambda body=body: socket.tell(body))  # type: ignore[misc]
        if hidden and not socket.places:
            self._end(socket, protocol.NOTHING_LEFT)

    # -- events -------------------------------------------------------------------------------------------------------

    def _tail(self) -> bool:
        """The next batch is in the mailboxes; returns whether there may be more at once."""
        events = selectors.events_after(self._position, BATCH)
        if not events:
            return False
        newest = events[-1].seq if len(events) < BATCH else selectors.position()
        if newest - self._position > MOST_BEHIND:
            self._recheck()
            for socket in self._sockets:
                socket.desk.add(socket.let_go)
            self._position = newest
        else:
            if any(event.kind.startswith(selectors.RIGHTS_KINDS) for event in events):
                self._recheck()
            elif any(event.kind == "pool.created" or event.kind == "pool.changed" for event in events):
                self._look_around()
            self._deliver(self._items(events, self._topics))
            self._position = events[-1].seq
        self._send()
        return len(events) == BATCH

    def _items(
        self, events: Sequence[selectors.Told], topics: dict[Topic, dict[Socket, None]]
    ) -> dict[Topic, list[Item]]:
        """By topic that somebody in ``topics`` listens to: what these events have made of the things they speak of."""
        found: dict[Topic, list[Item]] = defaultdict(list)
        jobs, team_events, fleet = [], [], []
        for event in events:
            if event.kind in selectors.FLEET_KINDS:
                fleet.append(event)
            elif event.team_id is None:
                continue
            elif any(topics_of(event.team_id, event.job_id, topics, self._tree)):
                if event.job_id is not None and event.kind != "notice":
                    jobs.append(event)
                elif event.kind == "notice" or event.kind.startswith(selectors.TEAM_KINDS):
                    team_events.append(event)
        for item in selectors.job_items(jobs) if jobs else ():
            for topic in topics_of(item.team_id, item.job_id, topics, self._tree):
                found[topic].append(item)
        for item in selectors.team_event_items(team_events, self._pools) if team_events else ():
            for topic in topics_of(item.team_id, None, topics, self._tree):
                found[topic].append(item)
        if fleet:
            self._fleet(fleet, topics, found)
        return found

    def _fleet(
        self,
        events: Sequence[selectors.Told],
        topics: dict[Topic, dict[Socket, None]],
        found: dict[Topic, list[Item]],
    ) -> None:
        watched = {topic[1] for topic in topics if topic[0] == "pool"}
        if not watched:
            return
        now = timezone.now()
        for pool_id, item in selectors.fleet_event_items(events, self._pools).items():
            if pool_id in watched:
                found[("pool", pool_id)].append(item)
                self._measurements.changed(pool_id)
        changed = selectors.changed_devices(events)
        devices = [device_id for pool_id in watched for device_id in changed.get(pool_id, ())]
        nodes = {event.node_id for event in events if event.node_id is not None and event.pool_id in watched}
        grown = {event.pool_id for event in events if event.kind == "nodes.added" and event.pool_id in watched}
        for pool_id in sorted(each for each in grown if each is not None):
            devices += selectors.device_ids_of(pool_id)
            found[("pool", pool_id)] += selectors.pool_nodes(pool_id)
        for pool_id, items in (selectors.device_items(devices, now) if devices else {}).items():
            found[("pool", pool_id)] += items
        for pool_id, items in (selectors.nodes_by_id(nodes) if nodes else {}).items():
            found[("pool", pool_id)] += items

    def _deliver(self, found: dict[Topic, list[Item]]) -> None:
        for topic, items in found.items():
            by_desk: dict[Desk, list[Socket]] = defaultdict(list)
            for socket in self._topics.get(topic, ()):
                by_desk[socket.desk].append(socket)
            for desk, sockets in by_desk.items():
                desk.add(partial(_receive, sockets, items))

    def _put(self, socket: Socket, items: Sequence[Item]) -> None:
        if items:
            socket.desk.add(lambda: socket.receive(items))


def _receive(sockets: Sequence[Socket], items: Sequence[Item]) -> None:
    for socket in sockets:
        socket.receive(items)


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


relay = Relay()
