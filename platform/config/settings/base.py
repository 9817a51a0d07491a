"""What every way of running shares. What differs comes from the environment or from the module on top."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import dj_database_url
from celery.schedules import crontab
from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parents[3]
DATA_DIR = Path(os.environ.get("ALLOTMENT_DATA", ROOT / "var")).resolve()

DEBUG = False
ALLOWED_HOSTS: list[str] = []

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "config",
    "events",
    "inventory",
    "tenants",
    "quotas",
    "scheduling",
    "billing",
    "telemetry",
    "live",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "config.middleware.ViewerTimezone",
    "config.middleware.ContentSecurityPolicy",
    "config.middleware.RefusalPages",
    "config.middleware.StorableText",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
WSGI_APPLICATION = None

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.i18n",
                "config.context.product",
            ],
        },
    },
]

# IMMEDIATE: a transaction that will write says so at its start, so that two never meet half way and give up.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA cache_size=-65536;"
    "PRAGMA temp_store=MEMORY",
}


def database(default_file: Path) -> Any:
    """The connection that ``DATABASE_URL`` names, or SQLite in ``default_file``."""
    url = os.environ.get("DATABASE_URL")
    if url:
        return dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True)
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": default_file, "OPTIONS": dict(SQLITE_OPTIONS)}


DATABASES = {"default": database(DATA_DIR / "allotment.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "tenants.User"
AUTHENTICATION_BACKENDS = ["tenants.authentication.NamedUserBackend"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文"), ("zh-hant", "繁體中文")]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = ROOT / "staticfiles"
STATICFILES_DIRS = [ROOT / "static"]

REDIS_URL = os.environ.get("REDIS_URL", "")

CELERY_BROKER_URL = REDIS_URL or "memory://localhost/"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Every chore is idempotent and short; a copy that is delivered late finds nothing to do.
CELERY_BEAT_SCHEDULE = {
    "expire-quotas": {"task": "quotas.tasks.expire_quotas", "schedule": 60.0},
    "roll-up-utilization": {"task": "telemetry.tasks.roll_up", "schedule": 60.0},
    "find-idle": {"task": "telemetry.tasks.find_idle", "schedule": 120.0},
    "end-idle-jobs": {"task": "telemetry.tasks.end_idle", "schedule": 30.0},
    "prune-events": {"task": "events.tasks.prune", "schedule": crontab(minute="17")},
    "prune-samples": {"task": "telemetry.tasks.prune", "schedule": crontab(minute="37")},
    "close-month": {"task": "billing.tasks.close_month", "schedule": crontab(minute="5")},
    "look-at-budgets": {"task": "billing.tasks.look_at_budgets", "schedule": 60.0},
    "issue-invoices": {"task": "billing.tasks.issue_invoices", "schedule": crontab(minute="45")},
    "send-notices": {"task": "live.tasks.send_notices", "schedule": 60.0},
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.authentication.TokenAuthentication",
        "tenants.authentication.BrowserSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated", "tenants.permissions.TokenReads"],
    "DEFAULT_PARSER_CLASSES": ["config.rest.ExactJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["config.rest.ExactJSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "config.errors.problem_response",
    "DEFAULT_PAGINATION_CLASS": None,
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "config.rest.OneForm",
    "DEFAULT_THROTTLE_CLASSES": ["config.rest.RequestRate"],
    "COERCE_DECIMAL_TO_STRING": True,
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
API_REQUESTS_PER_MINUTE = int(os.environ.get("API_REQUESTS_PER_MINUTE", "3000"))
SPECTACULAR_SETTINGS = {
    "TITLE": "Allotment",
    "DESCRIPTION": (
        "Teams, quotas, pools and jobs of an accelerator fleet. Quantities of GPUs are JSON numbers in GPUs; "
        "money is a string."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": r"/api/v1/",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "config.openapi.with_problems"],
    "ENUM_NAME_OVERRIDES": {
        "JobState": "scheduling.models.Job.State",
        "TeamState": "tenants.models.Team.State",
        "PoolState": "inventory.models.Pool.State",
        "NodeState": "inventory.models.Node.State",
        "AllocationState": "scheduling.models.Allocation.State",
        "EngineState": "inventory.models.EngineConnection.State",
        "JobKind": "scheduling.models.Job.Kind",
        "EngineKind": "inventory.models.EngineConnection.Kind",
        "DecisionKind": "scheduling.models.Decision.Kind",
    },
    # The interface's own files, served from here: the default loads them from another host.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": False, "defaultModelsExpandDepth": 0},
}
# How long the shares of all teams are kept where nothing happens (0: not at all).
SHARES_CACHE_SECONDS = 5

# A request body is a list of at most 1,000 jobs; 4 MiB holds them with room to spare.
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "config.views.errors.stale_form"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"

UNFOLD = {
    "SITE_TITLE": "Allotment operator console",
    "SITE_HEADER": "Allotment",
    "SITE_SUBHEADER": "Operator console",
    "SITE_URL": "/",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname:7} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "WARNING")},
}

# Money and calendars of this installation.
BILLING_CURRENCY = os.environ.get("ALLOTMENT_CURRENCY", "EUR")
BILLING_TIME_ZONE = os.environ.get("ALLOTMENT_BILLING_TIME_ZONE", "UTC")
# Tax on an invoice's net total, in percent; what a package pays is left out of the net ("net") or paid with its tax.
BILLING_TAX_PERCENT = os.environ.get("ALLOTMENT_TAX_PERCENT", "0")
BILLING_PACKAGES_PAY = os.environ.get("ALLOTMENT_PACKAGES_PAY", "net")
if BILLING_PACKAGES_PAY not in ("net", "gross"):
    raise ImproperlyConfigured(f"ALLOTMENT_PACKAGES_PAY is net or gross, not {BILLING_PACKAGES_PAY!r}")
if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4})?", BILLING_TAX_PERCENT) is None:
    raise ImproperlyConfigured(f"ALLOTMENT_TAX_PERCENT is a percentage such as 19, not {BILLING_TAX_PERCENT!r}")

# The local engine runs commands as this process's user: off unless the operator turns it on.
LOCAL_ENGINE_ENABLED = os.environ.get("ALLOTMENT_LOCAL_ENGINE", "") == "1"
LOCAL_ENGINE_DIR = DATA_DIR / "local"
LOCAL_LOG_DAYS = 30
EVENT_RETENTION_DAYS = 30

# What cycles of the scheduler decided over is kept, so that a decision can be worked out again: so many records, so
# many bytes of them, and so many new bytes a second (a large busy fleet is recorded every few seconds). 0: nothing.
RECORDED_CYCLES = int(os.environ.get("ALLOTMENT_RECORDED_CYCLES", "2000"))
RECORDED_CYCLE_BYTES = int(os.environ.get("ALLOTMENT_RECORDED_CYCLE_BYTES", str(64 << 20)))
RECORDED_BYTES_A_SECOND = int(os.environ.get("ALLOTMENT_RECORDED_BYTES_A_SECOND", str(32 << 10)))
# How long a web process that was asked nothing keeps its picture of the fleet, which dry runs decide over (0: not).
PICTURE_KEPT_SECONDS = 600
