"""Strict reading of queries and bodies: what is not known by name is refused by name, with what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.http import QueryDict
from rest_framework import serializers

from events.errors import Fault, Invalid

SEVERAL = (serializers.MultipleChoiceField, serializers.ListField)


class Strict(serializers.Serializer):
    """The fields of a query or of a body. ``not_yet``: names that a later version will know, refused as such."""

    not_yet: ClassVar[tuple[str, ...]] = ()
    in_query: bool = False

    @classmethod
    def read_query(cls, parameters: QueryDict) -> dict[str, Any]:
        """The parameters that were given, as values. Raises Invalid with every fault."""
        reader = cls(data={})
        reader.in_query = True
        faults = list(reader.unknown(parameters))
        given: dict[str, Any] = {}
        for name, field in reader.fields.items():
            values = parameters.getlist(name)
            if isinstance(field, SEVERAL):
                values = [part for value in values for part in value.split(",")]
                if values:
                    given[name] = values
            elif len(values) > 1:
                faults.append(Fault(name, "is given more than once", value=values[0]))
            elif values:
                given[name] = values[0]
        return reader.read(given, faults)

    @classmethod
    def read_body(cls, body: Any, *, where: str = "") -> dict[str, Any]:
        """The fields that were given, as values. Raises Invalid with every fault; ``where`` goes before field names."""
        if not isinstance(body, Mapping):
            raise Invalid.at(where.rstrip(".") or "body", "must be an object", value=body)
        reader = cls(data={})
        return reader.read(body, list(reader.unknown(body, where)), where)

    def read(self, given: Mapping[str, Any], faults: list[Fault], where: str = "") -> dict[str, Any]:
        self.initial_data = given
        if not self.is_valid():
            faults += self._faults(self.errors, given, where)
        if faults:
            raise Invalid(faults[:100])
        return dict(self.validated_data)

    def unknown(self, given: Mapping[str, Any] | QueryDict, where: str = "") -> Iterator[Fault]:
        allowed = sorted(self.fields)
        for name in given:
            label = f"{where}{str(name)[:80]}"
            if name in self.not_yet:
                yield Fault(label, "is not supported yet; leave it out", code="not_supported_yet", allowed=allowed)
            elif name not in self.fields:
                what = "parameter" if self.in_query else "field"
                yield Fault(label, f"is not a {what} of this request", code="unknown_name", allowed=allowed)

    def _faults(self, errors: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Iterator[Fault]:
        for name, detail in errors.items():
            field = self.fields.get(name)
            choices = getattr(field, "choices", None) or getattr(getattr(field, "child", None), "choices", None)
            yield Fault(
                f"{where}{name}",
                " ".join(_sentences(detail)),
                value=given.get(name),
                allowed=list(choices) if choices else None,
            )


def _sentences(detail: Any) -> Iterator[str]:
    if isinstance(detail, Mapping):
        for inner in detail.values():
            yield from _sentences(inner)
    elif isinstance(detail, list):
        for inner in detail:
            yield from _sentences(inner)
    else:
        yield str(detail)
