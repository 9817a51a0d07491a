"""The addresses of telemetry under ``/api/v1/``."""

from django.urls import path

from telemetry import api

api_urlpatterns = [
    path("pools/<str:pool>/utilization", api.PoolUtilization.as_view(), name="api-pool-utilization"),
    path("jobs/<int:job_id>/utilization", api.JobUtilization.as_view(), name="api-job-utilization"),
]
