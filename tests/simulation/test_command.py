"""``manage.py simulate``: what it prints, how it ends, and that it never touches the configured database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections

from scheduling.simulation.database import throw_away_database
from tenants.models import Team

ROOT = Path(__file__).resolve().parents[2]
GOOD = """title: good
pools: [{name: train, nodes: [{name: n, accelerators: 2}]}]
teams: [{name: a}]
steps:
  - {at: 0s, submit: {job: j, team: a, gpus: 1, duration: 1h}}
  - {at: 1h, expect: {jobs: {j: succeeded}}}
"""
WRONG = GOOD.replace("title: good", "title: wrong").replace("j: succeeded", "j: running")
INVALID = GOOD.replace("accelerators", "acelerators")

pytestmark = pytest.mark.django_db


@pytest.fixture
def files(tmp_path):
    found = {}
    for name, text in (("good", GOOD), ("wrong", WRONG), ("invalid", INVALID)):
        found[name] = tmp_path / f"{name}.yaml"
        found[name].write_text(text, encoding="utf-8")
    return found


def simulate(*arguments: object) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("simulate", *map(str, arguments), stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def test_a_file_that_holds_ends_with_0(files):
    code, out = simulate(files["good"])
    assert code == 0
    assert out.startswith(f"ok {files['good']}: good (1 expectation,")


def test_a_file_that_fails_ends_with_1_and_tells_where(files):
    code, out = simulate(files["wrong"], files["good"])
    assert code == 1
    assert f"{files['wrong']}:6: at 1h: jobs.j.state: wanted running, seen succeeded\n" in out
    assert f"ok {files['good']}" in out


def test_a_file_that_is_not_valid_ends_with_2_and_the_others_run(files):
    code, out = simulate(files["invalid"], files["wrong"], files["good"])
    assert code == 2
    line = next(line for line in out.splitlines() if "invalid.yaml" in line)
    assert line.startswith(
        f"{files['invalid']}: line 2: pools[0].nodes[0].acelerators: there is no such field; allowed: "
    )
    assert "wanted running" in out
    assert f"ok {files['good']}" in out


def test_json_is_for_machines(files):
    code, out = simulate("--json", files["wrong"], files["invalid"], files["good"])
    assert code == 2
    told = json.loads(out)
    assert told["passed"] is False
    wrong, invalid, good = told["files"]
    assert wrong["failures"] == [
        {"line": 6, "at": "1h", "field": "jobs.j.state", "wanted": "running", "seen": "succeeded"}
    ]
    assert invalid["error"]["line"] == 2
    assert "accelerators" in invalid["error"]["allowed"]
    assert (good["passed"], good["expectations"], good["failures"]) == (True, 1, [])


def test_the_configured_database_is_not_touched(files):
    before = (connection.settings_dict["NAME"], Team.objects.count())
    simulate(files["good"])
    assert (connection.settings_dict["NAME"], Team.objects.count()) == before


def test_a_database_to_throw_away_is_empty_each_time_and_gone_after():
    from tenants.services import create_team
    from tests.conftest import NOW

    configured = connections["default"]
    for _ in range(2):
        with throw_away_database():
            assert connections["default"] is not configured
            assert Team.objects.count() == 0
            create_team("A", NOW)
    with pytest.raises(ZeroDivisionError), throw_away_database():
        _ = 1 / 0
    assert connections["default"] is configured
    assert not Team.objects.filter(name="A").exists()


def test_it_needs_no_database_at_all(files, tmp_path):
    """As a stranger starts it: no database is there, and none is there afterwards."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings.test",
        "DATABASE_URL": f"sqlite:///{tmp_path}/never.sqlite3",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "simulate", str(files["good"])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "never.sqlite3").exists()


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "inf", "nan"])
def test_a_speed_that_is_none_is_refused(files, speed):
    from django.core.management.base import CommandError

    with pytest.raises(CommandError, match="--speed: must be a number above 0"):
        simulate(files["good"], f"--speed={speed}")


def test_from_a_shell_a_speed_that_is_none_ends_with_2_and_no_traceback(files, capsys):
    from django.core.management import execute_from_command_line

    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "simulate", str(files["good"]), "--speed=0"])
    assert ended.value.code == 2
    assert "--speed: must be a number above 0, is 0" in capsys.readouterr().err


def test_speed_makes_it_take_its_time(files):
    import time

    begun = time.monotonic()
    assert simulate(files["good"], "--speed=18000")[0] == 0
    assert time.monotonic() - begun >= 3600 / 18000
