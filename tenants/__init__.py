"""Users, teams, memberships, tokens and the permission policy."""
