"""For pytest: SQLite in a file (threads and processes meet as in life) or what DATABASE_URL names."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from config.settings.base import *  # noqa: F403
from config.settings.base import DATABASES

SECRET_KEY = "only-for-tests"  # noqa: S105
ALLOWED_HOSTS = ["*"]

# A folder of this run's own, so that two runs never meet; its worker processes share it.
if "ALLOTMENT_TEST_DATA" not in os.environ:
    os.environ["ALLOTMENT_TEST_DATA"] = tempfile.mkdtemp(prefix="allotment-tests-")
    atexit.register(shutil.rmtree, os.environ["ALLOTMENT_TEST_DATA"], ignore_errors=True)
DATA_DIR = Path(os.environ["ALLOTMENT_TEST_DATA"])
LOCAL_ENGINE_DIR = DATA_DIR / "local"
LOCAL_ENGINE_ENABLED = True
# Argon2 is made to be slow; the tests of sign-in set it back.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", "django.contrib.auth.hashers.Argon2PasswordHasher"]
WHITENOISE_USE_FINDERS = True
# Tests roll back: the number of the last event does not tell two of them apart.
SHARES_CACHE_SECONDS = 0
PICTURE_KEPT_SECONDS = 0
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
DATABASES["default"]["TEST"] = (
    {"NAME": DATA_DIR / "test.sqlite3"} if DATABASES["default"]["ENGINE"].endswith("sqlite3") else {}
)
STATIC_ROOT = DATA_DIR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
