# Runs one file operation in a sandbox, with a POSIX shell and the tools of busybox: reads arguments, prints an answer.
# shellcheck shell=sh disable=SC2016,SC2329  # Functions are called by the name of the operation.

LC_ALL=C
export LC_ALL
umask 022
NL='
'

# Decode $1 into $decoded; a line break at its end stays.
decode() {
    decoded=$(printf %s "$1" | base64 -d && printf x)
    decoded=${decoded%x}
}

decode "$1" && nonce=$decoded
decode "$2" && most=$decoded
decode "$3" && operation=$decoded
shift 3
count=$#
while [ "$count" -gt 0 ]; do
    decode "$1"
    shift
    set -- "$@" "$decoded"
    count=$((count - 1))
done

place=${TMPDIR:-/tmp}
held=$place/.~deepfs-
work=${held}work-$nonce
temporary=
mkdir "$work" || exit 1
trap 'rm -rf "$work"; [ -z "$temporary" ] || rm -rf "$temporary"' EXIT
answer=$work/answer
: >"$answer"

say() {
    printf '%s\n' "$*" >>"$answer"
}

fail() {
    say E "$@"
    return 1
}

size_of() {
    size=$(wc -c <"$1")
    size=$((size))
}

checksum_of() {
    checksum=$(sha256sum <"$1")
    checksum=${checksum%% *}
}

# Allow one change at a time; the lock ends with the process. Without it, after two seconds, nothing has changed.
lock() {
    patience=100
    if command -v flock >/dev/null 2>&1; then
        exec 9>>"${held}lock-$(id -u)"
        until flock -n 9; do wait_more || return; done
        return
    fi
    until mkdir "${held}lock-d" 2>/dev/null; do
        find "${held}lock-d" -maxdepth 0 -mmin +1 -exec rmdir {} \; 2>/dev/null
        wait_more || return
    done
    trap 'rmdir "${held}lock-d"; rm -rf "$work"; [ -z "$temporary" ] || rm -rf "$temporary"' EXIT
}

wait_more() {
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { fail timeout; return; }
    sleep 0.02 2>/dev/null || { sleep 1; patience=$((patience - 49)); }
}

payload() {
    if [ -n "$1" ]; then
        case $1 in
        /*) mv "$1" "$work/payload" ;;
        *) mv "$held$1" "$work/payload" ;;
        esac
    else
        base64 -d >"$work/payload"
    fi
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

# --- reading ---

do_ls() {
    if [ ! -d "$1" ]; then
        if [ -e "$1" ]; then fail not_dir; else fail not_found; fi
        return
    fi
    [ -r "$1" ] || { fail denied; return; }
    say ok
    find "${1%/}/" -mindepth 1 -maxdepth 1 ! -type l -exec stat -c '%f %s %Y %n//' {} + >>"$answer" 2>/dev/null
    find "${1%/}/" -mindepth 1 -maxdepth 1 -type l -exec sh -c '
        for link; do stat -L -c "%f %s %Y %n//" "$link" 2>/dev/null || stat -c "%f %s %Y %n//" "$link"; done
    ' sh {} + >>"$answer" 2>/dev/null
    return 0
}

# List each entry itself, for a symlink with the mode of its target.
do_entries() {
    exists "$1" || { fail not_found; return; }
    say ok
    {
        find "$1" ! -type l -exec stat -c '%f %s 0 %n//' {} +
        find "$1" -type l -exec sh -c '
            for link; do
                target=$(stat -L -c %f "$link" 2>/dev/null) || target=0
                stat -c "%f %s $target %n//" "$link"
            done
        ' sh {} +
        find "$1" -type d -exec sh -c '
            for each; do [ -r "$each" ] && [ -x "$each" ] || echo "bad 0 0 //"; done
        ' sh {} +
    } >>"$answer" 2>/dev/null
    return 0
}

# Answer with files whose contents have up to $1 bytes together; later stands for each further one.
do_fetch() {
    limit=$1 left=$1
    shift
    while [ $# -gt 0 ]; do
        fetch_one "$1" "$2"
        shift 2
    done
}

fetch_one() {
    if [ -d "$1" ]; then fail is_dir; return; fi
    if [ ! -e "$1" ]; then fail not_found; return; fi
    if [ ! -f "$1" ]; then fail other it is no regular file; return; fi
    size_of "$1" 2>/dev/null
    if [ "$size" -gt "$limit" ]; then fail too_large "$size"; return; fi
    time=$(stat -L -c %Y "$1")
    read_file "$1" || { fail denied; return; }
    if [ "$size" -gt "$limit" ]; then fail too_large "$size"; return; fi
    if [ -n "$2" ]; then
        checksum_of "$work/file"
        if [ "$checksum" = "$2" ]; then say same "$time"; return; fi
    fi
    if [ "$size" -gt "$left" ]; then fail later; return; fi
    left=$((left - size))
    say ok "$time" "$size"
    cat "$work/file" >>"$answer"
}

# Copy the file $1, but no more than is needed to see that it is beyond the limit.
read_file() {
    { head -c $((limit + 1)) <"$1" >"$work/file"; } 2>/dev/null || return
    size_of "$work/file"
}

# Find in the tree $1 the files that are visible (if $2) and have a name like $3; the rest are tests and actions of find.
find_files() {
    top=$1 visible=$2 like=$3
    shift 3
    hidden='.?*'
    [ -n "$visible" ] || hidden=/
    find "${top%/}/" -mindepth 1 \( -name "$hidden" -o -path /proc -o -path /sys -o -path /dev \) -prune -o \
        -name "$like" \( -type f -o -type l -exec test -f {} \; \) "$@" 2>/dev/null
}

print_names='for file; do printf "%s//\n" "$file"; done'

do_tree() {
    if [ ! -d "$1" ]; then
        if [ -e "$1" ]; then fail not_dir; else fail not_found; fi
        return
    fi
    say ok
    find_files "$1" "$2" "$3" -exec stat -L -c '%f %s %Y %n//' {} + >>"$answer"
}

do_grep() {
    exists "$1" || { fail not_found; return; }
    needle=$4 limit=$5 most_found=$6 total=0
    say ok
    if [ ! -d "$1" ]; then
        printf '%s//\n' "$1" >"$work/names"
    elif [ -n "$needle" ] && printf 'a\0b' | grep -z -F -q -e b 2>/dev/null; then
        find_files "$1" "$2" "$3" ! -path "*$NL*" ! -size "+${limit}c" -exec grep -z -F -l -s -e "$needle" -- {} + |
            sed 's|$|//|' >"$work/names"
        find_files "$1" "$2" "$3" \( -path "*$NL*" -o -size "+${limit}c" \) -exec sh -c "$print_names" sh {} + >>"$work/names"
        find_files "$1" "$2" "$3" ! -path "*$NL*" ! -size "+${limit}c" \
            -exec sh -c 'for file; do [ -r "$file" ] || printf "%s//\n" "$file"; done' sh {} + >>"$work/names"
    else
        find_files "$1" "$2" "$3" -exec sh -c "$print_names" sh {} + >"$work/names"
    fi
    name=
    while IFS= read -r line; do
        name=$name$line
        case $name in
            *//) grep_one "${name%//}" || break; name= ;;
            *) name=$name$NL ;;
        esac
    done <"$work/names"
}

grep_one() {
    size_of "$1" 2>/dev/null
    if [ ! -r "$1" ] || [ "$size" -gt "$limit" ] || ! read_file "$1" || [ "$size" -gt "$limit" ]; then
        say skip 0 "$1//"
        return
    fi
    total=$((total + size))
    if [ "$total" -gt "$most_found" ]; then
        say full 0 //
        return 1
    fi
    say file "$size" "$1//"
    cat "$work/file" >>"$answer"
}

# Answer with the path, beneath the resolved root $1, that each path leads to; no if it leads elsewhere.
do_resolve() {
    real_of "$1" && top=${real%/} || top=/none/
    shift
    for each; do
        if ! real_of "$each"; then say 'no //'; continue; fi
        case ${real%/} in
            "$top") say 'ok //' ;;
            "$top"/*) say "ok ${real#"$top"}//" ;;
            *) say 'no //' ;;
        esac
    done
}

# Find out to what the path $1 leads, of which not all need exist.
real_of() {
    at=$1 rest=
    until exists "$at" || [ "$at" = / ]; do
        rest=/${at##*/}$rest
        at=${at%/*}
        at=${at:-/}
    done
    real=$(readlink -f "$at" 2>/dev/null && printf x) || return
    real=${real%"$NL"x}
    [ -n "$real" ] && [ "$real" != x ] || return
    real=${real%/}$rest
    real=${real:-/}
}

# --- changing ---

# Make the parent directory of $1.
prepare() {
    parent=${1%/*}
    [ ! -d "${parent:-/}" ] || return 0
    mkdir -p "${parent:-/}" 2>"$work/error" && return
    case $(cat "$work/error") in
        *[Pp]ermission* | *[Rr]ead-only*) fail denied ;;
        *) fail not_dir ;;
    esac
}

# Put the content of the file $2 at $1; if $3 is create, nothing may be there.
place_file() {
    target=$1
    if [ -L "$1" ]; then
        target=$(readlink -f "$1" && printf x)
        target=${target%"$NL"x}
    fi
    [ -n "$target" ] && [ "$target" != x ] || { fail denied; return; }
    prepare "$target" || return
    if [ -d "$target" ]; then fail is_dir; return; fi
    temporary=${target%/*}/.~deepfs-$nonce
    if [ -e "$target" ]; then cp -p "$target" "$temporary" 2>/dev/null || rm -f "$temporary"; fi
    cat "$2" >"$temporary" 2>/dev/null || { fail denied; rm -f "$temporary"; return 1; }
    if [ "$3" = create ]; then
        if exists "$target" || ! ln "$temporary" "$target" 2>/dev/null; then
            rm -f "$temporary"
            if exists "$target"; then fail exists; else fail denied; fi
            return
        fi
        rm -f "$temporary"
    else
        mv -f "$temporary" "$target" 2>/dev/null || { fail denied; rm -f "$temporary"; return 1; }
    fi
    temporary=
}

# Write a file: the first $4 bytes of the old one, the payload, and the last $5 bytes of the old one.
do_write() {
    lock || return
    payload "$6"
    if [ -d "$1" ]; then fail is_dir; return; fi
    new=$work/payload
    if [ "$2" = match ]; then
        cat <"$1" >"$work/old" 2>/dev/null || { fail conflict; return; }
        checksum_of "$work/old"
        [ "$checksum" = "$3" ] || { fail conflict; return; }
        new=$work/new
        {
            head -c "$4" "$work/old"
            cat "$work/payload"
            [ "$5" = 0 ] || tail -c "$5" "$work/old"
        } >"$new"
    fi
    place_file "$1" "$new" "$2" && say ok
}

do_put() {
    lock || return
    payload "$1"
    shift
    at=1
    while [ $# -gt 0 ]; do
        tail -c "+$at" "$work/payload" | head -c "$2" >"$work/file"
        if place_file "$1" "$work/file" replace; then say ok; fi
        at=$((at + $2))
        shift 2
    done
}

do_stage() {
    if [ "$2" = 0 ]; then
        find "$place" -maxdepth 1 -name '.~deepfs-*' ! -name '*lock*' -mmin +60 -exec rm -rf {} + 2>/dev/null
        : >"$held$1"
    fi
    size_of "$held$1"
    [ "$size" = "$2" ] || { fail other a part is missing; return; }
    base64 -d >>"$held$1" && say ok
}

do_delete() {
    lock || return
    if ! exists "$1"; then fail not_found; return; fi
    if [ -n "$2" ]; then
        if [ -d "$1" ]; then fail is_dir; return; fi
        cat <"$1" >"$work/old" 2>/dev/null || { fail denied; return; }
        checksum_of "$work/old"
        [ "$checksum" = "$2" ] || { fail conflict; return; }
    fi
    rm -rf "$1" 2>/dev/null
    if exists "$1"; then fail denied; else say ok; fi
}

# Make and remove directories, and set modes: three words for each, its path, the change and the mode.
do_change() {
    lock || return
    while [ $# -gt 0 ]; do
        if change_one "$1" "$2" "$3"; then say ok; fi
        shift 3
    done
}

change_one() {
    case $2 in
    make_directory)
        if exists "$1"; then fail exists; return; fi
        prepare "$1" || return
        mkdir "$1" 2>/dev/null || { fail denied; return; }
        [ -z "$3" ] || { chmod "$3" "$1" && chmod u+rwx "$1"; } 2>/dev/null || fail denied
        ;;
    remove_directory)
        exists "$1" || { fail not_found; return; }
        rmdir "$1" 2>/dev/null && return
        if [ -d "$1" ] && [ -n "$(find "$1" -mindepth 1 -maxdepth 1 2>/dev/null)" ]; then fail exists; else fail denied; fi
        ;;
    *)
        [ -z "$3" ] || chmod "$3" "$1" 2>/dev/null || fail denied
        ;;
    esac
}

check_destination() {
    exists "$1" || { fail not_found; return; }
    case $2 in
        "${1%/}"/*) fail inside; return ;;
    esac
    if [ -d "$2" ]; then
        if [ -n "$3" ]; then fail is_dir; else fail dir_exists; fi
        return
    fi
    if exists "$2"; then
        [ -n "$3" ] || { fail exists; return; }
        [ ! -d "$1" ] || { fail not_dir_itself; return; }
    fi
    prepare "$2"
}

# A name may end with a newline; the dot keeps it.
real() {
    readlink -f "$1" 2>/dev/null || printf '%s\n' "$1"
    echo .
}

do_move() {
    lock || return
    if ! exists "$1" || [ "$(real "$1")" != "$(real "$2")" ]; then
        check_destination "$1" "$2" "$3" || return
        mv -f "$1" "$2" 2>/dev/null || { fail denied; return; }
    elif ! exists "$2"; then
        # A link that replaced its own target would lead to itself.
        fail not_found
        return
    fi
    say ok
}

do_copy() {
    lock || return
    check_destination "$1" "$2" "$3" || return
    temporary=${2%/*}/.~deepfs-$nonce
    if [ -d "$1" ]; then
        cp -R -P "$1" "$temporary" 2>/dev/null
    else
        cp "$1" "$temporary" 2>/dev/null
    fi || { fail denied; return; }
    mv -f "$temporary" "$2" 2>/dev/null || { fail denied; return; }
    temporary=
    say ok
}

# --- answering ---

# Print the part of the file $1 from the offset $2 on, framed; $3 is the checksum.
show() {
    size_of "$1"
    printf '@deepfs %s sh %s %s\n' "$nonce" "$size" "$3"
    tail -c "+$(($2 + 1))" "$1" | head -c "$most"
    printf '\n@end %s\n' "$nonce"
}

if [ "$operation" = more ]; then
    show "$held$1" "$2" -
    [ $(($2 + most)) -lt "$size" ] || rm -f "$held$1"
    exit 0
fi

"do_$operation" "$@"
if command -v gzip >/dev/null 2>&1; then gzip -c <"$answer"; else cat "$answer"; fi | base64 | tr -d '\n' >"$work/text"
checksum_of "$work/text"
size_of "$work/text"
show "$work/text" 0 "$checksum"
[ "$size" -le "$most" ] || mv "$work/text" "$held$nonce"
exit 0
