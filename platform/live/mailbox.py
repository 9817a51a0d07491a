"""What waits to be sent to one socket: the latest of each thing, never more than so many things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from live.access import Access

# Half of it is kept after merging: enough for every device of a very large pool. Entries are shared between sockets.
MOST_ENTRIES = 20_000
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


Batch = Sequence[Item]


def merged(batches: Iterable[Batch]) -> dict[tuple[object, ...], Item]:
    """The latest of each thing in ``batches``, which are in the order in which they became true."""
    latest: dict[tuple[object, ...], Item] = {}
    for batch in batches:
        for item in batch:
            earlier = latest.get(item.key)
            latest[item.key] = item if earlier is None else item.after(earlier)
    return latest


def sections_of(items: Iterable[Item], access: Access) -> str:
    """The inside of a frame with those of ``items`` that ``access`` may see; empty where it may see none."""
    sections: dict[str, list[Item]] = {}
    for item in items:
        if access.sees(item.team_id):
            sections.setdefault(item.section, []).append(item)
    if "events" in sections:
        sections["events"].sort(key=lambda item: item.seq)
    parts = []
    for name in SECTIONS:
        if name in sections:
            inside = ",".join([item.encode(access) for item in sections[name]])
            parts.append(f'"{name}":{{{inside}}}' if name == "pools" else f'"{name}":[{inside}]')
    return ",".join(parts)


class Press:
    """Prints what waits for a socket, once for all that wait for the same and may see the same.

    Sockets of one subscription are woken together and so wait for the same batches; a thousand of them cost one
    merging and one encoding.
    """

    def __init__(self, most: int = 32):
        self._most = most
        # The batches are kept with what was printed of them: as long as they live, their ids are nobody else's.
        self._printed: dict[tuple[object, ...], tuple[tuple[Batch, ...], str]] = {}

    def print(self, batches: Sequence[Batch], access: Access) -> str:
        key = (access.visible, *map(id, batches))
        found = self._printed.get(key)
        if found is None:
            found = (tuple(batches), sections_of(merged(batches).values(), access))
            self._printed[key] = found
            if len(self._printed) > self._most:
                del self._printed[next(iter(self._printed))]
        return found[1]


class Mailbox:
    """Kept by the thread of one event loop. Holds batches, which many mailboxes share, in the order they were put."""

    def __init__(self, most: int = MOST_ENTRIES):
        self._most = most
        self._batches: list[Batch] = []
        self._count = 0
        self._overflown = False

    def __len__(self) -> int:
        return self._count

    def put(self, batch: Batch) -> None:
        """The latest of each thing is kept. If that is too much, all is let go and the reader is told to resync."""
        if self._overflown:
            return
        self._batches.append(batch)
        self._count += len(batch)
        if self._count > self._most:
            kept = tuple(merged(self._batches).values())
            self._batches, self._count = [kept], len(kept)
            # Half, so that what comes next does not make it merge everything again each time.
            if self._count > self._most // 2:
                self.overflow()

    def overflow(self) -> None:
        """What waits is let go; the next frame says so."""
        self._batches, self._count = [], 0
        self._overflown = True

    def take(self, access: Access, seq: int, press: Press) -> str | None:
        """The frame with everything that waits and that ``access`` may see at this moment; None where nothing does."""
        if self._overflown:
            self._overflown = False
            return f'{{"seq":{seq},"resync":true}}'
        if not self._batches:
            return None
        batches, self._batches, self._count = self._batches, [], 0
        inside = press.print(batches, access)
        return f'{{"seq":{seq},{inside}}}' if inside else None
