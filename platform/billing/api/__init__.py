"""REST: what was used and what it costs."""
