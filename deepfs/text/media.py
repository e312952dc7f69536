"""What kind of content a file holds, by the extension of its name or by its first bytes.

One table, so that the answers do not depend on the machine, as those of the standard library do.
"""

import re

MAX_MEDIA_BYTES = 5_000_000
"""The largest file of media that a model is shown, unless its tools are told otherwise."""
OCTET_STREAM = "application/octet-stream"
"""The type of bytes of an unknown format."""

_OPEN_XML = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"

# Only extensions that no text file has: `.ts`, `.bin`, `.dat`, `.key` and the like are left to the content.
_BINARY = {
    "image/png": "png",
    "image/jpeg": "jpg jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/heic": "heic",
    "image/heif": "heif",
    "image/avif": "avif",
    "image/bmp": "bmp",
    "image/tiff": "tif tiff",
    "image/vnd.adobe.photoshop": "psd",
    "image/vnd.microsoft.icon": "ico",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/aiff": "aif aiff",
    "audio/aac": "aac",
    "audio/ogg": "ogg oga opus",
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "video/mp4": "mp4 m4v",
    "video/webm": "webm",
    "video/mpeg": "mpeg mpg",
    "video/quicktime": "mov",
    "video/x-msvideo": "avi",
    "video/x-flv": "flv",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "3gpp 3gp",
    "video/x-matroska": "mkv",
    "video/ogg": "ogv",
    "application/pdf": "pdf",
    "application/vnd.ms-powerpoint": "ppt",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    f"{_OPEN_XML}.presentationml.presentation": "pptx",
    f"{_OPEN_XML}.wordprocessingml.document": "docx",
    f"{_OPEN_XML}.spreadsheetml.sheet": "xlsx",
    f"{_OPEN_DOCUMENT}.presentation": "odp",
    f"{_OPEN_DOCUMENT}.text": "odt",
    f"{_OPEN_DOCUMENT}.spreadsheet": "ods",
    "application/epub+zip": "epub",
    "application/zip": "zip whl",
    "application/gzip": "gz tgz",
    "application/x-bzip2": "bz2",
    "application/x-xz": "xz",
    "application/zstd": "zst",
    "application/x-tar": "tar",
    "application/x-7z-compressed": "7z",
    "application/vnd.rar": "rar",
    "application/java-archive": "jar war",
    "application/java-vm": "class",
    "application/wasm": "wasm",
    "application/vnd.microsoft.portable-executable": "exe dll",
    "application/x-sharedlib": "so",
    "application/x-mach-binary": "dylib",
    "application/x-python-code": "pyc pyo",
    "application/vnd.sqlite3": "sqlite sqlite3",
    "application/vnd.apache.parquet": "parquet",
    "font/woff": "woff",
    "font/woff2": "woff2",
    "font/ttf": "ttf",
    "font/otf": "otf",
}

_TEXT = {
    "image/svg+xml": "svg",
    "text/plain": "txt text log conf cfg ini env",
    "text/markdown": "md markdown",
    "text/x-rst": "rst",
    "text/html": "html htm",
    "text/css": "css",
    "text/x-scss": "scss",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "text/javascript": "js mjs cjs",
    "text/jsx": "jsx",
    "text/x-typescript": "ts mts cts",
    "text/tsx": "tsx",
    "text/x-vue": "vue",
    "text/x-python": "py pyi",
    "text/x-java": "java",
    "text/x-kotlin": "kt kts",
    "text/x-scala": "scala",
    "text/x-c": "c h",
    "text/x-c++": "cc cpp cxx hh hpp",
    "text/x-csharp": "cs",
    "text/x-go": "go",
    "text/x-rust": "rs",
    "text/x-ruby": "rb",
    "text/x-php": "php",
    "text/x-perl": "pl pm",
    "text/x-lua": "lua",
    "text/x-swift": "swift",
    "text/x-r": "r",
    "text/x-diff": "diff patch",
    "text/x-tex": "tex",
    "text/calendar": "ics",
    "text/vcard": "vcf",
    "application/json": "json",
    "application/jsonl": "jsonl ndjson",
    "application/x-ipynb+json": "ipynb",
    "application/xml": "xml xsd xsl",
    "application/yaml": "yaml yml",
    "application/toml": "toml",
    "application/sql": "sql",
    "application/graphql": "graphql gql",
    "application/rtf": "rtf",
    "application/x-sh": "sh bash zsh",
}

_TYPES = {extension: kind for table in (_BINARY, _TEXT) for kind, names in table.items() for extension in names.split()}


def extension(mime_type: str) -> str:
    """An extension for the MIME type, with its dot; empty if the type is not known."""
    names = _BINARY.get(mime_type) or _TEXT.get(mime_type)
    return f".{names.split()[0]}" if names else ""


def mime_type(path: str) -> str | None:
    """The MIME type for the extension of `path`, ignoring case; None if it is not known."""
    stem, _, extension = path[path.rfind("/") + 1 :].rpartition(".")
    return _TYPES.get(extension.lower()) if stem.strip(".") else None  # A name such as `.png` has no extension.


def is_binary_name(path: str) -> bool:
    """Whether the extension of `path` is that of a binary format. `.svg` is text."""
    return mime_type(path) in _BINARY


def is_binary_type(mime_type: str | None) -> bool:
    """Whether a type returned by `mime_type` is binary."""
    return mime_type in _BINARY


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"8BPS", "image/vnd.adobe.photoshop"),
    (b"\0\0\1\0", "image/vnd.microsoft.icon"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xfa", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\0\0\1\xba", "video/mpeg"),
    (b"\0\0\1\xb3", "video/mpeg"),
    (b"FLV\1", "video/x-flv"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "video/x-ms-wmv"),
    (b"%PDF-", "application/pdf"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"PK\3\4", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\7", "application/vnd.rar"),
    (b"\x7fELF", "application/x-elf"),
    (b"\xca\xfe\xba\xbe", "application/java-vm"),
    (b"\0asm", "application/wasm"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"OTTO", "font/otf"),
)

# Containers that name their content at byte 8.
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_FORM = {b"AIFF": "audio/aiff", b"AIFC": "audio/aiff"}
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
    b"qt  ": "video/quicktime",
    b"M4A ": "audio/mp4",
}


def sniff(data: bytes) -> str:
    """The MIME type recognised by the first bytes of binary content, or `application/octet-stream`."""
    head = bytes(data[:512])
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return _sniff_container(head) or OCTET_STREAM


def _sniff_container(head: bytes) -> str | None:
    named = head[8:12]
    if head.startswith(b"RIFF"):
        return _RIFF.get(named)
    if head.startswith(b"FORM"):
        return _FORM.get(named)
    if head[4:8] == b"ftyp":
        return _BRANDS.get(named, "video/3gpp" if named.startswith(b"3g") else "video/mp4")
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    return "application/x-tar" if head[257:262] == b"ustar" else None


_MOST_HIGH = 0.3
"""The largest share of letters outside of ASCII in a text of a language with Latin script."""


def other_encoding(start: bytes) -> str:
    """The encoding of bytes that are text but not UTF-8: `UTF-16`, or most likely `Latin-1`; empty for other bytes."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) and len(start) % 2 == 0:
        return "UTF-16"
    is_latin = (
        not re.search(rb"[\0-\x08\x0e-\x1f\x7f]", start)
        and 0 < len(re.findall(rb"[\x80-\xff]", start)) <= len(start) * _MOST_HIGH
    )
    return "Latin-1" if is_latin else ""
