"""Benchmarks that ``manage.py bench NAME`` finds here by their module's name.

A module offers ``add_arguments(parser)``, ``run_options(options) -> dict`` (JSON-ready) and ``text(result) -> str``.
"""
