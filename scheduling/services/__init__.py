"""The only writers of jobs, tasks, allocations and decisions."""
