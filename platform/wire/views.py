"""The base of every REST view."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.utils import timezone
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from wire.pages import NoParameters
from wire.strict import Strict


class ApiView(APIView):
    """``queries``: the parameters of each method; one that is not named there takes none. ``now``: when it came in.

    ``rate_headers`` are put there by the throttle.
    """

    http_method_names = ["get", "post", "put", "patch", "delete", "head"]
    queries: ClassVar[Mapping[str, type[Strict]]] = {}
    rate_headers: Mapping[str, str] = {}
    query: dict[str, Any]
    now: datetime

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.now = timezone.now()
        method = "GET" if request.method == "HEAD" else request.method or ""
        if method.lower() in self.http_method_names and hasattr(self, method.lower()):
            self.query = self.queries.get(method, NoParameters).read_query(request.query_params)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Response:
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "no-store")
        for name, value in self.rate_headers.items():
            answer.headers[name] = value
        return answer

    def body(self) -> Any:
        """The JSON value that came. Raises ParseError where nothing did."""
        value = self.request.data
        if self.request.stream is None:
            raise ParseError("The body is empty.")
        return value
