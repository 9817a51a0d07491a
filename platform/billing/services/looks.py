"""What a look at the books found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Look:
    """``changed``: how many things happened. ``next_at``: when something will if all goes on as it does; None: never.
    ``any``: whether there is anything to look at again."""

    changed: int
    next_at: datetime | None
    any: bool = True
