from django.apps import AppConfig
from django.db.models.signals import post_migrate


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        from billing import guards, meter, watch
        from scheduling import ports

        post_migrate.connect(guards.install, sender=self, dispatch_uid="billing.guards")
        ports.meter = meter.LedgerMeter()
        ports.budgets = watch.LedgerBudgets()
