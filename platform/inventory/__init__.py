"""Pools, nodes, devices, accelerator models, engines."""
