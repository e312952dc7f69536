"""Rules of the providers for requests, from their documentation; a request that breaks a rule is refused as a whole."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["anthropic_faults", "google_faults", "openai_chat_faults", "openai_responses_faults"]

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BASE64 = re.compile(r"[A-Za-z0-9+/]{200,}")


def _blank(text: Any) -> bool:
    return not isinstance(text, str) or not text.strip()


def _text_faults(text: Any, where: str) -> Iterator[str]:
    if _blank(text):
        yield f"{where}: blank text {text!r}"
    elif BASE64.search(text):
        yield f"{where}: content in base64 spelt out as text"


# --- Anthropic: Messages API -----------------------------------------------------------------------------------------


def anthropic_faults(payload: Mapping[str, Any]) -> Iterator[str]:
    """System: text blocks that are not blank. Roles alternate, the first is a user. Each tool_use has its tool_result
    at the beginning of the next message. Results hold text, images and PDF; failed ones text alone."""
    system = payload.get("system")
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system or ():
        yield from _text_faults(block["text"], "system") if block["type"] == "text" else [f"system: {block['type']}"]
    messages = payload["messages"]
    if [message["role"] for message in messages] != [("user", "assistant")[i % 2] for i in range(len(messages))]:
        yield "roles do not alternate"
    open_calls: list[str] = []
    for place, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            yield f"messages.{place}: empty"
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        at_start = [block["type"] for block in blocks[: len(answered)]]
        if sorted(answered) != sorted(open_calls) or set(at_start) - {"tool_result"}:
            yield f"messages.{place}: results {answered} for calls {open_calls}"
        for block in blocks:
            yield from _anthropic_block(block, f"messages.{place}", message["role"])
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    for tool in payload.get("tools", ()):
        yield from _tool_faults(tool["name"], tool.get("description"))


def _anthropic_block(block: Mapping[str, Any], where: str, role: str) -> Iterator[str]:
    kind = block["type"]
    allowed = {"user": {"text", "image", "document", "tool_result"}, "assistant": {"text", "tool_use"}}[role]
    if kind not in allowed:
        yield f"{where}: a block {kind} of {role}"
    elif kind == "text":
        yield from _text_faults(block["text"], where)
    elif kind in ("image", "document"):
        types = IMAGES if kind == "image" else {"application/pdf"}
        if block["source"]["type"] == "text":
            yield from _text_faults(block["source"]["data"], where)
        elif block["source"]["media_type"] not in types or not block["source"]["data"]:
            yield f"{where}: {kind} of {block['source']['media_type']}"
    elif kind == "tool_result":
        content = block["content"]
        for inner in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield from _anthropic_block(inner, f"{where}.tool_result", role)
            if block.get("is_error") and inner["type"] != "text":
                yield f"{where}: a failed result with a block {inner['type']}"


def _tool_faults(name: str, description: Any) -> Iterator[str]:
    if not TOOL_NAME.fullmatch(name) or _blank(description):
        yield f"tool {name!r}: {description!r}"


# --- OpenAI ----------------------------------------------------------------------------------------------------------


def openai_chat_faults(payload: Mapping[str, Any]) -> Iterator[str]:
    """Chat completions. Messages of tools hold text alone, and follow the message with their calls, each once."""
    open_calls: set[str] = set()
    for place, message in enumerate(payload["messages"]):
        where = f"messages.{place} ({message['role']})"
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield f"{where}: no such call"
            open_calls -= {message["tool_call_id"]}
        elif open_calls:
            yield f"{where}: calls without results: {open_calls}"
            open_calls = set()
        calls = message.get("tool_calls") or ()
        open_calls |= {call["id"] for call in calls}
        if message["content"] is None and calls:
            continue
        parts = message["content"]
        for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts or [{"type": "nothing"}]:
            yield from _chat_part(part, where, message["role"])
    for tool in payload.get("tools", ()):
        yield from _tool_faults(tool["function"]["name"], tool["function"].get("description"))


def _chat_part(part: Mapping[str, Any], where: str, role: str) -> Iterator[str]:
    kind = part["type"]
    if kind == "text":
        yield from _text_faults(part["text"], where)
    elif role != "user" or kind not in ("image_url", "input_audio", "file"):
        yield f"{where}: a part {kind}"
    elif kind == "image_url":
        if not part["image_url"]["url"].startswith(tuple(f"data:{image};base64," for image in IMAGES)):
            yield f"{where}: {part['image_url']['url'][:40]}"
    elif kind == "input_audio" and part["input_audio"]["format"] not in ("wav", "mp3"):
        yield f"{where}: audio of {part['input_audio']['format']}"
    elif kind == "file" and not (part["file"].get("file_data") and part["file"].get("filename")):
        yield f"{where}: a file without name or data"


def openai_responses_faults(payload: Mapping[str, Any]) -> Iterator[str]:
    """Responses API. Outputs of functions are texts, or lists of texts, images and files with a name."""
    items: Sequence[Any] = payload["input"]
    made = [item["call_id"] for item in items if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    if sorted(made) != sorted(answered):
        yield f"calls {made}, outputs {answered}"
    for place, item in enumerate(items):
        where = f"input.{place}"
        content = item.get("output") if item["type"] == "function_call_output" else item.get("content")
        if item["type"] == "function_call":
            continue
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        for part in parts or [{"type": "nothing"}]:
            yield from _response_part(part, where)


def _response_part(part: Mapping[str, Any], where: str) -> Iterator[str]:
    kind = part["type"]
    if kind in ("input_text", "output_text"):
        yield from _text_faults(part["text"], where)
    elif kind == "input_image":
        if not part["image_url"].startswith(tuple(f"data:{image};base64," for image in IMAGES)):
            yield f"{where}: {part['image_url'][:40]}"
    elif kind != "input_file" or not (part.get("file_data") and part.get("filename")):
        yield f"{where}: a part {kind}"


# --- Google: Gemini API ----------------------------------------------------------------------------------------------

GEMINI_MEDIA = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|application/pdf|audio/(wav|mp3|mpeg|aiff|aac|ogg|flac)"
    r"|video/(mp4|mpeg|quicktime|mov|avi|x-flv|mpg|webm|wmv|3gpp)"
)


def google_faults(request: Mapping[str, Any]) -> Iterator[str]:
    """Every content has parts, no part is empty, and each turn of calls is followed by a turn of as many responses."""
    instruction = request.get("system_instruction") or getattr(request.get("config"), "system_instruction", None)
    for part in instruction.parts if instruction else ():
        yield from _text_faults(part.text, "system")
    calls: list[str] = []
    for place, content in enumerate(request["contents"]):
        where = f"contents.{place} ({content.role})"
        if not content.parts:
            yield f"{where}: no parts"
        responses = [part.function_response.name for part in content.parts if part.function_response]
        if sorted(responses) != sorted(calls):
            yield f"{where}: responses {responses} for calls {calls}"
        calls = [part.function_call.name for part in content.parts if part.function_call]
        for part in content.parts:
            yield from _google_part(part, where)


def _google_part(part: Any, where: str) -> Iterator[str]:
    if part.function_call or part.function_response:
        response = part.function_response.response if part.function_response else {"output": "-"}
        if isinstance(response.get("output"), str):
            yield from _text_faults(response["output"], where)
    elif part.inline_data:
        if not GEMINI_MEDIA.fullmatch(part.inline_data.mime_type) or not part.inline_data.data:
            yield f"{where}: data of {part.inline_data.mime_type}"
    elif part.file_data:
        if not part.file_data.file_uri:
            yield f"{where}: a file without a place"
    else:
        yield from _text_faults(part.text, where)
