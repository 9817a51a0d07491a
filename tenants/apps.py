from django.apps import AppConfig
from django.db.models.signals import post_migrate


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        from tenants import guards

        post_migrate.connect(guards.install, sender=self, dispatch_uid="tenants.guards")
