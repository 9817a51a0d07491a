from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "telemetry"

    def ready(self) -> None:
        from scheduling import ports
        from telemetry import idleness

        ports.idleness = idleness.MeasuredIdleness()
