"""Jobs, tasks, allocations, and the scheduler."""
