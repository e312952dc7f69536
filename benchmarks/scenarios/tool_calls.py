"""What models are told: the answers of both libraries to the same calls of tools."""

import re
import tempfile
from pathlib import Path
from typing import Final

from anyio import to_thread

from benchmarks.bench import Bench
from benchmarks.tool_calls import Answered, answers

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
