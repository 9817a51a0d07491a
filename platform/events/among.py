"""``filter(pk__among=ids)``: as ``pk__in``, for long lists of whole numbers: one parameter instead of one for each.

A statement with two thousand of them takes longer to put together, and to plan, than to carry out.
"""

from __future__ import annotations

import json
from typing import Any

from django.db.models import Field, ForeignObject
from django.db.models.lookups import Lookup


class Among(Lookup):
    """The ids may come in any iterable of integers; none of them matches nothing."""

    lookup_name = "among"
    prepare_rhs = False

    def get_prep_lookup(self) -> list[int]:
        return [int(each) for each in self.rhs]

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, parameters = self.process_lhs(compiler, connection)
        chosen = "IN (SELECT value FROM json_each(%s))"
        return f"{left} {chosen}", (*parameters, json.dumps(self.rhs))

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, parameters = self.process_lhs(compiler, connection)
        return f"{left} = ANY(%s::bigint[])", (*parameters, self.rhs)


Field.register_lookup(Among)
ForeignObject.register_lookup(Among)  # which has a list of its own
