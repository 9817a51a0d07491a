"""What the OpenAPI description says beyond the views: how one signs in, and how every operation refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerFieldExtension

from scheduling.services.submit import MAX_JOBS
from wire.fields import NAME_PATTERN, Name


class BearerToken(OpenApiAuthenticationExtension):
    """A token in ``Authorization: Bearer …``."""

    target_class = "tenants.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `manage.py issue_token` or POST /tokens.",
        }


class BrowserCookie(OpenApiAuthenticationExtension):
    """The session of a browser that is signed in; what writes needs Django's X-CSRFToken too."""

    target_class = "tenants.authentication.BrowserSession"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


class OneText(OpenApiSerializerFieldExtension):
    """Texts that are asked for are never empty and hold no NUL; names are one line."""

    target_class = "wire.fields.Text"
    match_subclasses = True

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        schema = auto_schema._map_serializer_field(self.target, direction, bypass_extensions=True)
        pattern = NAME_PATTERN if isinstance(self.target, Name) else r"^[^\x00]*$"
        return {**schema, "minLength": 1, "pattern": pattern}


class SomeChoices(OpenApiSerializerFieldExtension):
    """At least one of the choices."""

    target_class = "wire.fields.Choices"

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        schema = auto_schema._map_serializer_field(self.target, direction, bypass_extensions=True)
        return {**schema, "minItems": 1}


def with_problems(result: Mapping[str, Any], generator: Any, request: Any, public: bool) -> Mapping[str, Any]:
    """The description says of every operation how it refuses: problem+json, RFC 9457. (A hook of drf-spectacular.)"""
    for operations in result["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            operation["responses"]["4XX"] = {"$ref": "#/components/responses/Problem"}
    components = result["components"]
    components.setdefault("responses", {})["Problem"] = {
        "description": "Refused: what, where and what is allowed.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    components["schemas"]["Problem"] = PROBLEM_SCHEMA
    for name, more in BODIES.items():
        components["schemas"][name].update({"additionalProperties": False, **more})
    for option in components["schemas"]["JobOrJobsRequest"]["oneOf"]:
        if option.get("type") == "array":
            option.update({"minItems": 1, "maxItems": MAX_JOBS})
    return result


# Bodies that refuse what they do not know, and what else is true of them beyond their fields.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "JobRequest": {},
    "TaskGroupRequest": {},
    "QuotaRequest": {},
    "PatchedQuotaRequest": {},
    "RateRequest": {"dependentRequired": {"band_start": ["band_end"], "band_end": ["band_start"]}},
    "TokenRequest": {},
    "JobFilter": {"minProperties": 1},
    "CancelRequest": {"minProperties": 1, "maxProperties": 1},
}
FAULT_SCHEMA = {
    "type": "object",
    "required": ["field", "code", "message"],
    "properties": {
        "field": {"type": "string", "description": "Where: a field's name or its path, like groups[0].gpus."},
        "code": {"type": "string"},
        "message": {"type": "string"},
        "value": {"description": "What was given, shortened where it is long."},
        "allowed": {"type": "array", "description": "What would be right, where that can be listed."},
    },
}
PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable; for programs to tell refusals apart."},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": FAULT_SCHEMA,
            "description": "Everything that is wrong, not only the first.",
        },
        "field": {"type": "string", "description": "That of the first error, for callers that show one."},
        "value": {"description": "That of the first error."},
        "allowed": {"type": "array", "description": "Those of the first error."},
    },
}
