"""Scripts for a shell, made of templates and files: what two shells are compared by.

`KNOWN_DIFFERENCES` names what the interpreter of `VirtualShell` does otherwise than GNU bash, with the reason.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import Final

__all__ = ["KNOWN_DIFFERENCES", "TREE", "known_difference", "scripts", "some_scripts"]

TREE: Final[dict[str, bytes]] = {
    "a.txt": b"banana 3\napple 10\ncherry 2\napple 10\n\nDate 7\n",
    "b.csv": b"id,name,qty\n3,bolt,12\n1,nut,7\n2,gear,30\n10,bolt,5\n",
    "c.log": b"2026-01-02 ERROR disk full\n2026-01-01 INFO start\n2026-01-03 WARN slow: 12ms\n2026-01-03 ERROR net\n",
    "no_end": b"first\nlast line has no end",
    "empty": b"",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "words.txt": "naïve café\nÜber straße\nplain ascii\n日本 語\n".encode(),
    "src/main.py": b"import os\n\n\ndef main():\n    print(os.name)  # TODO: more\n\n\nmain()\n",
    "src/util.py": b"def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n",
    "src/deep/x.py": b"X = 1\nTODO = None\n",
    "with space.txt": b"tab\there\n  lead\ntrail  \n",
    "blob.bin": bytes(range(256)) * 3,
    "data.json": b'{"name": "deep", "tags": ["a", "b"], "n": {"x": 1}}\n',
}

_TEXTS = ["a.txt", "b.csv", "c.log", "no_end", "empty", "crlf.txt", "words.txt", "src/main.py"]
_TEXTS += ["'with space.txt'"]

_ON_ONE_FILE: Final = """
cat {f}
cat -n {f}
cat -A {f}
cat {f} {f}
tac {f}
rev {f}
nl {f}
head -n 2 {f}
head -n -1 {f}
head -c 9 {f}
tail -n 2 {f}
tail -n +2 {f}
tail -c 5 {f}
wc -l < {f}
wc -w < {f}
wc -c {f}
wc {f}
sort {f}
sort -r {f}
sort -u {f}
sort -n {f}
sort -k2 {f}
sort -k2,2n -k1,1 {f}
sort -t, -k3 -n {f}
sort -f {f}
sort {f} | uniq -c
sort {f} | uniq -d
uniq {f}
cut -c1-4 {f}
cut -d, -f2 {f}
cut -d' ' -f2- {f}
cut -d' ' -f1,2 -s {f}
cut --complement -d' ' -f1 {f}
tr a-z A-Z < {f}
tr -d '\\r\\n' < {f}
tr -s ' ' '_' < {f}
tr -cd '[:alnum:]' < {f}
grep a {f}
grep -n e {f}
grep -c a {f}
grep -v a {f}
grep -i DATE {f}
grep -o '[0-9]*' {f}
grep -E '^[a-z]+ [0-9]+$' {f}
grep -w apple {f}
grep -l a {f} src/util.py
grep -L a {f} src/util.py
grep -q apple {f}; echo $?
grep -A1 -B1 e {f}
grep -m1 a {f}
grep -F . {f}
grep -x apple {f}
grep zzz {f} || echo none
sed -n 2p {f}
sed 's/a/A/' {f}
sed 's/a/A/g;s/e/[&]/' {f}
sed '1d' {f}
sed '$d' {f}
sed '/a/d' {f}
sed -n '/a/,/e/p' {f}
sed '2i\\inserted' {f}
sed '2a appended' {f}
sed -E 's/([a-z]+) ([0-9]+)/\\2 \\1/' {f}
sed 'y/abc/xyz/' {f}
sed -n '$=' {f}
sed '2q' {f}
sed -i 's/a/o/' {f}; cat {f}
sed -i '1d' {f}
sed -i.bak 's/e/E/g' {f}; ls
awk '{{print $1}}' {f}
awk '{{print NF, NR}}' {f}
awk -F, '{{s += $3}} END {{print s}}' {f}
awk 'length($0) > 8' {f}
awk '{{c[$1]++}} END {{for (k in c) print k, c[k]}}' {f} | sort
awk 'NR == 2 {{print toupper($0)}}' {f}
awk '{{printf "%-10s|%3d\\n", $1, $2}}' {f}
awk 'BEGIN {{OFS="-"}} {{$1 = $1; print}}' {f}
awk '/a/ {{n++}} END {{print n + 0}}' {f}
awk '{{print substr($0, 2, 3)}}' {f}
awk '{{gsub(/a/, "4"); print}}' {f}
awk 'END {{print $0}}' {f}
paste -d: {f} {f}
paste -s -d, {f}
fold -w 7 {f}
expand {f}
md5sum {f}
sha256sum {f} | cut -c1-16
cksum {f}
base64 {f}
base64 {f} | base64 -d | cmp - {f}
od -c {f} | head -n 3
xxd {f} | head -n 2
cp {f} copy; cat copy
mv {f} moved; ls; cat moved
rm {f}; ls
echo more >> {f}; tail -n 1 {f}
echo new > {f}
: > {f}
cat {f} > out 2>&1; cat out
cat < {f} | cat > two; cmp {f} two && echo same
tee copy1 copy2 < {f} > copy3
while read line; do echo "[$line]"; done < {f}
while IFS= read -r line; do echo "[$line]"; done < {f}
while IFS=, read -r x y z; do echo "$y/$x"; done < {f}
mapfile -t lines < {f}; echo ${{#lines[@]}} "${{lines[0]}}"
x=$(cat {f}); echo "${{#x}}"
x=$(head -n 1 {f}); echo "${{x^^}} ${{x:1:3}} ${{x/a/b}} ${{x%% *}} ${{x##* }}"
[ -f {f} ] && echo file; [ -d {f} ] || echo no directory
[ -s {f} ] && echo filled || echo no content
test -e {f} -a -r {f}; echo $?
if grep -q TODO {f}; then echo todo; else echo done; fi
xargs -n 2 echo < {f}
xargs < {f}
diff {f} a.txt; echo $?
diff -u {f} a.txt | tail -n +3
cmp {f} a.txt; echo $?
comm -12 <(sort {f}) <(sort a.txt)
split -l 2 {f} part_; ls
shuf {f} | sort
truncate -s 4 {f}; cat {f}
dd if={f} of=out bs=1 count=5 2>/dev/null; cat out
gzip -c {f} | gunzip -c | cmp - {f}
gzip {f}; ls; gunzip {f}.gz; cat {f}
tar cf t.tar {f}; rm {f}; tar xf t.tar; cat {f}
stat -c %s {f}
wc -l {f} src/*.py
basename {f} .txt; dirname {f}
sort {f} -o {f}; cat {f}
cat {f} | while read a b; do echo "$b $a"; done
python3 -c 'print(1)'
column -t {f}
fmt -w 20 {f}
head -n 1 {f} src/util.py
tail -n 1 {f} src/util.py
chmod +x {f}; [ -x {f} ] && echo executable
touch {f} new; ls
install -m 644 {f} inst; cat inst
cat {f} nosuch; echo $?
cat {f} | sort | uniq | wc -l
""".strip().splitlines()

_ALONE: Final = r"""
echo hello world
echo -n no newline
echo -e 'a\tb\nc'
printf '%s\n' one two three
printf '%05d|%-6s|%x|%.2f\n' 42 ab 255 3.14159
echo $((3 + 4 * 2)) $((7 / 2)) $((7 % 3)) $((2 ** 10)) $((1 << 4))
echo $((0x1f)) $((010)) $((5 > 3)) $((5 & 3)) $((~5))
x=5; ((x += 3)); echo $x; ((x++)); echo $x
let "y = 4 * 5"; echo $y
for i in 1 2 3; do echo -n "$i "; done; echo
for i in {1..5}; do echo $i; done
for ((i = 0; i < 4; i++)); do echo $i; done
for f in *.txt; do echo "<$f>"; done
for f in src/*.py; do wc -l < "$f"; done
i=0; while [ $i -lt 3 ]; do echo $i; i=$((i + 1)); done
i=3; until [ $i -eq 0 ]; do echo $i; ((i--)); done
for i in 1 2 3 4; do [ $i = 2 ] && continue; [ $i = 4 ] && break; echo $i; done
case banana in a*) echo a;; b*) echo b;; *) echo other;; esac
case x.py in *.txt|*.md) echo doc;; *.py) echo code;; esac
f() { echo "got $1 and $2 of $#"; return 3; }; f a b; echo $?
f() { local x=2; echo $x; }; x=1; f; echo $x
fact() { if [ $1 -le 1 ]; then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }; fact 5
arr=(a b c); echo ${arr[1]} ${#arr[@]} "${arr[@]}"; arr+=(d); echo "${arr[@]:1:2}"
declare -A m; m[x]=1; m[y]=2; echo ${m[x]} ${#m[@]}; for k in "${!m[@]}"; do echo $k; done | sort
x=hello; echo ${x:1:3} ${#x} ${x^} ${x^^} ${x/l/L} ${x//l/L} ${x#he} ${x%lo}
p=/a/b/c.tar.gz; echo ${p##*/} ${p%/*} ${p%%.*} ${p#*.}
echo ${unset:-default} ${unset:=set} $unset ${unset:+alt}
echo "${nope?}" ; echo $?
set -- a b c; echo $# $2 "$@"; shift; echo $1
cat <<EOF
x is $((1 + 1)) and $(echo sub)
EOF
cat <<'EOF'
no $expansion `here`
EOF
cat <<-EOF
	tabs are cut
EOF
cat <<< "a here string"
echo a b c | { read x y; echo $y; }
(cd src && pwd | sed 's/.*\///'; ls); ls | head -n 2
{ echo out; echo err >&2; } 2>/dev/null
{ echo out; echo err >&2; } 2>&1 | sort
ls nosuch; echo $?
cat nosuch 2>/dev/null || echo missing
true && echo yes; false || echo no; ! true; echo $?
false; echo $?; (exit 7); echo $?
set -e; false; echo not reached
set -u; echo $undefined_variable; echo after
set -o pipefail; false | true; echo $?
true | false; echo ${PIPESTATUS[@]}
echo one; exit 4; echo two
trap 'echo bye' EXIT; echo hi
echo $(echo nested $(echo deeper))
echo `echo old style`
ls
ls -1
ls -a
ls src
ls -R src
ls -d src
ls *.txt
ls | wc -l
wc -l *
echo *
echo */*.py
echo *.nothing
echo [ab]*
echo ?.txt
echo {a,b}{1,2} {3..1} {a..e..2}
echo "quoted *" '$HOME' \$x
find . -type f | sort
find . -name '*.py' | sort
find . -type d | sort
find src -maxdepth 1 -type f | sort
find . -iname 'A*' | sort
find . -name '*.py' -not -path './src/deep/*' | sort
find . -type f -empty
find . -type f -size +100c | sort
find . -name '*.py' -exec wc -l {} \; | sort
find . -name '*.py' -exec grep -l TODO {} + | sort
find . -name '*.txt' -print0 | xargs -0 cat | sort
find . -name '*.py' | xargs grep -n def | sort
find . -name '*.log' -delete; ls
find src -mindepth 2
find . -path '*deep*' | sort
find . \( -name '*.csv' -o -name '*.log' \) | sort
grep -r TODO . | sort
grep -rn def src | sort
grep -rl TODO src | sort
grep -rc TODO src | sort
grep -r --include='*.py' import . | sort
grep -rh TODO src | sort
grep -rI ERROR . | sort
mkdir d; ls; rmdir d; ls
mkdir -p x/y/z; find x | sort
mkdir src; echo $?
rmdir src; echo $?
rm -r src; ls
rm src; echo $?
rm -f nosuch; echo $?
rm nosuch; echo $?
rm *.txt; ls
cp -r src lib; find lib | sort
cp a.txt src; ls src
cp a.txt b.csv src/deep; ls src/deep
cp src other; echo $?
cp a.txt nosuch/x; echo $?
mv src lib; find lib -type f | sort
mv a.txt b.csv src; ls src
mv src/main.py src/renamed.py; ls src
mv nosuch x; echo $?
touch n1 n2; ls n*
echo data > src/new.txt; cat src/new.txt
echo x > src; echo $?
cat src; echo $?
cd src; ls; cd ..; ls | head -n 1
cd nosuch; echo $?
cd src/deep && cat x.py && cd - > /dev/null && ls | wc -l
sort a.txt | uniq -c | sort -rn | head -n 1
cut -d, -f2 b.csv | tail -n +2 | sort | uniq -c
awk -F, 'NR > 1 {t[$2] += $3} END {for (k in t) print k, t[k]}' b.csv | sort
awk 'BEGIN {for (i = 1; i <= 3; i++) print i * i}'
awk -v n=3 'BEGIN {while (n-- > 0) print n}'
awk 'BEGIN {print length("héllo"), index("abc", "c"), substr("hello", 2, 3), toupper("x")}'
awk 'BEGIN {split("a:b:c", p, ":"); print p[2], p[3]; print 1 / 4, 10 % 3, 2 ^ 8}'
awk '{a[NR] = $0} END {for (i = NR; i > 0; i--) print a[i]}' a.txt
awk -F'[ :-]' '{print $3, $1}' c.log
awk '$2 > 3 {print $1 > "big.txt"}' a.txt; cat big.txt
sed -n 's/^\([0-9-]*\) ERROR \(.*\)$/\2 on \1/p' c.log
sed '/^$/d' a.txt | sed 's/ /\t/'
sed -e '1!G;h;$!d' a.txt
sed ':a;N;$!ba;s/\n/,/g' a.txt
sed '3,$d' c.log
sed '0~2d' a.txt
sed = a.txt | head -n 4
echo 'a,b,c' | tr ',' '\n'
echo abc | sed 's/./&-/g'
seq 5
seq 2 3 11
seq -s, 4
seq -w 8 11
seq 10 | paste -sd+ | bc
seq 3 | awk '{s += $1} END {print s}'
seq 12 | head -n 7 | tail -n 2
seq 5 | tac
seq 20 | grep 1 | wc -l
seq 1 5 | xargs -n 2
seq 3 | xargs -I{} echo item {}
seq 5 | sed -n '2,4p'
seq 9 | paste - - -
yes no | head -n 3
printf '3\n1\n2\n' | sort -n | tr '\n' ' '
printf 'b\na\nC\n' | sort
printf 'a b\nc d\n' | while read x y; do echo $y $x; done
printf 'x\0y\0' | tr '\0' '\n'
printf '%s\n' 10 9 100 | sort
printf '1K\n2M\n300\n' | sort -h
printf 'v1.10\nv1.9\nv1.2\n' | sort -V
printf 'k1 a\nk2 b\n' > l; printf 'k1 x\nk3 y\n' > r; join l r; rm l r
printf '%s\n' a a b | uniq -c
printf '%q\n' 'a b' "it's"
printf '%d\n' 0x10
printf '%b' 'a\nb\n'
printf '%c%c\n' abc def
printf '\x41\102\n'
expr 3 + 4; expr length hello; expr hello : 'h\(.*\)'
echo '1.5 * 4' | bc
echo 'scale=3; 10 / 3' | bc
basename /x/y/z.txt .txt; dirname /x/y/z.txt
realpath -m a/../b | sed 's/.*\///'
readlink -f a.txt | sed 's/.*\///'
[ 3 -gt 2 ] && echo gt; [ a \< b ] && echo lt; [ -z "" ] && echo empty
[[ abc == a* ]] && echo glob; [[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}
[[ -f a.txt && ! -d a.txt ]] && echo plain
[[ 10 -gt 9 ]] && echo number; [[ 10 > 9 ]] || echo string
test -n x -a 1 -eq 1 && echo both
[ -f a.txt -o -f nosuch ] && echo either
if [ -d src ]; then echo dir; elif [ -f src ]; then echo file; else echo none; fi
read x <<< "one two"; echo $x
read -r a b c <<< "1 2 3 4"; echo $c
IFS=: read -ra parts <<< "a:b:c"; echo ${parts[2]} ${#parts[@]}
IFS=,; set -- $(echo a,b,c); echo $2
x=1; (x=2; echo $x); echo $x
x=1; echo $x | { read y; x=$y$y; echo $x; }; echo $x
export V=1; bash -c 'echo $V'
V=2 bash -c 'echo $V'; echo ${V:-unset}
bash -c 'echo $0 $1' zero one
sh -c 'exit 5'; echo $?
eval 'echo evaluated'
a=b; b=c; echo ${!a}
source src/nosuch.sh; echo $?
echo 'echo sourced $1' > s.sh; . ./s.sh arg; bash s.sh arg2; rm s.sh
printf '#!/bin/bash\necho run $#\n' > r.sh; chmod +x r.sh; ./r.sh a b; rm r.sh
command -v nosuchcmd; echo $?
type -t cd; type -t ls > /dev/null; echo $?
nosuchcmd; echo $?
echo a; echo b >&2; echo c
exec 3> fd.txt; echo via fd >&3; exec 3>&-; cat fd.txt
exec 3< a.txt; read -u 3 line; echo $line; exec 3<&-
cat a.txt > /dev/null; echo $?
echo err > /dev/stderr 2>/dev/null; echo $?
ls a.txt nosuch 2>&1 | wc -l
cat < nosuch; echo $?
echo x >> new.txt; echo y >> new.txt; cat new.txt
echo clob > a.txt; cat a.txt
set -C; echo x > a.txt; echo $?
cat a.txt b.csv > ab; wc -l ab
tee t1 <<< tee; cat t1
echo abc | tee -a a.txt | wc -c
diff <(seq 3) <(seq 2 4); echo $?
comm <(printf 'a\nb\n') <(printf 'b\nc\n')
diff a.txt a.txt && echo same
diff -q a.txt b.csv; echo $?
cmp blob.bin blob.bin; echo $?
wc -c blob.bin; md5sum blob.bin; cp blob.bin b2; cmp blob.bin b2
cat blob.bin > b3; head -c 10 blob.bin | od -An -tx1; tail -c 3 blob.bin | od -An -tu1
gzip -k blob.bin; gunzip -c blob.bin.gz | cmp - blob.bin && rm blob.bin.gz
base64 -w 0 blob.bin | wc -c
tr -d '\000' < blob.bin | wc -c
sort blob.bin > sorted.bin
sed 's/x/y/' blob.bin > edited.bin
grep -c x blob.bin
cut -c1 blob.bin > cut.bin
awk '{print}' blob.bin > awk.bin
tar cf all.tar src; tar tf all.tar | sort; rm all.tar
tar czf all.tgz src; mkdir o; tar xzf all.tgz -C o; find o -type f | sort; rm all.tgz
jq -r .name data.json
jq '.tags[]' data.json
jq -c '.n.x + 1' data.json
jq '.tags | length' data.json
jq -r '.tags | join("-")' data.json
jq . data.json
jq 'keys' data.json
jq .missing data.json; jq . a.txt 2>/dev/null; echo $?
du -b a.txt | cut -f1
date -u -d @0 +%Y-%m-%d
date -u -d 2020-02-28+1day +%F 2>/dev/null || date -u -d '2020-02-28 1 day' +%F
sleep 0; echo slept
wait; echo waited
echo bg & wait; echo after
env -i A=1 env | grep A
env | grep -c ^HOME
printenv NOPE; echo $?
umask
umask 077; umask
ln -s a.txt link; cat link
ln a.txt hard; cat hard
mkfifo pipe; ls pipe
head -c 5 /dev/zero | od -An -tx1
echo ~ | wc -l
echo $RANDOM | grep -c '^[0-9]*$'
echo ${#BASH_VERSION} | grep -c .
hostname > /dev/null; echo $?
timeout 5 echo in time
time true 2>/dev/null
nohup echo x 2>/dev/null
echo a | xargs -I% sh -c 'echo [%]'
find . -name '*.py' | while read -r f; do echo "$(wc -l < "$f") $f"; done | sort
for f in $(ls *.txt); do echo $f; done
for f in *; do [ -f "$f" ] && echo "$f"; done | sort
for d in */; do echo $d; done
ls -p | grep -v /
count=0; for f in src/*.py; do count=$((count + $(wc -l < $f))); done; echo $count
while read -r n q; do [ "${q:-0}" -gt 5 ] && echo $n; done < a.txt
n=0; while read -r l; do n=$((n + 1)); done < c.log; echo $n
grep ERROR c.log | cut -d' ' -f3- | sort
grep -c . a.txt c.log
grep -n '^$' a.txt
grep -e apple -e cherry a.txt
grep -P '\d+$' a.txt
grep -E 'a{2}|p{2}' a.txt
grep '[[:upper:]]' a.txt
grep -o -E '[0-9]{4}' c.log | sort -u
grep -vn '^#' a.txt
grep é words.txt; echo $?
grep -c 語 words.txt
wc -m words.txt; wc -c words.txt
cut -c1-3 words.txt
tr 'é' 'e' < words.txt
sed 's/ß/ss/' words.txt
awk '{print length($0)}' words.txt
sort words.txt
rev words.txt
echo ünïcode | wc -m
x=日本; echo ${#x} ${x:0:1}
echo "${x@Q}"; shopt -s nullglob; echo *.none; echo end
shopt -s extglob; echo !(*.txt) | wc -w
shopt -s globstar; echo **/*.py
cat src/*.py | grep -c def
sort -t' ' -k2 -n a.txt | tail -n 1
sort -s -k1,1 a.txt
sort -c a.txt; echo $?
sort -k3 -t, -rn b.csv | head -n 2
uniq -i <<< $'A\na\nb'
uniq -u <<< $'x\nx\ny'
nl -ba a.txt | head -n 2
tail -n 3 a.txt | head -n 1
head -n 0 a.txt
head nosuch; echo $?
od -An -tx1 no_end | head -n 1
echo 'a  b   c' | tr -s ' ' | cut -d' ' -f3
echo hello | rev | tr a-z b-za
echo 'k=v' | { IFS='=' read k v; echo $v; }
printf 'one\ntwo\n' | sed 's/^/> /'
printf 'x=%s\n' "$(< no_end)"
echo $'tab\tquote\'s'
echo "a\"b" 'c"d' "e'f"
echo a\ b  c
echo -- -n
echo "multi
line"
echo one # comment
# only a comment
if true; then :; fi; echo $?
[ ]; echo $?
((0)); echo $?
: ; echo $?
!; echo $?
echo unterminated 'quote
if true; then echo x
echo )
echo ${bad
for; do
cat <<EOF
never closed
""".strip("\n")


def _alone() -> Iterator[str]:
    """The scripts of `_ALONE`; a here document and a quoted line break go on over lines."""
    lines = iter(_ALONE.splitlines())
    for line in lines:
        if "<<EOF" in line or "<<'EOF'" in line or "<<-EOF" in line:
            script = [line]
            for more in lines:
                script.append(more)
                if more == "EOF":
                    break
            yield "\n".join(script)
        elif line == 'echo "multi':
            yield f"{line}\n{next(lines)}"
        else:
            yield line


def scripts() -> list[str]:
    """All scripts, each once, in an order that does not change."""
    made = [*_alone()]
    made += [template.format(f=file) for template in _ON_ONE_FILE for file in _TEXTS]
    return [*dict.fromkeys(made)]


def some_scripts(count: int) -> list[str]:
    """Some of them, always the same: a part of those of every kind."""
    made = scripts()
    return sorted(Random(38).sample(made, count), key=made.index)


KNOWN_DIFFERENCES: Final[dict[str, str]] = {
    r".*(?:words\.txt|héllo).*": "text tools count characters, where GNU's count bytes or columns of a terminal",
    r"cmp .* a\.txt; echo .*": "`cmp` says `char`, as older releases do",
    r"column -t .*": "`column -t` keeps empty lines and does not fill the last column",
    r"diff .*": "`diff` finds other lines in common, and does not say that a file has no final newline",
    r"fmt -w 20 .*": "`fmt` fills lines to the width, not to the goal below it",
    r"tar cf t\.tar .*": "a tar archive has times and owners",
    r"awk .printf.* c\.log|awk '\{printf .*": "some awk read `INFO` as infinity",
    r"ls -a": "`ls -a` leaves out `.` and `..`",
    r"ls -p .*": "`ls -p` is an error",
    r"(?:ls a\.txt nosuch|wc -l \*).*": "`ls` and `wc` tell of an argument that fails, and leave out the others",
    r"jq \.missing .*": "`jq` has another exit code for input that is no JSON",
    r"echo '1\.5 .*": "`bc` drops zeros at the end",
    r"date -u -d 2020.*": "`date -d` knows fewer forms",
    r"echo err > /dev/stderr .*": "stderr is closed later than its redirection",
    r".*(?:undefined_variable|nope\?).*": "an unset variable ends a script with 1, and not with 127",
    r"(?s)echo \$\{bad|cat <<EOF\nnever closed": "an unclosed `${` or here document is no error",
    r"python3 .*": "there is no Python",
}
"""Regular expressions of the scripts that may give something else, with the reason."""


def known_difference(script: str) -> str | None:
    """Why a script may give something else; None if it must not."""
    return next((reason for pattern, reason in KNOWN_DIFFERENCES.items() if re.fullmatch(pattern, script)), None)
