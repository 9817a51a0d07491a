"""The one mapper from our refusals and the framework's errors to answers: problem+json for REST (RFC 9457)."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, JsonResponse
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from config.rest import TooLarge
from events.errors import Fault, Refusal, shortened

PROBLEM = "application/problem+json"
# Where the framework's own title has a gap for what came.
TITLES = {405: "Method not allowed", 415: "Unsupported media type"}


def problem(
    status: int, code: str, title: str, detail: str, faults: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    body: dict[str, Any] = {"type": f"urn:allotment:{code}", "title": title, "status": status, "code": code}
    body["detail"] = detail
    if faults:
        body["errors"] = faults
        # The first fault is also told flat, for callers that show one.
        body.update({key: faults[0][key] for key in ("field", "value", "allowed") if key in faults[0]})
    return body


def refusal_problem(error: Refusal) -> dict[str, Any]:
    return problem(error.status, error.code, error.title, error.message, [fault.as_json() for fault in error.faults])


def faults_of(detail: Any, value: Any = None, path: str = "") -> list[dict[str, Any]]:
    """Every leaf of a serializer's error tree as a fault with its path (``groups[0].gpus``)."""
    if isinstance(detail, dict):
        found: list[dict[str, Any]] = []
        for key, inner in detail.items():
            inner_value = value.get(key) if isinstance(value, dict) else None
            name = path if key == "non_field_errors" else f"{path}.{key}" if path else str(key)
            found += faults_of(inner, inner_value, name)
        return found
    if isinstance(detail, list):
        found = []
        for index, inner in enumerate(detail):
            if isinstance(inner, dict | list):
                inner_value = value[index] if isinstance(value, list) and index < len(value) else None
                found += faults_of(inner, inner_value, f"{path}[{index}]")
            else:
                found.append(Fault(path, str(inner), getattr(inner, "code", "invalid"), value).as_json())
        return [fault for fault in found if fault]
    return [Fault(path, str(detail), getattr(detail, "code", "invalid"), shortened(value)).as_json()]


def problem_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: every refusal as problem+json; what is no refusal stays an error of ours."""
    if isinstance(error, Refusal):
        response = Response(refusal_problem(error), status=error.status)
    else:
        if isinstance(error, Http404):
            error = exceptions.NotFound("There is no such thing, or you may not see it.")
        elif isinstance(error, PermissionDenied):
            error = exceptions.PermissionDenied()
        elif isinstance(error, RequestDataTooBig):
            error = TooLarge()
        elif isinstance(error, BadRequest | SuspiciousOperation | MultiPartParserError):
            error = exceptions.ParseError()
        found = exception_handler(error, context)
        if found is None:
            return None
        response = found
        assert isinstance(error, exceptions.APIException)
        response.data = api_problem(error, context)
    response.content_type = PROBLEM
    return response


def api_problem(error: exceptions.APIException, context: dict[str, Any]) -> dict[str, Any]:
    if isinstance(error, exceptions.ValidationError):
        request = context.get("request")
        faults = faults_of(error.detail, getattr(request, "data", None))
        detail = "; ".join(f"{fault['field']}: {fault['message']}" for fault in faults)
        return problem(400, "invalid", "The request is not valid", detail, faults)
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else "error"
    detail = str(error.detail)
    if isinstance(error, exceptions.UnsupportedMediaType):
        detail = f"{detail} Send application/json."
    elif isinstance(error, exceptions.MethodNotAllowed):
        allowed = getattr(context.get("view"), "allowed_methods", [])
        detail = f"{detail} Here are {', '.join(allowed)}."
    return problem(error.status_code, code, TITLES.get(error.status_code, str(error.default_detail)), detail)


def not_found(request: Any, exception: Exception) -> JsonResponse:
    body = problem(404, "not_found", "Not found", "There is no such address.")
    return JsonResponse(body, status=404, content_type=PROBLEM)
