"""The settings of the MCP server: the table `[mcp]` of a TOML file, or arguments in Python."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import asdict

from deepfs.middleware.rendering import MAX_RESULT_CHARS
from deepfs.middleware.tools import MAX_MEDIA_BYTES

__all__ = ["HttpSettings", "McpSettings", "ServerLimits", "settings_from"]

_Positive = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class ServerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a call may take and give.

    Attributes:
        call_timeout: The seconds after which a call is stopped.
        max_calls: The calls that run at once; others wait, for `call_timeout` at most.
        max_waiting: The calls that wait at once; more are refused.
        max_argument_chars: The characters of all arguments of a call together.
        max_result_chars: The characters of the text of a result, and of its data.
        max_media_bytes: The bytes of an image, audio, video or PDF in a result.
        max_file_bytes: The bytes of a file that is read as a whole, such as a resource.
        max_listed: The files in the list of resources, and the entries of a listed tree.
    """

    call_timeout: _Seconds = 60.0
    max_calls: _Positive = 32
    max_waiting: _Positive = 1_000
    max_argument_chars: _Positive = 4_000_000
    max_result_chars: _Positive = MAX_RESULT_CHARS
    max_media_bytes: _Positive = MAX_MEDIA_BYTES
    max_file_bytes: _Positive = 10_000_000
    max_listed: _Positive = 10_000


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is reached over HTTP.

    Attributes:
        host: The name or address to listen at.
        port: The port; 0 takes a free one, which is written to stderr.
        path: The path of the endpoint.
        tokens: Bearer tokens of which a request must carry one: as they are, of 16 characters at least, or `sha256:`
            and the digest of one in hexadecimal.
        allow_anonymous: Whether requests without a token are served at an address that other machines reach.
        allowed_hosts: The values of the header `Host` that are accepted; `name:*` means any port, and `*` any value.
            By default the names of this machine for itself, and `host`.
        allowed_origins: The values of the header `Origin` that are accepted, for clients in browsers.
        max_request_bytes: The largest request.
        max_connections: The connections that are open at once; more are refused. So many descriptors of the process as
            files and commands need are kept free in any case.
        request_timeout: The seconds in which a client must have sent a request, or its connection ends.
        max_sessions: The sessions that are open at once; more are refused.
        session_idle_timeout: The seconds after which an unused session ends.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    path: Annotated[str, Meta(pattern="^/")] = "/mcp"
    tokens: list[str] = field(default_factory=list)
    allow_anonymous: bool = False
    allowed_hosts: list[str] = field(default_factory=list)
    allowed_origins: list[str] = field(default_factory=list)
    max_request_bytes: _Positive = 8_000_000
    max_connections: _Positive = 1_000
    request_timeout: _Seconds = 30.0
    max_sessions: _Positive = 1_000
    session_idle_timeout: _Seconds = 1_800.0

    def __repr__(self) -> str:
        return f"HttpSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """All but the tokens: `rich` shows it in logs and in the local variables of tracebacks."""
        return [(name, value) for name, value in asdict(self).items() if name != "tokens"]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def hosts(self) -> Sequence[str]:
        """The accepted values of the header `Host`; empty if any is.

        Raises:
            ValueError: The server listens at all addresses, and nobody said under which names.
        """
        if self.allowed_hosts:
            return [] if "*" in self.allowed_hosts else self.allowed_hosts
        if self.is_local:
            return [form for name in _LOOPBACK for form in (name, f"{name}:*")]
        if self.host in ("0.0.0.0", "::", ""):
            raise ValueError(f"to listen at {self.host or 'all addresses'}, name the hosts in allowed_hosts, or '*'")
        name = f"[{self.host}]" if ":" in self.host else self.host
        return [name, f"{name}:*"]


class McpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an MCP server offers.

    Attributes:
        name: The name of the server.
        instructions: A text for the model; None is a short one.
        tools: The names of the tools to offer; None offers all that the files allow.
        descriptions: Descriptions by name of the tool, which replace the default ones.
        execute: Whether the tool `execute` is offered where the files lie in a sandbox.
        apply_patch: Whether the tool `apply_patch` is offered.
        reference_names: Whether tools have the names, arguments and results of the reference filesystem server.
        allowed_directories: What the tool `list_allowed_directories` of these names; relative paths start at the first.
        resources: Whether files are offered as resources.
        limits: The most that a call may take and give.
        http: How the server is reached over HTTP.
    """

    name: str = "deepfs"
    instructions: str | None = None
    tools: list[str] | None = None
    descriptions: dict[str, str] = field(default_factory=dict)
    execute: bool = False
    apply_patch: bool = False
    reference_names: bool = False
    allowed_directories: list[str] = field(default_factory=lambda: ["/"])
    resources: bool = True
    limits: ServerLimits = field(default_factory=ServerLimits)
    http: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        if not self.allowed_directories:
            raise ValueError("allowed_directories is empty")


def settings_from(table: Mapping[str, Any]) -> McpSettings:
    """Check the settings of a TOML file.

    Args:
        table: The table `[mcp]`.

    Returns:
        The settings.

    Raises:
        ValueError: A setting is unknown or wrong. No value is in the text, since it may be a token.
    """
    try:
        return convert(table, McpSettings)
    except ValidationError as error:
        raise ValueError(f"[mcp]: {error}") from None


def check_settings(settings: McpSettings) -> McpSettings:
    """The settings, with their types and bounds checked, which Python does not do.

    Raises ValueError.
    """
    return settings_from(to_builtins(settings))
