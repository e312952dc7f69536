"""An MCP server over the files of any backend, for stdio and HTTP. Needs the extra `mcp`."""

try:
    import mcp.server.mcpserver  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError("deepfs.mcp needs the MCP SDK: pip install 'deepfs[mcp]'", name="mcp") from None

from deepfs.mcp.serving import StaticTokens, create_server, http_app, serve
from deepfs.mcp.settings import HttpSettings, McpSettings, ServerLimits

__all__ = ["HttpSettings", "McpSettings", "ServerLimits", "StaticTokens", "create_server", "http_app", "serve"]
