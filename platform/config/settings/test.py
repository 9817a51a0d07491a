"""For pytest: SQLite in a file (threads and processes meet as in life) or what DATABASE_URL names."""

import tempfile
from pathlib import Path

from config.settings.base import *  # noqa: F403
from config.settings.base import DATABASES

SECRET_KEY = "only-for-tests"  # noqa: S105
ALLOWED_HOSTS = ["*"]
DATA_DIR = Path(tempfile.gettempdir()) / "allotment-tests"
LOCAL_ENGINE_DIR = DATA_DIR / "local"
LOCAL_ENGINE_ENABLED = True
# Argon2 is made to be slow; the tests of sign-in set it back.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", "django.contrib.auth.hashers.Argon2PasswordHasher"]
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
DATABASES["default"]["TEST"] = (
    {"NAME": DATA_DIR / "test.sqlite3"} if DATABASES["default"]["ENGINE"].endswith("sqlite3") else {}
)
DATA_DIR.mkdir(parents=True, exist_ok=True)
