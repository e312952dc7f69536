"""Runs one file operation in a sandbox, with any Python from 3.6 on: reads its arguments, and prints its answer."""

import errno
import os
import stat
import sys
import time
import zlib
from binascii import a2b_base64, b2a_base64

# Other modules are imported where they are needed: starting is most of the cost of a small operation.

SYSTEM = (b"/proc", b"/sys", b"/dev")
PATIENCE = 2
PREFIX = b".~deepfs-"

arguments: "list[bytes]" = [a2b_base64(word) for word in sys.argv[1:]] if __name__ == "__main__" else [b"0", b"0", b""]
nonce: bytes
most: bytes
operation: bytes
nonce, most, operation = arguments[:3]
place: bytes = os.environb.get(b"TMPDIR") or b"/tmp"
answer: "list[bytes]" = []


class FailedError(OSError):
    """A failure, as a word of the wire format."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.said = said


def temporary_path(name: bytes) -> bytes:
    return os.path.join(place, PREFIX + name)


def word(error: OSError) -> bytes:
    if isinstance(error, FailedError):
        return error.said
    words = {
        FileNotFoundError: b"not_found",
        NotADirectoryError: b"not_found",
        IsADirectoryError: b"is_dir",
        PermissionError: b"denied",
    }
    return words.get(type(error)) or b"other " + os.fsencode(error.strerror or "failed")


def checksum(data: bytes) -> bytes:
    # hashlib loads OpenSSL, which takes longer than a small operation, but is much faster with large data.
    try:
        if len(data) > 1_000_000:
            raise ImportError
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256
    digest: str = sha256(data).hexdigest()
    return digest.encode()


def lock() -> None:
    """Allow one change at a time; the lock ends with the process. Without it, nothing has changed: `E timeout`."""
    import fcntl

    def late(*_: object) -> None:
        raise FailedError(b"timeout")

    file = os.open(temporary_path(b"lock-%d" % os.getuid()), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        import signal
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    fcntl.flock(file, fcntl.LOCK_EX)
    signal.setitimer(signal.ITIMER_REAL, 0)


def payload(staged: bytes) -> bytes:
    if not staged:
        return a2b_base64(sys.stdin.buffer.read())
    path = staged if staged.startswith(b"/") else temporary_path(staged)
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    return data


# --- reading ---


def entry(path: bytes) -> None:
    try:
        status = os.stat(path)
    except OSError:
        status = os.lstat(path)
    answer.append(b"%x %d %.6f %s//\n" % (status.st_mode, status.st_size, status.st_mtime_ns / 1e9, path))


def ls(path: bytes) -> None:
    if os.path.exists(path) and not os.path.isdir(path):
        raise FailedError(b"not_dir")
    names = os.listdir(path)
    answer.append(b"ok\n")
    for name in names:
        try:
            entry(os.path.join(path, name))
        except OSError:
            pass


def lstat_entry(path: bytes) -> None:
    """Answer with the status of `path` itself, and for a symlink with the mode of its target."""
    status, target = os.lstat(path), 0
    if stat.S_ISLNK(status.st_mode):
        try:
            target = os.stat(path).st_mode
        except OSError:
            pass
    answer.append(b"%x %d %x %s//\n" % (status.st_mode, status.st_size, target, path))


def report_unlisted(error: "OSError | None") -> None:
    answer.append(b"bad 0 0 //\n")


def entries(path: bytes) -> None:
    answer.append(b"ok\n")
    lstat_entry(path)
    if os.path.islink(path) or not os.path.isdir(path):
        return
    for directory, below, names in os.walk(path, onerror=report_unlisted):
        for child in below + names:
            try:
                lstat_entry(os.path.join(directory, child))
            except OSError:
                report_unlisted(None)
        below[:] = [child for child in below if os.path.join(directory, child) not in SYSTEM]


def regular(path: bytes) -> os.stat_result:
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise FailedError(b"is_dir")
    if not stat.S_ISREG(status.st_mode):
        raise FailedError(b"other it is no regular file")
    return status


def fetch(limit: bytes, *wanted: bytes) -> None:
    """Answer with files whose contents have up to `limit` bytes together; `later` stands for each further one."""
    left = int(limit)
    for at in range(0, len(wanted), 2):
        try:
            content, size = fetch_one(wanted[at], wanted[at + 1], int(limit))
            if size > left:
                raise FailedError(b"later")
            answer.append(content)
            left -= size
        except OSError as error:
            answer.append(b"E %s\n" % word(error))


def read(path: bytes, limit: int) -> bytes:
    """The content of a file that has up to `limit` bytes, whatever its size was before."""
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FailedError(b"too_large %d" % max(len(data), os.stat(path).st_size))
    return data


def fetch_one(path: bytes, known: bytes, limit: int) -> "tuple[bytes, int]":
    status = regular(path)
    if status.st_size > limit:
        raise FailedError(b"too_large %d" % status.st_size)
    data = read(path, limit)
    modified = b"%.6f" % (status.st_mtime_ns / 1e9)
    if known and checksum(data) == known:
        return b"same %s\n" % modified, 0
    return b"ok %s %d\n%s" % (modified, len(data), data), len(data)


def like(names: "list[bytes]", pattern: bytes) -> "list[bytes]":
    if pattern == b"*":
        return names
    import fnmatch

    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def files(path: bytes, visible: bytes, pattern: bytes) -> "list[bytes]":
    found = []
    for directory, below, names in os.walk(path):
        if visible:
            below[:] = [child for child in below if not child.startswith(b".")]
        below[:] = [child for child in below if os.path.join(directory, child) not in SYSTEM]
        for child in like(names, pattern):
            if visible and child.startswith(b"."):
                continue
            found.append(os.path.join(directory, child))
    return found


def start(path: bytes) -> bool:
    if not os.path.exists(path):
        raise FailedError(b"not_found")
    return os.path.isdir(path)


def tree(path: bytes, visible: bytes, name: bytes) -> None:
    if not start(path):
        raise FailedError(b"not_dir")
    answer.append(b"ok\n")
    for child in files(path, visible, name):
        entry(child)


def grep(path: bytes, visible: bytes, name: bytes, needle: bytes, limit: bytes, whole: bytes) -> None:
    found = files(path, visible, name) if start(path) else [path]
    answer.append(b"ok\n")
    total = 0
    for child in found:
        try:
            status = os.stat(child)
            if not stat.S_ISREG(status.st_mode):
                continue
            if status.st_size > int(limit):
                raise FailedError(b"too_large")
            data = read(child, int(limit))
        except OSError:
            answer.append(b"skip 0 %s//\n" % child)
            continue
        if needle in data:
            total += len(data)
            if total > int(whole):
                answer.append(b"full 0 //\n")
                return
            answer.append(b"file %d %s//\n%s" % (len(data), child, data))


def resolve(root: bytes, *wanted: bytes) -> None:
    """Answer with the path, beneath the resolved `root`, that each path leads to; `no` if it leads elsewhere."""
    top = os.path.realpath(root)
    for path in wanted:
        real = os.path.realpath(path)
        is_within = real == top or real.startswith(top.rstrip(b"/") + b"/")
        if is_within and not is_endless(path):
            answer.append(b"ok %s//\n" % real[len(top.rstrip(b"/")) :].rstrip(b"/"))
        else:
            answer.append(b"no //\n")


def is_endless(path: bytes) -> bool:
    """Whether links lead in a circle."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


# --- changing ---


def prepare(path: bytes) -> None:
    """Make the parent directory of `path`."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FailedError(b"not_dir") from None


def beside(path: bytes) -> bytes:
    return os.path.join(os.path.dirname(path), PREFIX + nonce)


def place_file(path: bytes, data: bytes, mode: bytes) -> None:
    target = os.path.realpath(path)
    prepare(target)
    if os.path.isdir(target):
        raise FailedError(b"is_dir")
    temporary = beside(target)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        if os.path.exists(target):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        if mode == b"create":
            os.link(temporary, target)
        else:
            os.replace(temporary, target)
    except FileExistsError:
        raise FailedError(b"exists") from None
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write(path: bytes, mode: bytes, known: bytes, before: bytes, after: bytes, staged: bytes) -> None:
    """Write a file: the first `before` bytes of the old one, the payload, and the last `after` bytes of the old one."""
    lock()
    data = payload(staged)
    if os.path.isdir(path):
        raise FailedError(b"is_dir")
    if mode == b"match":
        try:
            with open(path, "rb") as file:
                old = file.read()
        except OSError:
            raise FailedError(b"conflict") from None
        if checksum(old) != known:
            raise FailedError(b"conflict")
        data = old[: int(before)] + data + old[len(old) - int(after) :]
    place_file(path, data, mode)
    answer.append(b"ok\n")


def put(staged: bytes, *wanted: bytes) -> None:
    lock()
    data, at = payload(staged), 0
    for path, size in zip(wanted[::2], wanted[1::2]):
        content, at = data[at : at + int(size)], at + int(size)
        try:
            place_file(path, content, b"replace")
            answer.append(b"ok\n")
        except OSError as error:
            answer.append(b"E %s\n" % word(error))


def stage(name: bytes, offset: bytes) -> None:
    data = a2b_base64(sys.stdin.buffer.read())
    with open(temporary_path(name), "wb" if int(offset) == 0 else "ab") as file:
        if file.tell() != int(offset):
            raise FailedError(b"other a part is missing")
        file.write(data)
    if int(offset) == 0:
        sweep()
    answer.append(b"ok\n")


def sweep() -> None:
    """Remove files older than an hour that interrupted calls left behind; those of other users stay."""
    import shutil

    for name in os.listdir(place):
        path = os.path.join(place, name)
        try:
            if name.startswith(PREFIX) and b"lock" not in name and os.lstat(path).st_mtime < time.time() - 3600:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            pass


def delete(path: bytes, known: bytes = b"") -> None:
    import shutil

    lock()
    if known:
        with open(path, "rb") as file:
            if checksum(file.read()) != known:
                raise FailedError(b"conflict")
        os.unlink(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
    answer.append(b"ok\n")


def change(*wanted: bytes) -> None:
    """Make and remove directories, and set modes: three words for each, its path, the change and the mode."""
    lock()
    for path, what, mode in zip(wanted[::3], wanted[1::3], wanted[2::3]):
        try:
            change_one(path, what, int(mode or b"0", 8))
            answer.append(b"ok\n")
        except OSError as error:
            occupied = error.errno in (errno.EEXIST, errno.ENOTEMPTY)
            answer.append(b"E %s\n" % (b"exists" if occupied else word(error)))


def change_one(path: bytes, what: bytes, mode: int) -> None:
    if what == b"make_directory":
        prepare(path)
        os.mkdir(path)
        mode |= stat.S_IRWXU if mode else 0
    if what == b"remove_directory":
        os.rmdir(path)
    elif mode and not os.path.islink(path):
        os.chmod(path, mode)


def check_destination(src: bytes, dst: bytes, overwrite: bytes) -> None:
    if not os.path.lexists(src):
        raise FailedError(b"not_found")
    if dst.startswith(src.rstrip(b"/") + b"/"):
        raise FailedError(b"inside")
    if os.path.isdir(dst):
        raise FailedError(b"is_dir" if overwrite else b"dir_exists")
    if os.path.lexists(dst) and not overwrite:
        raise FailedError(b"exists")
    if os.path.lexists(dst) and os.path.isdir(src):
        raise FailedError(b"not_dir_itself")
    prepare(dst)


def is_one(src: bytes, dst: bytes) -> bool:
    # A link that replaced its own target would lead to itself.
    if not os.path.lexists(src) or os.path.realpath(src) != os.path.realpath(dst):
        return False
    if not os.path.lexists(dst):
        raise FailedError(b"not_found")
    return True


def move(src: bytes, dst: bytes, overwrite: bytes) -> None:
    import shutil

    lock()
    if not is_one(src, dst):
        check_destination(src, dst, overwrite)
        shutil.move(os.fsdecode(src), os.fsdecode(dst))
    answer.append(b"ok\n")


def copy(src: bytes, dst: bytes, overwrite: bytes) -> None:
    import shutil

    lock()
    check_destination(src, dst, overwrite)
    temporary = beside(dst)
    try:
        if os.path.isdir(src):
            shutil.copytree(os.fsdecode(src), os.fsdecode(temporary), symlinks=True, copy_function=shutil.copy)
        else:
            shutil.copy(src, temporary)
        os.replace(temporary, dst)
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary)
        elif os.path.lexists(temporary):
            os.unlink(temporary)
    answer.append(b"ok\n")


# --- answering ---


def show(text: bytes, offset: int, digest: str) -> None:
    part = text[offset : offset + int(most)]
    print(f"@deepfs {nonce.decode()} py {len(text)} {digest}")
    print(part.decode())
    print(f"@end {nonce.decode()}")


def more(name: bytes, offset: bytes) -> None:
    with open(temporary_path(name), "rb") as file:
        text = file.read()
    show(text, int(offset), "-")
    if int(offset) + int(most) >= len(text):
        os.unlink(temporary_path(name))


def main() -> None:
    if operation == b"more":
        more(*arguments[3:])
        return
    operations = (ls, fetch, tree, grep, entries, resolve, write, put, stage, delete, change, move, copy)
    try:
        {function.__name__.encode(): function for function in operations}[operation](*arguments[3:])
    except OSError as error:
        answer[:] = [b"E %s\n" % word(error)]
    compress = zlib.compressobj(4, zlib.DEFLATED, 31)
    text = b2a_base64(compress.compress(b"".join(answer)) + compress.flush(), newline=False)
    if len(text) > int(most):
        with open(temporary_path(nonce), "wb") as file:
            file.write(text)
    show(text, 0, checksum(text).decode())


if __name__ == "__main__":
    try:
        main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(70)  # Status 1 means that this Python cannot run the script: script.sh would run it again.
