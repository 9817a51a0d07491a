"""The Celery application. Named celery_app, because a module ``celery`` on the path would shadow the library."""

import os
import sys
from pathlib import Path

from celery import Celery

ROOT = Path(__file__).resolve().parents[2]
for source_root in (str(ROOT / "platform"), str(ROOT)):
    if source_root not in sys.path:
        sys.path.insert(0, source_root)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.embedded")

celery_app = Celery("allotment")
celery_app.config_from_object("django.conf:settings", namespace="CELERY")
celery_app.autodiscover_tasks()
