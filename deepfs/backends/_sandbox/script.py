"""Runs in a sandbox, on whatever Python 3.6 or later is there: one file operation, from its arguments to its answer."""

import os
import stat
import sys
import time
import zlib
from binascii import a2b_base64, b2a_base64

# Other modules are imported where they are needed: starting is most of the cost of a small operation.

SYSTEM = (b"/proc", b"/sys", b"/dev")
MOST = 64 * 1024 * 1024
PREFIX = b".~deepfs-"

nonce, most, operation = [a2b_base64(word) for word in sys.argv[1:4]]
arguments = [a2b_base64(word) for word in sys.argv[4:]]
place = os.environb.get(b"TMPDIR") or b"/tmp"
answer = []


class Failed(Exception):
    """What went wrong, in a word."""


def held(name):
    return os.path.join(place, PREFIX + name)


def word(error):
    if isinstance(error, Failed):
        return error.args[0]
    words = {
        FileNotFoundError: b"not_found",
        NotADirectoryError: b"not_found",
        IsADirectoryError: b"is_dir",
        PermissionError: b"denied",
    }
    return words.get(type(error)) or b"other " + os.fsencode(error.strerror or "failed")


def checksum(data):
    import hashlib

    return hashlib.sha256(data).hexdigest().encode()


def lock():
    import fcntl

    file = os.open(held(b"lock-%d" % os.getuid()), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)


def payload(staged):
    if not staged:
        return a2b_base64(sys.stdin.buffer.read())
    with open(held(staged), "rb") as file:
        data = file.read()
    os.unlink(held(staged))
    return data


def kind_and_time(status):
    return b"%x %d %.6f" % (status.st_mode, status.st_size, status.st_mtime_ns / 1e9)


# --- looking ---


def entry(path):
    try:
        status = os.stat(path)
    except OSError:
        status = os.lstat(path)
    answer.append(b"%s %s//\n" % (kind_and_time(status), path))


def ls(path):
    if os.path.exists(path) and not os.path.isdir(path):
        raise Failed(b"not_dir")
    names = os.listdir(path)
    answer.append(b"ok\n")
    for name in names:
        try:
            entry(os.path.join(path, name))
        except OSError:
            pass


def regular(path):
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise Failed(b"is_dir")
    if not stat.S_ISREG(status.st_mode):
        raise Failed(b"other it is no regular file")
    return status


def fetch(limit, *wanted):
    for path, known in zip(wanted[::2], wanted[1::2]):
        try:
            answer.append(fetched(path, known, int(limit)))
        except (OSError, Failed) as error:
            answer.append(b"E %s\n" % word(error))


def fetched(path, known, limit):
    status = regular(path)
    if status.st_size > limit:
        raise Failed(b"too_large %d" % status.st_size)
    with open(path, "rb") as file:
        data = file.read()
    if known and checksum(data) == known:
        return b"same %.6f\n" % (status.st_mtime_ns / 1e9)
    return b"ok %.6f %d\n%s" % (status.st_mtime_ns / 1e9, len(data), data)


def matcher(name):
    if name == b"*":
        return lambda child: True
    import fnmatch
    import re

    return re.compile(os.fsencode(fnmatch.translate(name.decode()))).match


def files(path, visible, name):
    matches = matcher(name)
    for directory, below, names in os.walk(path):
        if visible:
            below[:] = [child for child in below if not child.startswith(b".")]
        below[:] = [child for child in below if os.path.join(directory, child) not in SYSTEM]
        for child in names:
            if (not visible or not child.startswith(b".")) and matches(child):
                yield os.path.join(directory, child)


def start(path):
    if not os.path.exists(path):
        raise Failed(b"not_found")
    return os.path.isdir(path)


def tree(path, visible, name):
    if not start(path):
        raise Failed(b"not_dir")
    answer.append(b"ok\n")
    for child in files(path, visible, name):
        entry(child)


def grep(path, visible, name, needle, limit):
    found = files(path, visible, name) if start(path) else [path]
    answer.append(b"ok\n")
    total = 0
    for child in found:
        try:
            status = os.stat(child)
            if not stat.S_ISREG(status.st_mode):
                continue
            if status.st_size > int(limit):
                raise Failed(b"too_large")
            with open(child, "rb") as file:
                data = file.read()
        except (OSError, Failed):
            answer.append(b"skip 0 %s//\n" % child)
            continue
        if needle in data:
            total += len(data)
            if total > MOST:
                answer.append(b"full 0 //\n")
                return
            answer.append(b"file %d %s//\n%s" % (len(data), child, data))


# --- changing ---


def prepare(path):
    """Make the directory that `path` is to lie in."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Failed(b"not_dir") from None


def beside(path):
    return os.path.join(os.path.dirname(path), PREFIX + nonce)


def place_file(path, data, mode):
    target = os.path.realpath(path)
    prepare(target)
    if os.path.isdir(target):
        raise Failed(b"is_dir")
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
        raise Failed(b"exists") from None
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write(path, mode, known, before, after, staged):
    """Put a file: the first `before` bytes of the old one, what is sent, and its last `after` bytes."""
    data = payload(staged)
    lock()
    if os.path.isdir(path):
        raise Failed(b"is_dir")
    if mode == b"match":
        try:
            with open(path, "rb") as file:
                old = file.read()
        except OSError:
            raise Failed(b"conflict") from None
        if checksum(old) != known:
            raise Failed(b"conflict")
        data = old[: int(before)] + data + old[len(old) - int(after) :]
    place_file(path, data, mode)
    answer.append(b"ok\n")


def put(staged, *wanted):
    data, at = payload(staged), 0
    lock()
    for path, size in zip(wanted[::2], wanted[1::2]):
        content, at = data[at : at + int(size)], at + int(size)
        try:
            place_file(path, content, b"replace")
            answer.append(b"ok\n")
        except (OSError, Failed) as error:
            answer.append(b"E %s\n" % word(error))


def stage(name, offset):
    data = a2b_base64(sys.stdin.buffer.read())
    with open(held(name), "wb" if int(offset) == 0 else "ab") as file:
        if file.tell() != int(offset):
            raise Failed(b"other a part is missing")
        file.write(data)
    if int(offset) == 0:
        sweep()
    answer.append(b"ok\n")


def sweep():
    """Remove what calls that were ended have left, an hour ago and more."""
    import shutil

    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.startswith(PREFIX) and b"lock" not in name and os.lstat(path).st_mtime < time.time() - 3600:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def delete(path):
    import shutil

    lock()
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
    answer.append(b"ok\n")


def check_destination(src, dst, overwrite):
    if not os.path.lexists(src):
        raise Failed(b"not_found")
    if dst.startswith(src.rstrip(b"/") + b"/"):
        raise Failed(b"inside")
    if os.path.isdir(dst):
        raise Failed(b"is_dir" if overwrite else b"exists")
    if os.path.lexists(dst) and not overwrite:
        raise Failed(b"exists")
    if os.path.lexists(dst) and os.path.isdir(src):
        raise Failed(b"not_dir_itself")
    prepare(dst)


def move(src, dst, overwrite):
    import shutil

    lock()
    if src != dst or not os.path.lexists(src):
        check_destination(src, dst, overwrite)
        shutil.move(os.fsdecode(src), os.fsdecode(dst))
    answer.append(b"ok\n")


def copy(src, dst, overwrite):
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


def show(text, offset, checksum):
    part = text[offset : offset + int(most)]
    print("@deepfs %s py %d %s" % (nonce.decode(), len(text), checksum))
    print(part.decode())
    print("@end %s" % nonce.decode())


def more(name, offset):
    with open(held(name), "rb") as file:
        text = file.read()
    show(text, int(offset), "-")
    if int(offset) + int(most) >= len(text):
        os.unlink(held(name))


def zipped(data):
    compress = zlib.compressobj(4, zlib.DEFLATED, 31)
    return compress.compress(data) + compress.flush()


def main():
    if operation == b"more":
        more(*arguments)
        return
    operations = (ls, fetch, tree, grep, write, put, stage, delete, move, copy)
    try:
        {function.__name__.encode(): function for function in operations}[operation](*arguments)
    except (OSError, Failed) as error:
        answer[:] = [b"E %s\n" % word(error)]
    text = b2a_base64(zipped(b"".join(answer)), newline=False)
    if len(text) > int(most):
        with open(held(nonce), "wb") as file:
            file.write(text)
    show(text, 0, checksum(text).decode())


main()
