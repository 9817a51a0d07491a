"""Every address of the REST API, version 1."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path, re_path, register_converter
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

import config.openapi  # noqa: F401 (registers how one signs in)
from billing.api import budgets, invoices, packages, usage
from config.errors import not_found
from inventory import api as inventory
from quotas import api as quotas
from scheduling.api import fleet, jobs
from telemetry.urls import api_urlpatterns as telemetry
from tenants import api as tenants


class NameConverter:
    """A slug or a name of a pool, model or class; anything else is no address."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(NameConverter, "name")


class OpenApiJson(SpectacularAPIView):
    renderer_classes = [OpenApiJsonRenderer]
    throttle_classes = ()


class OpenApiYaml(SpectacularAPIView):
    renderer_classes = [OpenApiYamlRenderer]
    throttle_classes = ()


@csrf_exempt
def no_such_address(request: HttpRequest, **kwargs: object) -> JsonResponse:
    return not_found(request, LookupError(request.path))


urlpatterns: list[URLPattern] = [
    path("openapi.json", OpenApiJson.as_view(), name="openapi"),
    path("openapi.yaml", OpenApiYaml.as_view(), name="openapi-yaml"),
    path("docs", SpectacularSwaggerView.as_view(url_name="openapi", throttle_classes=()), name="api-docs"),
    path("me", tenants.Me.as_view()),
    path("tokens", tenants.Tokens.as_view()),
    path("tokens/<int:token_id>", tenants.OneToken.as_view()),
    path("teams", tenants.Teams.as_view()),
    path("teams/<name:team>", fleet.OneTeam.as_view()),
    path("pools", inventory.Pools.as_view()),
    path("pools/<name:pool>", inventory.OnePool.as_view()),
    path("nodes", inventory.Nodes.as_view()),
    path("nodes/<int:node_id>", inventory.OneNode.as_view()),
    path("devices", inventory.Devices.as_view()),
    path("devices/<int:device_id>", inventory.OneDevice.as_view()),
    path("accelerator-models", inventory.AcceleratorModels.as_view()),
    path("accelerator-models/<name:model>", inventory.OneAcceleratorModel.as_view()),
    path("priority-classes", fleet.PriorityClasses.as_view()),
    path("priority-classes/<name:name>", fleet.OnePriorityClass.as_view()),
    path("quotas", quotas.Quotas.as_view()),
    path("quotas/<name:pool>/<name:team>", quotas.OneQuota.as_view()),
    path("jobs", jobs.Jobs.as_view()),
    path("jobs/cancel", jobs.CancelJobs.as_view()),
    path("jobs/<int:job_id>", jobs.OneJob.as_view()),
    path("jobs/<int:job_id>/cancel", jobs.CancelJob.as_view()),
    path("jobs/<int:job_id>/hold", jobs.HoldJob.as_view()),
    path("jobs/<int:job_id>/release", jobs.ReleaseJob.as_view()),
    path("jobs/<int:job_id>/logs", jobs.JobLogs.as_view()),
    path("jobs/<int:job_id>/allocations", jobs.JobAllocations.as_view()),
    path("jobs/<int:job_id>/decisions", jobs.JobDecisions.as_view()),
    path("jobs/<int:job_id>/events", jobs.JobEvents.as_view()),
    path("events", fleet.Events.as_view()),
    path("usage", usage.Usage.as_view()),
    path("rates", usage.Rates.as_view()),
    path("budgets", budgets.Budgets.as_view()),
    path("budgets/<int:budget_id>", budgets.OneBudget.as_view()),
    path("packages", packages.Packages.as_view()),
    path("packages/<int:package_id>", packages.OnePackage.as_view()),
    path("packages/<int:package_id>/confirm", packages.ConfirmPackage.as_view()),
    path("invoices", invoices.Invoices.as_view()),
    path("invoices/draft", invoices.Draft.as_view()),
    path("invoices/<int:invoice_id>", invoices.OneInvoice.as_view()),
    path("invoices/<int:invoice_id>/csv", invoices.InvoiceCsv.as_view()),
    path("invoices/<int:invoice_id>/credit", invoices.CreditInvoice.as_view()),
    path("idle-costs", usage.IdleCosts.as_view()),
    *telemetry,
    re_path(r"^", no_such_address),
]
