"""The first start makes the cast and the demo, both or neither, and nobody is left without a password."""

from __future__ import annotations

import pytest

from config import demo
from inventory.models import Pool
from tenants.models import User
from tests.conftest import NOW

pytestmark = pytest.mark.django_db


def test_a_first_start_that_is_cut_short_is_made_again(tmp_path, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    for part in ("make_demo", "credentials_file"):
        with monkeypatch.context() as patched:
            patched.setattr(demo, part, killed)
            with pytest.raises(KeyboardInterrupt):
                demo.first_start(NOW, tmp_path, empty=False)
        assert not User.objects.exists()
        assert not Pool.objects.exists()
    cast = demo.first_start(NOW, tmp_path, empty=False)
    assert User.objects.get(username="bob").check_password(cast.password)
    assert demo.credentials_file(tmp_path).read_text().strip() == cast.password
    assert demo.credentials_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert demo.has_demo()


def test_a_second_start_changes_nothing(tmp_path):
    demo.first_start(NOW, tmp_path, empty=True)
    assert not demo.has_demo()
    assert demo.first_start(NOW, tmp_path, empty=False) == demo.Cast("", False)
    assert not demo.has_demo()
