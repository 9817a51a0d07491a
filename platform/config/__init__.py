"""The Django project: settings, urls, the ASGI application, and what starts it all."""
