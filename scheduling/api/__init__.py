"""REST: jobs, priority classes, a team's shares, and the events of all of it."""
