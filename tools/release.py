"""Checks a wheel and an sdist of deepfs: what they hold, where the links of the description lead, and that they work.

    python tools/release.py DIRECTORY    the directory with the two

The wheel is installed into an environment that has nothing else, where the first example of the README runs; then with
the extra `agents`, for the program of docs/quickstart.md. This needs a package index.
"""

import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from pages import ROOT, programs

KEPT = ("CHANGELOG.md", "README.md", "SECURITY.md", "mkdocs.yml", "noxfile.py", "docs/contract.md", "tests/conftest.py")
"""What an sdist has for those who test and build from it."""


def check_wheel(wheel: Path) -> Iterable[str]:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = (name for name in names if name.endswith(".dist-info/METADATA"))
        description = message_from_bytes(archive.read(metadata))
    information = metadata.partition("/")[0]
    yield from (f"the wheel has {name}" for name in names if name.partition("/")[0] not in ("deepfs", information))
    if "deepfs/py.typed" not in names:
        yield "the wheel has no deepfs/py.typed"
    targets = re.findall(r"\]\(([^)]*)\)", str(description.get_payload()))
    yield from (f"the description has a relative link: {target}" for target in targets if "://" not in target)
    if not targets:
        yield "the description has no links: is it the README?"


def check_sdist(sdist: Path) -> Iterable[str]:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    yield from (f"the sdist has no {name}" for name in KEPT if name not in names)


def check_installed(wheel: Path) -> None:
    """Run the first examples with what the wheel installs. Raises CalledProcessError if one fails."""
    with TemporaryDirectory() as directory:
        environment = Path(directory, "environment")
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        first = next(code for code in programs(ROOT / "README.md") if "lang" not in code and "agent" not in code)
        agent = "\n".join(programs(ROOT / "docs/quickstart.md"))
        for extra, program in (("", first), ("[agents]", agent)):
            command = [str(python), "-m", "pip", "install", "-q", f"{wheel.resolve()}{extra}"]
            subprocess.run(command, cwd=directory, check=True)
            with TemporaryDirectory() as files:
                subprocess.run([python, "-I", "-c", program], cwd=files, check=True)


def main(directory: str) -> int:
    [wheel], [sdist] = Path(directory).glob("*.whl"), Path(directory).glob("*.tar.gz")
    wrong = [*check_wheel(wheel), *check_sdist(sdist)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not wrong:
        check_installed(wheel)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
