"""The addresses of sockets."""

from typing import Any

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from live.consumers import LiveSocket

websocket_urlpatterns: list[Any] = [
    path("ws/", LiveSocket.as_asgi()),  # type: ignore[arg-type]
    re_path("", WebsocketDenier.as_asgi()),  # type: ignore[arg-type]
]
