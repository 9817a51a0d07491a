"""Fetch the vendored front end into static/vendor and write its ledger, VENDORED.md.

For whoever raises a version: change PACKAGES, run `python3 .ci/vendor.py` (needs npm), read the diff, commit.
Nothing in a build or a test calls this; the files it wrote are in the repository.
"""

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "static" / "vendor"

# A reference to a map that is not shipped makes a manifest static storage fail, and the maps are larger than the code.
SOURCE_MAP_LINE = re.compile(rb"^(?://|/\*)# sourceMappingURL=.*$\n?", re.MULTILINE)

# What can run text as code; a page's content security policy has to know of it.
EVALUATES_TEXT = re.compile(rb"new Function\b|(?<![\w.$])Function\(|(?<![\w.$])eval\(")

ICONS = """
activity adjustments alert-circle alert-hexagon alert-triangle apps archive arrow-back-up arrow-down arrow-left
arrow-narrow-down arrow-narrow-up arrow-right arrow-up arrows-maximize arrows-minimize arrows-shuffle arrows-sort ban
bell bolt books box building building-community bulb calendar calendar-event category chart-area-line chart-bar
chart-dots chart-line chart-pie check checks chevron-down chevron-left chevron-right chevron-up circle circle-check
circle-dashed circle-dot circle-minus circle-plus circle-x clipboard clock clock-hour-4 clock-pause cloud cloud-off code
coin columns copy cpu cpu-2 credit-card currency-dollar dashboard database database-off device-desktop
device-desktop-analytics device-floppy dots dots-vertical download edit external-link eye eye-off file-code
file-download file-invoice file-text filter filter-off flag flame folder gauge git-branch git-merge grid-dots hash heart
help hexagon hierarchy hierarchy-2 history home hourglass id inbox info-circle key keyboard language layout-dashboard
layout-grid link list list-check list-details list-search loader loader-2 lock lock-open login logout mail map
menu-2 message minus moon network notes package percentage player-pause player-play player-skip-forward player-stop
plug plug-connected plug-connected-x plus point progress puzzle receipt receipt-2 refresh repeat report robot rocket
route scale scissors search send server server-2 server-bolt server-cog server-off settings share shield shield-check
shield-lock sitemap skull sort-ascending sort-descending stack stack-2 star sun switch-horizontal table tag tags target
template terminal terminal-2 thermometer timeline tool topology-star trash trending-down trending-up upload user
user-check user-plus user-shield users users-group wallet wand webhook wifi wifi-off world x zoom-in zoom-out
""".split()


@dataclass(frozen=True)
class Package:
    """One source package: where its files come from and what the product says about it."""

    folder: str
    npm: str
    version: str
    licence: str
    files: tuple[str, ...]
    note: str
    holders: tuple[str, ...] = field(default=())


PACKAGES = (
    Package(
        folder="tabler-core",
        npm="@tabler/core",
        version="1.6.1",
        licence="MIT",
        files=("dist/css/tabler.min.css", "dist/js/tabler.min.js"),
        note="The UI kit: Bootstrap 5 with Tabler's components. The script carries Bootstrap and Popper inside it.",
        # The package ships no licence file; these are the notices in its files, and those of what it bundles.
        holders=(
            "2018-2026 The Tabler Authors",
            "2018-2026 codecalm.net Paweł Kuna",
            "2011-2026 The Bootstrap Authors",
            "2019 Federico Zivolo (Popper)",
        ),
    ),
    Package(
        folder="tabler-icons",
        npm="@tabler/icons",
        version="3.52.0",
        licence="MIT",
        files=tuple(f"icons/outline/{name}.svg" for name in ICONS),
        note="A part of the outline set, one file an icon in `outline/`, and the same icons as symbols in "
        '`sprite.svg`: `<svg class="icon"><use href="…/sprite.svg#cpu"/></svg>`. Its line width is the outer one.',
    ),
    Package(
        folder="htmx",
        npm="htmx.org",
        version="2.0.11",
        licence="0BSD",
        files=("dist/htmx.min.js",),
        note="The 2.x line, whose events and attributes the templates are written in. It evaluates text for `hx-on`, "
        "`js:` values and event filters only: pages set `allowEval` to false in its configuration and use none.",
    ),
    Package(
        folder="plotly-basic",
        npm="plotly.js-basic-dist-min",
        version="4.1.1",
        licence="MIT",
        files=("plotly-basic.min.js",),
        note="Scatter, bar and pie only. It has no WebGL traces, hence no shader compiler and no function "
        "constructors, and runs under a content security policy without `unsafe-eval`.",
    ),
)

INTRO = """# Vendored front end

Every page is served from this folder; a browser fetches nothing from elsewhere. Each folder has the version in its
name, so that a new version is a new address, and carries its licence. The files are the published ones, less the
reference to source maps, which are not shipped. `.ci/vendor.py` wrote this page and the files; edit neither by hand.
"""


def unpacked(package: Package, scratch: Path) -> Path:
    """The folder with the package's published files, fetched from the registry npm is set up for."""
    spec = f"{package.npm}@{package.version}"
    packed = subprocess.run(
        ["npm", "pack", "--silent", spec], cwd=scratch, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    with tarfile.open(scratch / packed) as archive:
        archive.extractall(scratch / package.folder, filter="data")
    return scratch / package.folder / "package"


def licence_text(package: Package, source: Path, mit: str) -> str:
    """The package's own licence file, or the MIT terms under its holders' names where it ships none."""
    own = source / "LICENSE"
    if own.exists():
        return own.read_text(encoding="utf-8")
    names = "\n".join(f"Copyright (c) {holder}" for holder in package.holders)
    return re.sub(r"^Copyright .*$", names, mit, count=1, flags=re.MULTILINE)


def sprite(folder: Path) -> str:
    """All icons of a folder as symbols of one SVG, named as their files are."""
    symbols = []
    for path in sorted(folder.glob("*.svg")):
        drawing = re.sub(r"^.*?<svg[^>]*>|</svg>\s*$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        drawing = re.sub(r'\s*<path stroke="none" d="M0 0h24v24H0z" fill="none" />', "", drawing)
        lines = "".join(line.strip() for line in drawing.splitlines())
        symbols.append(
            f'<symbol id="{path.stem}" viewBox="0 0 24 24" fill="none" stroke="currentColor" '
            f'stroke-linecap="round" stroke-linejoin="round">{lines}</symbol>'
        )
    return '<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n"


def place(package: Package, source: Path, mit: str) -> Path:
    """The package's folder under static/vendor, made anew; folders of its other versions are gone."""
    for old in VENDOR.glob(f"{package.folder}-[0-9]*"):
        shutil.rmtree(old)
    target = VENDOR / f"{package.folder}-{package.version}"
    target.mkdir(parents=True)
    for name in package.files:
        inside = Path("outline") / Path(name).name if name.endswith(".svg") else Path(Path(name).name)
        (target / inside).parent.mkdir(exist_ok=True)
        (target / inside).write_bytes(SOURCE_MAP_LINE.sub(b"", (source / name).read_bytes()))
    (target / "LICENSE").write_text(licence_text(package, source, mit), encoding="utf-8")
    if (target / "outline").is_dir():
        (target / "sprite.svg").write_text(sprite(target / "outline"), encoding="utf-8")
    return target


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def ledger_entry(package: Package, target: Path) -> str:
    """The package's part of VENDORED.md: what it is, and the size and sha256 of each file but the single icons."""
    rows = []
    for path in sorted(target.iterdir()):
        if path.is_file():
            content = path.read_bytes()
            evaluates = "yes" if EVALUATES_TEXT.search(content) else "no"
            rows.append(f"| `{path.name}` | {len(content):,} | {evaluates} | `{digest(content)}` |")
    return "\n".join(
        [
            f"\n## {package.folder} {package.version}\n",
            f"Source package `{package.npm}` {package.version}, licence {package.licence}. {package.note}\n",
            "| file | bytes | evaluates text | sha256 |",
            "| --- | ---: | --- | --- |",
            *rows,
            "",
        ]
    )


def fetch() -> None:
    """static/vendor holds exactly PACKAGES, and VENDORED.md describes them."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        sources = {package.folder: unpacked(package, scratch) for package in PACKAGES}
        mit = (sources["tabler-icons"] / "LICENSE").read_text(encoding="utf-8")
        targets = [(package, place(package, sources[package.folder], mit)) for package in PACKAGES]
    entries = [ledger_entry(package, target) for package, target in targets]
    (VENDOR / "VENDORED.md").write_text(INTRO + "".join(entries), encoding="utf-8")


if __name__ == "__main__":
    fetch()
