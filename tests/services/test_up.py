"""``manage.py up`` and its kin say in one line what keeps them from starting, and have then changed nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings


def manage(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=settings.ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_port_that_is_taken_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = manage("up", "--empty", "--data", str(tmp_path / "data"), PORT=port, HOST="127.0.0.1")
    assert ended.returncode == 1
    assert ended.stderr == (
        f"CommandError: Cannot listen on 127.0.0.1:{port}: Address already in use. Set PORT to another.\n"
    )
    assert ended.stdout == ""
    assert not (tmp_path / "data" / "credentials.txt").exists()


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PORT": "eighty"}, "PORT must be a number from 1 to 65535, not 'eighty'"),
        ({"PORT": "70000"}, "PORT must be a number from 1 to 65535, not '70000'"),
        ({"HOST": "no.such.host.invalid"}, "Cannot listen on no.such.host.invalid:8000: "),
    ],
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, environment: dict[str, str], says: str) -> None:
    ended = manage("up", "--empty", "--data", str(tmp_path), **{"PORT": "", "HOST": "", **environment})
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"CommandError: {says}")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "credentials.txt").exists()


def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        ended = manage("up", "--empty", "--data", str(folder))
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"Allotment cannot keep its things in {folder}: ")
        assert ended.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_token_of_an_installation_that_is_not_there(tmp_path: Path) -> None:
    ended = manage("issue_token", "bob", "--data", str(tmp_path / "typo"))
    assert (ended.returncode, ended.stderr) == (1, f"--data: there is no folder {tmp_path / 'typo'}\n")
    assert not (tmp_path / "typo").exists()
    ended = manage("issue_token", "bob", "--data", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "There is nobody in this database yet" in ended.stderr
    assert "Traceback" not in ended.stderr
