"""Everything on one machine with nothing installed: SQLite, in-process, loopback. What ``manage.py up`` runs."""

import os
import secrets
import sys

from config.settings.base import *  # noqa: F403
from config.settings.base import DATA_DIR


def kept_secret(name: str) -> str:
    """The secret in ``DATA_DIR/name``, made at the first start and readable by this user only."""
    path = DATA_DIR / name
    try:
        DATA_DIR.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if path.is_file():
            return path.read_text().strip()
        # Nothing works without it, and there is nobody yet who could say so better.
        sys.exit(f"Allotment cannot keep its things in {DATA_DIR}: {error.strerror}.")
    with os.fdopen(handle, "w") as file:
        secret = secrets.token_urlsafe(50)
        file.write(secret)
    return secret


SECRET_KEY = os.environ.get("SECRET_KEY") or kept_secret("secret_key")
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *filter(None, os.environ.get("ALLOWED_HOSTS", "").split(","))]
if os.environ.get("HOST"):
    ALLOWED_HOSTS.append(os.environ["HOST"])
CSRF_TRUSTED_ORIGINS = list(filter(None, os.environ.get("CSRF_TRUSTED_ORIGINS", "").split(",")))
LOCAL_ENGINE_ENABLED = os.environ.get("ALLOTMENT_LOCAL_ENGINE", "1") == "1"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
