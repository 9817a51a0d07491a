#!/usr/bin/env python
"""Django's command line. Sees the source root ``platform/`` and honours ``--data DIR`` before settings are read."""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def take_data_option(argv: list[str]) -> list[str]:
    """``argv`` without ``--data DIR``; the folder goes to the environment, where settings look for it."""
    rest: list[str] = []
    items = iter(argv)
    for item in items:
        if item == "--data" or item.startswith("--data="):
            folder = next(items, "") if item == "--data" else item.removeprefix("--data=")
            if not folder:
                sys.exit("--data needs a folder")
            if argv[1] in {"issue_token", "explain"} and not Path(folder).is_dir():
                sys.exit(f"--data: there is no folder {folder}")
            os.environ["ALLOTMENT_DATA"] = str(Path(folder).resolve())
        else:
            rest.append(item)
    return rest


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.embedded")
    argv = sys.argv.copy()
    if len(argv) > 1 and not argv[1].startswith("-"):
        argv[1] = argv[1].replace("-", "_")  # replay-cycle is the module replay_cycle
    if argv[1:2] == ["replay"] and "DATABASE_URL" not in os.environ and not any(a.startswith("--data") for a in argv):
        # A replay fills a database of its own and leaves the one that people work with alone.
        os.environ["ALLOTMENT_DATA"] = tempfile.mkdtemp(prefix="allotment-replay-")
    if len(argv) > 1 and argv[1] in {"up", "issue_token", "migrate", "shell", "replay", "explain"}:
        argv = take_data_option(argv)
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(argv)
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell tells of what Ctrl-C ended


if __name__ == "__main__":
    main()
