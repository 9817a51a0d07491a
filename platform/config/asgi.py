"""The ASGI application: pages and REST by Django, the live socket by Channels."""

import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for source_root in (str(ROOT / "platform"), str(ROOT)):
    if source_root not in sys.path:
        sys.path.insert(0, source_root)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.embedded")

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402

# Where static files are served as they lie in the source, nothing was collected, and that is no fault.
warnings.filterwarnings("ignore", message="No directory at", category=UserWarning)
# Before anything that imports models: this is what loads the apps.
pages = get_asgi_application()

from live.admission import Admission  # noqa: E402
from live.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter({"http": pages, "websocket": Admission(URLRouter(websocket_urlpatterns))})
