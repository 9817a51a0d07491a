"""The base of every REST view."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.views import APIView

from wire.pages import NoParameters
from wire.strict import Strict


class ApiView(APIView):
    """``queries``: the parameters of each method; one that is not named there takes none. ``now``: when it came in."""

    queries: ClassVar[Mapping[str, type[Strict]]] = {}
    metadata_class = None
    query: dict[str, Any]
    now: datetime

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.now = timezone.now()
        method = "GET" if request.method == "HEAD" else request.method or ""
        self.query = self.queries.get(method, NoParameters).read_query(request.query_params)
