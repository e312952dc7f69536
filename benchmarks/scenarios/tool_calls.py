"""What models are told: the answers of both libraries to the same calls of tools."""

import re
import tempfile
from pathlib import Path
from typing import Final

from anyio import to_thread
from langchain_core.messages.utils import count_tokens_approximately

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.tool_calls import Answered, answers, questions, results

_NEXT_STEP: Final = re.compile(
    r"did you mean|nearest directory|\b(?:set|give|choose|correct|copy|read|find|list|name|use|add|look|leave|need|"
    r"alone|change|go on|write|try|narrow|do less)\b",
    re.IGNORECASE,
)


def has_next_step(answered: Answered) -> bool:
    """Whether deepfs answers with a result, or says what to do next."""
    answer = answered.ours
    found_nothing = answered.call.tool != "execute" and answer.text.startswith("[/") and "is empty" not in answer.text
    is_note = found_nothing or (answer.text.startswith("[No ") and answered.call.tool != "execute")
    return not (answer.failed or is_note) or _NEXT_STEP.search(answer.text) is not None


async def tool_calls(bench: Bench) -> None:
    """Calls of tools, right and wrong ones: what the model is told."""
    with tempfile.TemporaryDirectory() as root:
        answered = await to_thread.run_sync(answers, Path(root))
    share = sum(map(has_next_step, answered)) / len(answered)
    bench.at_least("A result or a next step after every call", 1, [share], " of 1")
    sides = [each.ours for each in answered], [each.theirs for each in answered]
    ours, theirs = (sum(len(answer.text) for answer in side) for side in sides)
    bench.at_most("Characters of all answers: at most those of deepagents", 1, [ours / theirs])
    failed = [sum(answer.failed for answer in side) for side in sides]
    bench.note(
        f"{len(answered)} calls: {ours:,} characters of answers with deepfs, {theirs:,} with deepagents; "
        f"{failed[0]} and {failed[1]} of them are errors."
    )
    await to_thread.run_sync(_results, bench)


_PROGRAMS: Final = {"ls": "ls -ps", "glob": "rg --files", "grep": "rg"}


def _results(bench: Bench) -> None:
    asked = questions()
    shown = results(inputs.django(), asked)
    for tool, program in _PROGRAMS.items():
        texts = [each for question, each in zip(asked, shown, strict=True) if question.tool == tool]
        for ours, theirs, printed in texts:
            # The size that ls prints is before a name, and the number of a line behind a path.
            rows = printed.split("\n")[1:] if tool == "ls" else printed.split("\n")
            named = [row.split()[-1] if tool == "ls" else row.partition(":")[0] for row in rows]
            assert named, "there must be something to show"
            assert all(name in ours and name in theirs for name in named), "all must show the same"
        ours, theirs, printed = (count_tokens_approximately([*side]) for side in zip(*texts, strict=True))
        bench.at_most(f"Results of {tool}: at most the tokens of {program}", 1, [ours / printed])
        bench.note(
            f"Results of {tool} for {len(texts)} questions about Django: {ours:,} tokens with deepfs, {theirs:,} with "
            f"deepagents, {printed:,} as `{program}` prints them."
        )
