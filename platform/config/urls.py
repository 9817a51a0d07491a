"""Every address of the product."""

from django.contrib import admin
from django.urls import include, path

from config.api_urls import no_such_address
from config.health import healthz
from config.views import home, pools, quotas, team

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("config.api_urls")),
    path("api/<path:rest>", no_such_address),
    path("api/", no_such_address),
    path("", home.home, name="home"),
    path("fleet/", home.fleet, name="fleet"),
    path("teams/<str:slug>/", team.team, name="team"),
    path("pools/", pools.pools, name="pools"),
    path("pools/<str:name>/", pools.pool, name="pool"),
    path("pools/<str:name>/map.json", pools.pool_map, name="pool-map"),
    path("pools/<str:name>/devices/<int:device_id>/", pools.device, name="device"),
    path("quotas/", quotas.quotas, name="quotas"),
    path("", include("tenants.urls")),
    path("", include("scheduling.urls")),
]

handler403 = "config.views.errors.forbidden"
handler404 = "config.views.errors.not_found"
handler500 = "config.views.errors.server_error"
