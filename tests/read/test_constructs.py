# ruff: noqa: E501, W291 - lines of scripts stay whole
"""Scripts written by hand, a construct or two each, through bash and through the reader: equal or refused."""

import re
import shlex
from pathlib import Path

import pytest
from benchmark_modules import loaded

pytestmark = pytest.mark.search

REFUSED = 8
"""Scripts at most that the reader may refuse."""

SCRIPTS = r"""
TP=1; PP=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2;;
    --pp=*) PP="${1#*=}"; shift;;
    *) echo "unknown $1" >&2; exit 1;;
  esac
done
torchrun train.py --tp $TP --pp $PP
%% --tp 8 --pp=4
while getopts "t:p:h" opt; do
  case ${opt} in
    t) TP=$OPTARG ;;
    p) PP=$OPTARG ;;
    h) echo help; exit 0 ;;
    \?) exit 1 ;;
  esac
done
shift $((OPTIND -1))
torchrun train.py --tp $TP --pp $PP "$@"
%% -t 8 -p4 rest "of it"
read -r -d '' OPTIONS <<EOF
 --a 1
 --b "x y"
EOF
torchrun train.py $OPTIONS
%%
OPTS=$(cat <<-EOF
	--a 1
	--b $((1+2))
	EOF
)
torchrun train.py ${OPTS}
%%
declare -A S=([8b]="32 4096" [70b]="80 8192")
read -r L H <<< "${S[70b]}"
torchrun train.py --num-layers $L --hidden-size $H
%%
declare -A S=([a]=1 [b]=2 [c]=3)
for k in "${!S[@]}"; do A+=" --$k ${S[$k]}"; done
torchrun train.py $A
%%
f() { local -a arr=("$@"); local n=${#arr[@]}; echo "--n $n --last ${arr[-1]} ${arr[@]:1:1}"; }
torchrun train.py $(f a "b c" d)
%%
set -a
X=3
set +a
Y=(${X:+"--x" "$X"})
torchrun train.py "${Y[@]}" ${Z:+"--z" "$Z"} "${Y[@]:+yes}"
%%
CMD="torchrun --nproc_per_node 8 train.py --x 'a b' --y \"c d\""
echo $CMD
$CMD
%%
CMD="torchrun --nproc_per_node 8 train.py --x 'a b' --y \"c d\""
eval "$CMD" 2>&1 | tee log.txt
%%
if ! command -v nvidia-smi &> /dev/null; then N=0; fi
torchrun train.py --a
%%
let "x = 3 * 4" y=x+1
torchrun train.py --x $x --y $y
%%
L="a,b,c"
for i in ${L//,/ }; do A="$A --m $i"; done
IFS=',' read -ra P <<< "$L"
torchrun train.py $A ${P[1]} ${#P[@]}
%%
torchrun train.py --a \
  --b 1 \
  \
  --c 2 \

echo done
%%
torchrun train.py --a \ 
  --b 1
%%
>&2 echo starting
echo starting >&2
torchrun train.py --x > >(tee -a log) 2>&1
%%
[[ "${X:-}" == "1" || "${Y:-0}" -eq 0 && -z "${Z-}" ]] && A=--yes
[ "a" \< "b" ] && B=--less
[[ abc < abd ]] && C=--lt
[[ "a b" == "a "* ]] && D=--pat
[[ $A == --y?s ]] && E=--q
[[ foo.bar =~ ^([a-z]+)\.(.*)$ ]] && F="${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
torchrun train.py $A $B $C $D $E $F
%%
A=(); A+=("--x"); A+=(--y 1); A[10]=--z
unset 'A[0]'
torchrun train.py "${A[@]}" ${#A[@]} "${!A[@]}"
%%
x=5
(( x += 2, y = x * 2 ))
((z = x > y ? 1 : 2))
torchrun train.py $x $y $z $(( x++ )) $x $((--x)) $(( 1 << 3 | 1 )) $((7 % 4)) $((-7/2)) $((2**3**1))
%%
for ((i=0, j=10; i<j; i+=3, j--)); do A+=($i:$j); done
torchrun train.py "${A[@]}"
%%
i=0
while :; do
  ((i++))
  if ((i % 2)); then continue; fi
  for k in a b; do
    [ $i -gt 6 ] && break 2
    A="$A $i$k"
  done
done
torchrun train.py $A
%%
f() { return 3; }
f; A=$?
if f; then B=1; else B=$?; fi
g() { if [ "$1" = x ]; then echo yes; return; fi; echo no; }
torchrun train.py $A $B $(g x) $(g y)
%%
A=1
f() { local A=2; g; }
g() { echo $A; A=3; }
B=$(f)
f > /dev/null
torchrun train.py $A $B
%%
printf -v X '%s,' a b c
printf -v Y '%05.2f|%-5s|%5s|%x' 3.14159 ab cd 255
torchrun train.py "${X%,}" "$Y" "$(printf '%s\n' a b)" "$(printf '%d%%' 50)"
%%
A="a:b:c"
IFS=: ; set -- $A; IFS=' '
torchrun train.py $# "$2" "$*"
%%
A="  x   y  "
torchrun train.py [$A] "[$A]" $A"z" "z"$A"q" '$A' \$A "\$A" "a\nb" 'a\nb' $'a\\nb' "a'b" 'a"b'
%%
V=/data/model.tar.gz
torchrun train.py ${V#/} ${V##*.} ${V%/*} ${V/data/x} ${V//a/A} ${V/%gz/xz} ${V/#\/data/D} ${V:0:5} ${V:(-3)} ${V:5:-3} ${V^^} ${V: -2:1} ${#V}
%%
V=
torchrun train.py "${V:-d}" "${V-d}" "${W:-d}" "${W-d}" "${V:+a}" "${V+a}" "${W+a}" "${W:=z}" "$W" ${X:-a b} "${X:-a b}" ${X:-"a b"} "${X:-"q r"}" "${X:-'s'}" ${X:-'t u'}
%%
torchrun train.py {a,b}{1,2} {1..3} {3..1} {a..c} {01..03} x{,y} "{a,b}" {a} {a,b {1..10..4} a{b,c{d,e}}f \{a,b\} {$HOME,x}
%%
set -euo pipefail
A=${A:-x}
B=("${@}")
[ "$A" = y ] || C=1
D=$(false || echo ok)
torchrun train.py $A ${C:-} $D ${B[@]+"${B[@]}"}
%%
set -e
if false; then :; fi
false || true
! true
A=$(echo x; false) || true
torchrun train.py $A
%%
set -e
local_fn() { local x=$(false); echo ok; }
torchrun train.py $(local_fn)
%%
set -e
false | true
(false) || echo x
torchrun train.py --here
%%
set -eo pipefail
x=$(false | cat) && y=1 || y=2
torchrun train.py $y
%%
case "abc" in a*) A=1;& b) A+=2;; *) A+=3;; esac
case x in [!a-w]) B=1;; esac
case "a b" in "a b") C=1;; esac
case $UNSET in "") D=1;; esac
case foo in f?o|bar) E=1;; esac
case '*' in '*') F=1;; esac
torchrun train.py $A $B $C $D $E $F
%%
X=1 Y=2 env > /dev/null
X=5 bash -c 'torchrun train.py $X'
%%
export A=1 B="$A 2"
readonly C=3
declare -x D=4
bash -c 'torchrun train.py $A "$B" $C $D'
%%
bash <<EOF
torchrun train.py --a $((1+1)) \$((2+2))
EOF
%%
cat > run.sh <<'EOF'
torchrun other.py --no
EOF
torchrun train.py --yes
%%
cat <<EOF | tee x.json
{"a": 1}
EOF
torchrun train.py --yes
%%
N=3
torchrun train.py $(for i in $(seq 0 $((N-1))); do printf -- '--n %d ' $i; done)
%%
A=$(echo "a b" | awk '{print $1}')
torchrun train.py $A
%%
A=$(echo 'x=1;y=2' | cut -d';' -f2 | tr 'a-z' 'A-Z' | sed 's/=/:/')
torchrun train.py $A $(echo a b c | wc -w) $(echo -e "a\nb\nc" | head -n 2 | tail -1) $(expr 7 \* 3 + 1) $(expr 7 / 2)
%%
nohup torchrun train.py --bg > log 2>&1 &
PID=$!
wait $PID
%%
trap 'kill 0' INT TERM
trap cleanup EXIT
cleanup() { echo bye; }
torchrun train.py --t
%%
torchrun train.py ${1:-d1} ${2:-d2} "${@:2}" "$#" "${*}"
%% one "two words" three
main() { local tp=$1; shift; torchrun train.py --tp "$tp" "$@"; }
main 8 --x 'y z'
exit 0
this is ( garbage
%%
A=abc; n=A; m="A[0]"
arr=(x y z); r='arr[1]'; s='arr[@]'
torchrun train.py ${!n} ${!m} ${!r} "${!s}"
%%
A='--x "y"'
B=("$A")
torchrun train.py $A "${B[@]}" "${B[*]}" ${A}$A
%%
true && { A=1; } || A=2; (B=3); { C=4; }; D=$( (echo 5) )
torchrun train.py $A $B $C $D
%%
x=10#08; y=08
torchrun train.py $((x)) $((10#$y + 1)) $((0x1F)) $((2#101)) $((36#Zz))
%%
a=1;b=2
if [ $a = 1 -a $b = 2 ];then A=1;fi;if [ $a = 2 -o $b = 2 ];then B=1;fi
if [ ! $a = 2 ];then C=1;fi;if [ \( $a = 1 \) ];then D=1;fi;[ $a ] && E=1;[ "" ] || F=1;[ ! "" ] && G=1
[ $a -eq 1 ] && [ "$b" != 1 ] && H=1
[ abc -eq 1 ] 2>/dev/null || I=1
torchrun train.py $A $B $C $D $E $F $G $H $I
%%
f() { echo "$FUNCNAME"; }
torchrun train.py "$(f)"
%%
A=x
A+=y
A=${A}z
declare -i n=3
n+=4
n=n*2
declare -u U=abc
declare -l L=ABC
torchrun train.py $A $n $U $L
%%
A=( $(echo 1 2) "$(echo 3 4)" {5,6} )
B=([2]=c [0]=a)
C=(1 2 3)
C=("${C[@]:1}")
torchrun train.py "${A[@]}" "${B[@]}" "${C[@]}" "${#C}"
%%
mapfile -t LINES_ <<< $'a b\nc'
readarray -t M < <(printf 'x\ny\n')
torchrun train.py "${LINES_[@]}" ${#LINES_[@]}
%%
echo "a b c" | while read x y; do torchrun train.py "$x" "$y"; done
%%
A="x"
B='$A'
eval C=$B
eval "D=\"\$A $B\""
torchrun train.py $C "$D"
%%
pushd /tmp > /dev/null; popd > /dev/null
DIR=$(dirname "$(readlink -f "$0")")
NAME=$(basename "${BASH_SOURCE[0]}")
torchrun $DIR/train.py --a
%%
torchrun --nproc_per_node $(nvidia-smi -L | wc -l) --node_rank ${RANK:-0} --master_port $((RANDOM % 1000 + 20000)) train.py --a
%%
MOE="([0]*3+[1]*58)"
torchrun train.py --moe-layer-freq "$MOE" --moe2 $MOE --q '[1]*3'
%%
GPUS=8
NODES=2
WORLD=$((GPUS*NODES)); DP=$(( WORLD / 4 )); GAS=$((512 / DP))
[ $((512 % DP)) -ne 0 ] && { echo bad; exit 1; }
torchrun train.py --gas $GAS --dp $DP
%%
A="--a
--b 'c'
"
torchrun train.py $A "$A"
%%
exec > >(tee log) 2>&1
torchrun train.py --a
%%
if [ "${DEBUG}" ]; then set -x; fi
time torchrun train.py --a
%%
A=1 ; B=2 # c
# full; line "unclosed
torchrun train.py --a#b '#c' "#d" e#f #g
%%
A=$(echo "it's")
B="$(echo "nested \"q\" $(echo 'in')")"
C=`echo "bt \`echo in\`"`
torchrun train.py "$A" "$B" "$C"
%%
A=${B:-${C:-${D:-deep}}}
E="${F:-"$A x"}"
torchrun train.py $A "$E" "${G:-$(echo sub)}" ${H:-$((1+2))} "${A/e/$(echo E)}"
%%
while IFS='=' read -r k v; do [[ -z $k || $k == \#* ]] && continue; A+=("--$k" "$v"); done <<EOF
# comment
tp=8
name=a b
EOF
torchrun train.py "${A[@]}"
%%
OPT="--a"
[ -n "$OPT" ] && torchrun train.py $OPT
%%
until [ ${i:=0} -ge 3 ]; do i=$((i+1)); done
torchrun train.py $i
%%
A='a*b'; B='[x]'
torchrun train.py $A "$A" $B x? \*
%%
test "$A" || B=unset
test -z "$A" -a -n "$B" && C=1
torchrun train.py $B $C
%%
f() { echo $1 $2; }
torchrun train.py $(f "$(echo a b)" c) "$(f 'x y' z)"
%%
X="A B"; for w in $X "C D" E; do R="$R<$w>"; done
for w; do Q=$Q$w; done
torchrun train.py "$R" "$Q"
%% p q
"""
"""Scripts, each with its arguments behind a line of ``%%``."""


def test_constructs_as_bash_reads_them(tmp_path: Path) -> None:
    """Words, expansions, conditions, loops, functions, redirections."""
    module = loaded("launch_scripts", "hardening")
    found = []
    for text, words in re.findall(r"\n(.*?)\n%%([^\n]*)(?=\n)", SCRIPTS, re.DOTALL):
        given = (f"#!/bin/bash\n{text}\n", tuple(shlex.split(words)), {})
        found.append(module.compared(*given, module.bash_arguments(*given, tmp_path)))
    assert len(found) > 60
    assert [one.text for one in found if one.kind in ("different", "nothing")] == []
    assert sum(one.kind == "refused" for one in found) <= REFUSED
