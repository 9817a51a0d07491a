"""The house rules that no tool holds: the second source root, the one door for writes, vendored files, words."""

import ast
import hashlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
APPS = [
    *sorted(marker.parent for marker in (ROOT / "platform").glob("*/__init__.py")),
    *(ROOT / name for name in ("quotas", "scheduling", "tenants")),
]
TELL_PLATFORM = "import platform; print('platform is', platform.__file__)"


def run(*command: str, **environment: str) -> str:
    """Standard output of a command started in the repository root; fails the test where the command fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | {"DJANGO_SETTINGS_MODULE": "config.settings.test"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def assert_standard(output: str) -> None:
    told = re.search(r"^platform is (.+)$", output, re.MULTILINE)
    assert told, output
    assert Path(told[1]).resolve() == STANDARD_LIBRARY / "platform.py"


# `platform/` holds packages and is none: with an __init__.py it would take the place of the standard library's module
# for everything that is started in the repository root.


def test_the_source_root_is_no_package() -> None:
    assert (ROOT / "platform" / "config" / "__init__.py").exists()
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_platform_is_the_standard_librarys_in_the_repository_root() -> None:
    assert_standard(run(sys.executable, "-c", TELL_PLATFORM))


def test_platform_is_the_standard_librarys_under_pytest() -> None:
    assert str(ROOT) in sys.path
    assert str(ROOT / "platform") in sys.path
    assert Path(platform.__file__).resolve() == STANDARD_LIBRARY / "platform.py"


def test_platform_is_the_standard_librarys_under_manage_py() -> None:
    assert_standard(run(sys.executable, "manage.py", "shell", "--no-imports", "-c", TELL_PLATFORM))


def test_platform_is_the_standard_librarys_under_celery() -> None:
    """Celery's report names the system by asking platform.system(), which no namespace package could answer."""
    report = run(sys.executable, "-m", "celery", "-A", "config.celery_app", "report", PYTHONPATH="platform")
    assert f"system:{platform.system()} " in report


def test_platform_is_the_standard_librarys_under_the_asgi_server() -> None:
    """uvicorn loads the application as it does for `uvicorn --app-dir platform config.asgi:application`."""
    load = "import sys; sys.path.insert(0, 'platform'); from uvicorn.importer import import_from_string as load; "
    assert_standard(run(sys.executable, "-c", load + "load('config.asgi:application'); " + TELL_PLATFORM))


# The core decides from what it is given and nothing else.

CORE_MAY_IMPORT = {"numba", "numpy", "scheduling"}
CORE_MAY_NOT_IMPORT = {"asyncio", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time"}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "scheduling.core" if node.level else str(node.module)


def test_the_core_imports_only_itself_numpy_numba_and_the_standard_library() -> None:
    allowed = CORE_MAY_IMPORT | (set(sys.stdlib_module_names) - CORE_MAY_NOT_IMPORT)
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "scheduling" / "core").rglob("*.py"))
        for name in imported_modules(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[0] not in allowed
        or (name.startswith("scheduling") and not name.startswith("scheduling.core"))
    ]
    assert strangers == []


# One door for writes.

WRITERS = {"save", "create", "get_or_create", "update_or_create", "bulk_create", "bulk_update", "update", "delete"}
WRITERS |= {f"a{name}" for name in WRITERS} | {"_raw_delete"}
# Rows are written to by keyword; a dict, a cache, a file or an image takes the like-named call by position.
TAKES_POSITIONS = {"bulk_create", "bulk_update", "abulk_create", "abulk_update"}
WRITING_SQL = re.compile(r"\s*(insert|update|delete|replace|truncate)\b", re.IGNORECASE)

# What may write outside a `services` module, and why.
WRITES_ELSEWHERE: dict[str, str] = {}


def names_of_dicts(tree: ast.AST) -> set[str]:
    """Variables that are assigned a dict somewhere in the module; their update by keyword writes no row."""
    makers = ("dict(", "dict.fromkeys(")
    return {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and (isinstance(node.value, ast.Dict | ast.DictComp) or ast.unparse(node.value).startswith(makers))
        for target in node.targets
    }


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every call that looks like a write to rows."""
    dicts = names_of_dicts(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, receiver = node.func.attr, ast.unparse(node.func.value)
        if name == "update" and (receiver in dicts or receiver.endswith(".conf")):  # dicts, and Celery's settings
            continue
        if name in WRITERS and (name in TAKES_POSITIONS or not node.args):
            yield node.lineno, ast.unparse(node)
        elif name in {"execute", "executemany"} and node.args:
            query = node.args[0]
            if isinstance(query, ast.Constant) and WRITING_SQL.match(str(query.value)):
                yield node.lineno, ast.unparse(node)


def callers_of_services() -> Iterator[Path]:
    """Every module of the apps that is neither a service nor a migration nor a management command."""
    doors = {"services", "services.py", "migrations", "management", "__pycache__"}
    for app in APPS:
        for path in sorted(app.rglob("*.py")):
            if not doors & set(path.relative_to(app).parts):
                yield path


def writes_outside_services() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in callers_of_services():
        for line, call in writes(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(str(path.relative_to(ROOT)), []).append(f"line {line}: {call}")
    return found


def test_only_services_write() -> None:
    strangers = {path: calls for path, calls in writes_outside_services().items() if path not in WRITES_ELSEWHERE}
    assert strangers == {}


def test_every_exception_to_the_one_door_is_needed() -> None:
    assert set(WRITES_ELSEWHERE) <= set(writes_outside_services())


@pytest.mark.parametrize(
    "line",
    [
        "job.save()",
        "job.save(update_fields=['state'])",
        "Job.objects.create(team=team)",
        "Job.objects.filter(pk=1).update(state='held')",
        "Job.objects.filter(pk=1).delete()",
        "Job.objects.bulk_create(jobs)",
        "await job.asave()",
        "team.jobs.get_or_create(name='a')",
        "form.save()",
        "cursor.execute(' UPDATE jobs SET state = 1')",
    ],
)
def test_a_write_is_seen(line: str) -> None:
    code = f"async def f():\n    {line}\n"
    assert len(list(writes(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "counts.update(other)",
        "digest.update(b'')",
        "cache.delete('key')",
        "super().save(*args, **kwargs)",
        "picture.save(path)",
        "cursor.execute('SELECT 1')",
        "celery_app.conf.update(beat_schedule_filename=path)",
        "values = dict.fromkeys(names, '')\nvalues.update(name=job.name)",
    ],
)
def test_what_only_looks_like_a_write_is_not(line: str) -> None:
    assert list(writes(ast.parse(line))) == []


# Vendored files.

VENDOR = ROOT / "static" / "vendor"
VENDORED_FOLDERS = sorted(path for path in VENDOR.iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", VENDORED_FOLDERS, ids=lambda folder: folder.name)
def test_a_vendored_folder_has_its_version_and_its_licence(folder: Path) -> None:
    assert re.search(r"-\d+(\.\d+)+$", folder.name)
    assert "Permission" in (folder / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", VENDORED_FOLDERS, ids=lambda folder: folder.name)
def test_vendored_files_are_those_of_the_ledger(folder: Path) -> None:
    ledger = (VENDOR / "VENDORED.md").read_text(encoding="utf-8")
    name, _, version = folder.name.rpartition("-")
    section = ledger.partition(f"\n## {name} {version}\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", section, re.MULTILINE))
    actual = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}
    assert listed == actual


def test_no_vendored_file_asks_for_a_source_map() -> None:
    asking = [
        path.name
        for path in VENDOR.rglob("*")
        if path.suffix in {".css", ".js"} and b"sourceMappingURL" in path.read_bytes()
    ]
    assert asking == []


def test_charts_need_no_evaluated_text() -> None:
    """What lets pages forbid `unsafe-eval`."""
    (plotly,) = VENDOR.glob("plotly-basic-*/plotly-basic.min.js")
    assert re.findall(rb"new Function\b|(?<![\w.$])Function\(|(?<![\w.$])eval\(", plotly.read_bytes()) == []


def test_every_vendored_file_that_a_page_names_exists() -> None:
    named = {
        (path.relative_to(ROOT), name)
        for folder in (ROOT / "templates", ROOT / "static" / "js", *APPS)
        for path in folder.rglob("*")
        if path.suffix in {".html", ".js", ".css", ".py"}
        for name in re.findall(r"vendor/[\w./-]+\.\w+", path.read_text(encoding="utf-8"))
    }
    assert [(str(path), name) for path, name in sorted(named) if not (ROOT / "static" / name).exists()] == []


def test_no_page_loads_from_another_host() -> None:
    loading = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)\s*=\s*["'](?:https?:)?//""")
    strangers = [
        str(path.relative_to(ROOT))
        for folder in (ROOT / "templates", *APPS)
        for path in folder.rglob("*.html")
        if loading.search(path.read_text(encoding="utf-8"))
    ]
    assert strangers == []


def test_no_file_names_hosts_paths_or_ways_of_working() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: only git knows which files are the repository's")
    run(str(ROOT / ".ci" / "words"))


def test_pins_are_exact_and_name_no_host() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), f"{name}: {line}"
