"""The addresses of sockets."""

from django.urls import path

from live.consumers import LiveSocket

websocket_urlpatterns = [path("ws/", LiveSocket.as_asgi())]
