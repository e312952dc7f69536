"""What the server carries out as a whole: the scripts of a tree in Redis, and the keys that hold it.

The keys of one tree have one hash tag, `{prefix:namespace}`, so a cluster keeps them in one slot:

    {deepfs:acme/ada}:f:/notes/a.md   a file, a hash: content, created_at, modified_at, mime_type, version
    {deepfs:acme/ada}:names           the paths of all files, a sorted set in which every score is 0
    {deepfs:acme/ada}:made:TOKEN      the outcome of a change, a hash, for as long as its request may be sent again
    {deepfs:acme/ada}:changes         the latest changes, a stream that is there while somebody watches

Other programs may have written any of these. A hash without a version has one made of its content, a key of another
type is a file that cannot be read, and a name without a file, as one that has expired, is removed when it is found.
"""

from hashlib import sha1
from typing import Final

__all__ = ["APPLY", "LIST", "LOOK", "READ_STREAM", "WATCH", "Keys", "Script"]


class Keys:
    """The names of the keys of one tree. Neither `prefix` nor `namespace` has braces."""

    def __init__(self, prefix: str, namespace: str) -> None:
        escaped = namespace.replace(":", "%3A")  # The prefix may have colons as well.
        tag = f"{{{prefix}:{escaped}}}:"
        self.file_prefix: bytes = f"{tag}f:".encode()
        self.names: bytes = f"{tag}names".encode()
        self.stream: bytes = f"{tag}changes".encode()
        self._made = f"{tag}made:"

    def file(self, path: str) -> bytes:
        """The key of the file at `path`."""
        return self.file_prefix + path.encode()

    def made(self, token: str) -> bytes:
        """The key of the outcome of the change with this token."""
        return f"{self._made}{token}".encode()


class Script:
    """A script in Lua, with the functions that scripts share before it."""

    def __init__(self, text: str) -> None:
        self.text: str = _SHARED + text
        self.sha: str = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_SHARED: Final = """
local function short(text)  -- What another program wrote there may be long.
    return text and #text <= 256 and not string.find(text, '%z') and text
end

-- Size, modification, creation, version and type of a file; false where there is none.
local function stat(key)
    local fields = redis.pcall('HMGET', key, 'modified_at', 'created_at', 'version', 'mime_type')
    if fields.err then
        return {false, false, false, 'type:' .. redis.call('TYPE', key).ok, false}
    end
    local size, version = redis.call('HSTRLEN', key, 'content'), short(fields[3])
    if not version or not string.find(version, '^%w+$') then
        if redis.call('EXISTS', key) == 0 then
            return false
        end
        version = 'size:' .. size
        if size <= 1048576 then
            version = 'sha1:' .. redis.sha1hex(redis.call('HGET', key, 'content') or '')
        end
    end
    return {size, short(fields[1]), short(fields[2]), version, short(fields[4])}
end

-- The fields of a stat, and last the path.
local function line(row, path)
    return table.concat({row[1] or '', row[2] or '', row[3] or '', row[4], row[5] or '', path}, '\\0')
end

-- The lengths of texts, '-' for none, and the texts, each as one: clients read an answer of many parts slowly.
local function join(texts)
    local lengths, present = {}, {}
    for number, text in ipairs(texts) do
        lengths[number] = text and #text or '-'
        present[#present + 1] = text or nil
    end
    return table.concat(lengths, ' '), table.concat(present)
end
"""

LOOK: Final = Script("""
-- The stats of the files KEYS, and their contents up to ARGV[1] bytes together, but that of the first in any case. They
-- are fewer than KEYS if there is more. Without contents if ARGV[1] is 0.
local most, found, contents, held = tonumber(ARGV[1]), {}, {}, 0
for number, key in ipairs(KEYS) do
    local row = stat(key)
    if row and most > 0 then
        local size = row[1] or 0
        if number > 1 and held + size > most then
            break
        end
        held = held + size
        local content = redis.pcall('HGET', key, 'content')
        contents[number] = type(content) == 'string' and content
    else
        contents[number] = false
    end
    found[number] = row and line(row, '')
end
local lengths, lines = join(found)
return {lengths, lines, join(contents)}
""")

LIST: Final = Script("""
-- Files by name, from ARGV[2] to ARGV[3] as ZRANGEBYLEX has them, at most ARGV[4]; at most ARGV[5] names are looked at.
-- With ARGV[6], the length of the path of a directory and its slash, only one file of each directory in that one.
-- Returns where to go on, or '' at the end, and the lines of the files. KEYS[1] has the names, and ARGV[1] begins the
-- key of each file.
local start, stop = ARGV[2], ARGV[3]
local wanted, left, top = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local found, inside = {}, false
while left > 0 do
    local asked = math.min(left, top > 0 and 32 or left)
    local page = redis.call('ZRANGEBYLEX', KEYS[1], start, stop, 'LIMIT', 0, asked)
    left = left - asked
    for _, path in ipairs(page) do
        if inside and string.sub(path, 1, #inside) == inside then
            start = '[' .. string.sub(inside, 1, -2) .. '0'  -- The character behind the slash.
        else
            start = '(' .. path
            local row = stat(ARGV[1] .. path)
            if row then
                found[#found + 1] = line(row, path)
                local slash = top > 0 and string.find(path, '/', top + 1, true)
                inside = slash and string.sub(path, 1, slash)
                if #found == wanted then
                    return {start, join(found)}
                end
            else
                redis.pcall('ZREM', KEYS[1], path)
            end
        end
    end
    if #page < asked then
        return {'', join(found)}
    end
end
return {start, join(found)}
""")

APPLY: Final = Script("""
-- Makes changes, all or none. KEYS: the names, the outcome, the stream, the file of each change, and outcomes that
-- nobody asks for any more. ARGV: the changes, what begins the key of each file, the token, milliseconds to keep the
-- outcome, milliseconds after which files expire or 0, entries of the stream, and the contents in their order.
-- A change: path, condition, origin, whether it stores, created_at, modified_at, mime_type, whether created_at stays,
-- whether names beneath the path matter. Returns 0 if they are made, the number of the change whose condition does not
-- hold, or less than 0, the number of one with names beneath it. Sent again with its token, a change only has its
-- outcome returned.
local names, outcome, stream, token = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
local known = redis.call('HGET', outcome, 'answer')
if known then
    return tonumber(known)
end
for key, kind in pairs({[names] = 'zset', [stream] = 'stream'}) do
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
        return redis.error_reply('WRONGTYPE a key of the tree holds another type')
    end
end

local changes = cmsgpack.unpack(ARGV[1])
local removed = {}
for _, change in ipairs(changes) do
    removed[change[1]] = not change[4]
end

local function holds(path)
    return not removed[path] and redis.call('EXISTS', ARGV[2] .. path) == 1
end

local function is_beneath_file(path)
    local above = string.match(path, '^(.+)/[^/]*$')
    while above do
        if holds(above) then
            return true
        end
        above = string.match(above, '^(.+)/[^/]*$')
    end
    return false
end

local function is_directory(path)  -- nil if too many names of files that have expired are in the way.
    local start, seen, page = '[' .. path .. '/', 0, nil
    repeat
        page = redis.call('ZRANGEBYLEX', names, start, '(' .. path .. '0', 'LIMIT', 0, 100)
        seen = seen + 100
        for _, name in ipairs(page) do
            if holds(name) then
                return true
            end
            start = '(' .. name
        end
        if seen >= 10000 then
            return nil
        end
    until #page < 100
    return false
end

local before, answer = {}, 0
for number, change in ipairs(changes) do
    local condition, row = change[2], stat(KEYS[3 + number])
    before[number] = row
    if (condition == 'version' and not (row and row[4] == change[3])) or (condition == 'create' and row) then
        answer = number
    elseif change[4] and condition ~= 'version' then
        local directory = not row and change[9] and is_directory(change[1])
        if directory == nil or is_beneath_file(change[1]) then
            answer = number  -- Whoever plans the change anew looks, and removes names of files that have expired.
        elseif directory then
            answer = -number
        end
    end
    if answer ~= 0 then
        break
    end
end

-- What the server may refuse, it refuses here, where nothing is changed yet: it has no memory left, which counts for
-- the first command that needs some, or the account may not use one of the commands below.
redis.call('ZADD', outcome, 'XX', 0, '')
redis.call('ZREM', outcome, '')
redis.call('XADD', outcome, 'NOMKSTREAM', '*', 'watched', '')
redis.call('PEXPIRE', outcome, ARGV[4])
redis.call('UNLINK', outcome)
redis.call('HSET', outcome, 'answer', answer)
redis.call('PEXPIRE', outcome, ARGV[4])
for number = 4 + #changes, #KEYS do
    redis.call('UNLINK', KEYS[number])
end
if answer ~= 0 then
    return answer
end

local contents = 6
for number, change in ipairs(changes) do
    if change[4] then
        local key, row, created_at = KEYS[3 + number], before[number], change[5]
        contents = contents + 1
        if change[8] and row and row[3] then
            created_at = row[3]
        end
        redis.call('UNLINK', key)
        redis.call('HSET', key, 'content', ARGV[contents], 'created_at', created_at, 'modified_at', change[6],
            'version', token)
        if change[7] ~= '' then
            redis.call('HSET', key, 'mime_type', change[7])
        end
        if ARGV[5] ~= '0' then
            redis.call('PEXPIRE', key, ARGV[5])
        end
        redis.call('ZADD', names, 0, change[1])
    end
end
for number, change in ipairs(changes) do
    if not change[4] then
        redis.call('UNLINK', KEYS[3 + number])
        redis.call('ZREM', names, change[1])
    end
end

if redis.call('EXISTS', stream) == 1 then
    local fields = {}
    for number, change in ipairs(changes) do
        fields[#fields + 1] = not change[4] and 'deleted' or before[number] and 'modified' or 'created'
        fields[#fields + 1] = change[1]
        if #fields == 128 or number == #changes then
            redis.call('XADD', stream, 'MAXLEN', '~', ARGV[6], '*', unpack(fields))
            fields = {}
        end
    end
end
return 0
""")

WATCH: Final = Script("""
-- Has changes reported in the stream KEYS[1] for ARGV[1] milliseconds. Returns the id of its last entry.
if #redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1) == 0 then
    redis.call('XADD', KEYS[1], '*', 'watched', '')
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]
""")

READ_STREAM: Final = Script("""
-- Up to ARGV[3] entries of the stream KEYS[1] from the one with the id ARGV[2] on, which comes first: it is missing if
-- the stream was cut behind it, or is another one. The stream stays for ARGV[1] milliseconds.
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('XRANGE', KEYS[1], ARGV[2], '+', 'COUNT', ARGV[3])
""")
