"""What waits to be sent to one socket: the latest of each thing, never more than so many things."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from live.access import Access

# Enough for every device of a very large pool; entries are shared between sockets, so a slow one costs about 1 MiB.
MOST_ENTRIES = 10_000
SECTIONS = ("events", "devices", "nodes", "pools", "readings")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing's latest state, encoded once for all sockets. ``team_id`` None: about the fleet, for everyone.

    ``text`` is its JSON; of an event, what follows its ``kinds``; of a device, what comes before its slices, which are
    given apart by team because not everyone may see them all.
    """

    key: tuple[object, ...]
    section: str
    team_id: int | None
    text: str
    seq: int = 0
    kinds: tuple[str, ...] = ()
    slices: tuple[tuple[int, str], ...] = ()
    job_id: int | None = None

    def after(self, earlier: Item) -> Item:
        """This item, which takes the place of ``earlier``, with the kinds of both."""
        if set(earlier.kinds) <= set(self.kinds):
            return self
        return replace(self, kinds=(*earlier.kinds, *(kind for kind in self.kinds if kind not in earlier.kinds)))

    def encode(self, access: Access) -> str:
        if self.section == "events":
            kinds = ",".join(f'"{kind}"' for kind in self.kinds)
            return f'{{"seq":{self.seq},"kinds":[{kinds}],{self.text}}}'
        if self.section == "devices":
            return f"{self.text}[{','.join(text for team_id, text in self.slices if access.sees(team_id))}]]"
        return self.text


class Mailbox:
    """Kept by the thread of one event loop. Items are put in the order in which they became true."""

    def __init__(self, most: int = MOST_ENTRIES):
        self._most = most
        self._items: dict[tuple[object, ...], Item] = {}
        self._overflown = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[Item]) -> None:
        """The latest of each thing is kept. If they are too many, all are let go and the reader resyncs."""
        if self._overflown:
            return
        kept = self._items
        for item in items:
            earlier = kept.get(item.key)
            kept[item.key] = item if earlier is None else item.after(earlier)
        if len(kept) > self._most:
            self.overflow()

    def overflow(self) -> None:
        """What waits is let go; the next frame says so."""
        self._items.clear()
        self._overflown = True

    def take(self, access: Access, seq: int) -> str | None:
        """The frame with everything that waits and that ``access`` may see at this moment; None where nothing does."""
        if self._overflown:
            self._overflown = False
            return f'{{"seq":{seq},"resync":true}}'
        if not self._items:
            return None
        sections: dict[str, list[Item]] = {}
        for item in self._items.values():
            if access.sees(item.team_id):
                sections.setdefault(item.section, []).append(item)
        self._items = {}
        if not sections:
            return None
        if "events" in sections:
            sections["events"].sort(key=lambda item: item.seq)
        parts = [f'"seq":{seq}']
        for name in SECTIONS:
            if name in sections:
                inside = ",".join([item.encode(access) for item in sections[name]])
                parts.append(f'"{name}":{{{inside}}}' if name == "pools" else f'"{name}":[{inside}]')
        return "{" + ",".join(parts) + "}"
