"""A library of skills in files: the agent sees what each is for, reads the one that fits, and runs its script.

    /            the workspace of a sandbox, where commands run
    /skills/     the library, the directory `skills` beside this program, which the agent cannot change

    pip install "deepfs[agents,bubblewrap]"     # Linux
    python skill_library.py                     # which words does this program use?
    python skill_library.py notes.txt           # …or another text

A skill is a directory with a SKILL.md; the model is shown only its name and description until it reads the file. The
library is on another mount than the workspace: deepfs copies the files of the skills to where commands run.
"""

from pathlib import Path

import anyio
from common import chosen_model, option_parser, show

from deepfs import CompositeBackend, FilesystemBackend, create_deep_agent
from deepfs.policy import ReadOnlyBackend
from deepfs.sandboxes import BubblewrapSandbox
from deepfs.testing import Answer, Call, Turn

LIBRARY = Path(__file__).with_name("skills")
TEXT = "/text.txt"
REQUEST = f"Which three words are the most frequent in {TEXT}?"


# --- the scripted model ----------------------------------------------------------------------------------------------

SCRIPT: list[Answer] = [
    Turn("There is a skill for that.", [Call("read_file", {"file_path": "/skills/word-frequency/SKILL.md"})]),
    Turn("", [Call("execute", {"command": "python3 skills/word-frequency/scripts/top_words.py text.txt 3"})]),
    lambda messages: f"The most frequent words, by the script:\n{messages[-1].text}",
]


# --- the program -----------------------------------------------------------------------------------------------------


async def count_words(text: bytes, library: Path, model: str | None) -> str:
    """Ask the agent about the text, and return its answer."""
    async with BubblewrapSandbox() as sandbox:
        (await sandbox.aupload_files([(TEXT, text)]))[0].unwrap()
        files = CompositeBackend(sandbox, {"/skills/": ReadOnlyBackend(FilesystemBackend(library))})
        agent = create_deep_agent(chosen_model(model, SCRIPT), skills=["/skills/"], backend=files)
        return await show(agent, REQUEST)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("text", nargs="?", type=Path, default=Path(__file__), help="a file of text")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="a directory of skills")
    given = parser.parse_args()
    anyio.run(count_words, given.text.read_bytes(), given.library, given.model)


if __name__ == "__main__":
    main()
