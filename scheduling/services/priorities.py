"""Who may use which priority. A class may be open to certain roles only; a value of its own is at most as high as the
highest class that is open to the person and does not go ahead of other teams' jobs. An operator may use any.

A job with a value of its own counts, for the caps of classes, under the class that it has beside it: ``normal`` where
it was submitted with a value.
"""

from __future__ import annotations

from collections.abc import Iterable

from events.errors import Fault, Invalid
from scheduling.models import PriorityClass
from tenants.models import User

LOWEST = 0  # that a person may give to a job of their own


def priority_fault(
    user: User, role: str, classes: Iterable[PriorityClass], asked: str | int, where: str = "priority"
) -> Fault | None:
    """What is wrong with ``asked``, a class's name or a value, for a person with this role in the job's team."""
    known = list(classes)
    open_ones = [each for each in known if user.is_operator or not each.roles or role in each.roles]
    if isinstance(asked, str):
        names = [each.name for each in open_ones]
        return None if asked in names else Fault(where, "is not a priority class open to you", "unknown", asked, names)
    if user.is_operator:
        return None
    highest = max((each.value for each in open_ones if not each.cluster_wide), default=None)
    if highest is None or highest < LOWEST:
        message = "no value of its own may be given: no priority class of this team is open to you"
        return Fault(where, message, value=asked, allowed=[each.name for each in open_ones])
    if LOWEST <= asked <= highest:
        return None
    message = f"must be from {LOWEST} to {highest}, the value of the highest class that is open to you in this team"
    return Fault(where, message, value=asked, allowed=[LOWEST, highest])


def check_priority(user: User, role: str, asked: str | int) -> None:
    """Raises Invalid where the person may not give this priority to a job of a team in which they have this role."""
    fault = priority_fault(user, role, PriorityClass.objects.order_by("name"), asked)
    if fault is not None:
        raise Invalid([fault])
