"""What the database itself refuses: two usage records of one allocation that overlap, a closed one changing, and any
change of an issued invoice, of its lines, of what it bills and of what was drawn from packages.

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

# Written once, never changed. (On PostgreSQL never deleted either; SQLite deletes row by row what it empties.)
PHOTOGRAPHS = ("billing_invoice", "billing_invoiceline", "billing_invoicedrecord", "billing_packagedraw")
NO_MORE_LINES = "SELECT line_count FROM billing_invoice WHERE id = NEW.invoice_id"

SQLITE_PHOTOGRAPHS = (
    *(
        f"""CREATE TRIGGER IF NOT EXISTS {table}_is_immutable BEFORE UPDATE ON {table}
            BEGIN SELECT RAISE(ABORT, '{table}_is_immutable'); END"""
        for table in PHOTOGRAPHS
    ),
    f"""CREATE TRIGGER IF NOT EXISTS invoice_takes_no_more_lines BEFORE INSERT ON billing_invoiceline
        WHEN NEW.position > ({NO_MORE_LINES}) OR NEW.position < 1
        BEGIN SELECT RAISE(ABORT, 'invoice_takes_no_more_lines'); END""",
)
POSTGRESQL_PHOTOGRAPHS = (
    """CREATE OR REPLACE FUNCTION billing_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         RAISE EXCEPTION '% is immutable', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
       END $$""",
    *(
        f"""CREATE OR REPLACE TRIGGER {table}_is_immutable BEFORE UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION billing_is_immutable()"""
        for table in PHOTOGRAPHS
    ),
    f"""CREATE OR REPLACE FUNCTION invoice_takes_no_more_lines() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         IF NEW.position < 1 OR NEW.position > ({NO_MORE_LINES}) THEN
           RAISE EXCEPTION 'invoice_takes_no_more_lines' USING ERRCODE = 'integrity_constraint_violation';
         END IF;
         RETURN NEW;
       END $$""",
    """CREATE OR REPLACE TRIGGER invoice_takes_no_more_lines BEFORE INSERT ON billing_invoiceline
       FOR EACH ROW EXECUTE FUNCTION invoice_takes_no_more_lines()""",
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
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor))
        if "billing_usagerecord" not in tables:
            return
        statements = POSTGRESQL if postgresql else SQLITE
        if tables.issuperset(PHOTOGRAPHS):
            statements = (*statements, *(POSTGRESQL_PHOTOGRAPHS if postgresql else SQLITE_PHOTOGRAPHS))
        for statement in statements:
            cursor.execute(statement)
