"""What the database itself refuses of usage: two records of one allocation that overlap, and a closed one changing.

Installed after every migration (idempotent), because SQLite loses triggers when a migration remakes a table.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

OVERLAP = """
  SELECT RAISE(ABORT, 'usage_records_do_not_overlap') WHERE EXISTS (
    SELECT 1 FROM billing_usagerecord other
    WHERE other.allocation_id = NEW.allocation_id AND other.id IS NOT NEW.id
      AND (other.ended_at IS NULL OR other.ended_at > NEW.started_at)
      AND (NEW.ended_at IS NULL OR other.started_at < NEW.ended_at)
      AND (NEW.ended_at IS NULL OR NEW.ended_at > NEW.started_at)
      AND (other.ended_at IS NULL OR other.ended_at > other.started_at)
  );
"""

SQLITE = (
    f"""CREATE TRIGGER IF NOT EXISTS usage_records_do_not_overlap_1 BEFORE INSERT ON billing_usagerecord
        BEGIN {OVERLAP} END""",
    f"""CREATE TRIGGER IF NOT EXISTS usage_records_do_not_overlap_2 BEFORE UPDATE ON billing_usagerecord
        BEGIN {OVERLAP} END""",
    """CREATE TRIGGER IF NOT EXISTS usage_record_is_immutable BEFORE UPDATE ON billing_usagerecord
       WHEN OLD.ended_at IS NOT NULL BEGIN SELECT RAISE(ABORT, 'usage_record_is_immutable'); END""",
)

POSTGRESQL = (
    "CREATE EXTENSION IF NOT EXISTS btree_gist",
    """DO $$ BEGIN
         IF NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = 'usage_records_do_not_overlap') THEN
           ALTER TABLE billing_usagerecord ADD CONSTRAINT usage_records_do_not_overlap
             EXCLUDE USING gist (allocation_id WITH =, tstzrange(started_at, ended_at) WITH &&);
         END IF;
       END $$""",
    """CREATE OR REPLACE FUNCTION usage_record_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         RAISE EXCEPTION 'usage_record_is_immutable' USING ERRCODE = 'integrity_constraint_violation';
       END $$""",
    """CREATE OR REPLACE TRIGGER usage_record_is_immutable BEFORE UPDATE ON billing_usagerecord
       FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION usage_record_is_immutable()""",
)


def install(using: str = "default", **kwargs: Any) -> None:
    """The guards are there, whether or not they were before."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if "billing_usagerecord" not in connection.introspection.table_names(cursor):
            return
        for statement in POSTGRESQL if connection.vendor == "postgresql" else SQLITE:
            cursor.execute(statement)
