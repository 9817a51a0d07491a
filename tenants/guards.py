"""What the database itself refuses and Django's constraints cannot say: a team as its own ancestor.

Installed after every migration (idempotent), because SQLite loses triggers when a migration remakes a table.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

SQLITE = """
CREATE TRIGGER IF NOT EXISTS team_tree_has_no_cycle BEFORE UPDATE OF parent_id ON tenants_team
WHEN NEW.parent_id IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'team_tree_has_no_cycle') WHERE NEW.id IN (
    WITH RECURSIVE above(id) AS (
      SELECT NEW.parent_id UNION SELECT t.parent_id FROM tenants_team t JOIN above ON t.id = above.id
    ) SELECT id FROM above
  );
END
"""

# The lock makes two moves at once wait for one another: each alone may be fine and both together a cycle.
POSTGRESQL = """
CREATE OR REPLACE FUNCTION team_tree_has_no_cycle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(1095519234);
  IF EXISTS (
    WITH RECURSIVE above(id) AS (
      SELECT NEW.parent_id UNION SELECT t.parent_id FROM tenants_team t JOIN above ON t.id = above.id
    ) SELECT 1 FROM above WHERE id = NEW.id
  ) THEN
    RAISE EXCEPTION 'team_tree_has_no_cycle' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER team_tree_has_no_cycle BEFORE UPDATE OF parent_id ON tenants_team
FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL) EXECUTE FUNCTION team_tree_has_no_cycle();
"""


def install(using: str = "default", **kwargs: Any) -> None:
    """The triggers are there, whether or not they were before."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if "tenants_team" in connection.introspection.table_names(cursor):
            cursor.execute(POSTGRESQL if connection.vendor == "postgresql" else SQLITE)
