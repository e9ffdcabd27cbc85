# ruff: noqa: E501, W291 - lines of scripts stay whole
"""Scripts written by hand, a construct or two each, through bash and through the reader: equal, or refused by design."""

import re
import shlex
from pathlib import Path

import pytest
from benchmark_modules import loaded

from pipette_opt.base.errors import InputError
from pipette_opt.read.scripts import read_script

pytestmark = pytest.mark.search

SCRIPTS = r"""
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
torchrun train.py $A $B $C $D $E
%%
A=(); A+=("--x"); A+=(--y 1)
torchrun train.py "${A[@]}" ${#A[@]} ${A[-1]} "${A[@]:1}"
%%
x=5
(( x += 2, y = x * 2 ))
((z = x > y ? 1 : 2))
torchrun train.py $x $y $z $(( 1 << 3 | 1 )) $((7 % 4)) $((-7/2)) $((2**3**1))
%%
A=x; B=$?; C=$(false); D=$?
if [ $D = 1 ]; then E=$?; fi
torchrun train.py $A $B $C $D $E
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
false | true
(false) || echo x
torchrun train.py --here
%%
set -eo pipefail
x=$(false) && y=1 || y=2
torchrun train.py $y
%%
case "abc" in a*) A=1;; b) A+=2;; *) A+=3;; esac
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
A=( $(echo 1 2) "$(echo 3 4)" )
C=(1 2 3)
C=("${C[@]:1}")
torchrun train.py "${A[@]}" "${C[@]}" "${#C}"
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
OPT="--a"
[ -n "$OPT" ] && torchrun train.py $OPT
%%
A='a*b'; B='[x]'
torchrun train.py $A "$A" $B x? \*
%%
test "$A" || B=unset
test -z "$A" -a -n "$B" && C=1
torchrun train.py $B $C
%%
f() { local x=$1; echo "--fa $x"; }
while read -r line; do L=$line; done < /dev/null
for i in {1..3}; do M+=$i; done
f 1 2
torchrun train.py --x 1
%%
die() { echo "$1"; exit 1; }
[ -d / ] || die "no root"
X=1
[ -f /nowhere ] && X=1
torchrun train.py --y
%%
if [ -f /nowhere ]; then A=1; B=(x); fi
for i in 1 2; do B+=(y); done
A=2
B=(z)
torchrun train.py $A "${B[@]}"
%%
while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) exit 1;; esac; done
until true; do exit 1; done
torchrun train.py --tp ${TP:-8}
%%
main() { local X=1; torchrun train.py --tp 8 $X2; exit 0; }
main "$@"
torchrun train.py --tp 4
%%
for host in a b; do ssh $host echo; torchrun train.py --tp 8; done
%%
set -- --p "q r"
torchrun train.py "$@" $# "${2:-z}" "${@:2}"
%%
A=$(cat /dev/null; echo x)
declare -A M=([a]=1); getopts x o; let z=1; printf -v P %s 1; Q[3]=1
torchrun train.py --x
%%
export "A=1 2"; unset -f foo; declare -F > /dev/null; builtin echo; X=1
command -v nowhere > /dev/null && Y=1
torchrun train.py "$A" $((~5 & 0xF ^ 3)) $((2 > 1 ? 3 : 4)) $((1 || 0)) $((!X)) $(((2 + 3) * 4))
%%
x=abcdef; Y=(a b c)
torchrun train.py "${x:1:-2}" "${x: -9}" "${Y[@]:9}" "${Y[@]: -2:1}" ${x/#/-} ${x/%/-} ${Y[@]/#/p} "${@:-none}"
%%
[ "a" = "a" -a ! "b" = "c" ] && A=1
[[ ! ( a == b || -n "" ) ]] && B=1
[ -n "" -o -z "" ] && C=1
torchrun train.py $A $B $C
%%
"""
"""Scripts, each with its arguments behind a line of ``%%``."""

OUTSIDE = r"""
set -- --tp 4
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2;;
    *) echo "unknown $1" >&2; exit 1;;
  esac
done
torchrun train.py --tp $TP
%% ${TP}, in the value of --tp, .*the loop while [[ $# -gt 0 ]], line 2
while getopts "t:" o; do TP=$OPTARG; done
torchrun train.py --tp $TP
%% the loop while getopts "t:" o, line 1
for i in 1 2; do A="$A --m $i"; done
torchrun train.py $A
%% ${A}, in argument 1, .*the loop for i in 1 2, line 1
for ((i=0; i<3; i++)); do A+=($i); done
torchrun train.py "${A[@]}"
%% the loop for ((i=0; i<3; i++)), line 1
select x in a b; do break; done
torchrun train.py $x
%% the loop select x in a b, line 1
f() { TP=8; }
f
torchrun train.py --tp $TP
%% the function f, line 1
f() { echo 8; }
torchrun train.py --tp $(f)
%% $(f), in the value of --tp
main() { torchrun train.py --tp $1; }
main 8
%% $1, in the value of --tp, .*they are those of main
for i in 1 2; do torchrun train.py --tp $i; done
%% ${i}, in the value of --tp, .*the loop for i in 1 2, line 1
usage() { exit 1; }
[ $# -lt 1 ] && usage
torchrun train.py --tp 8
%% line 1: may end in the function usage
read -r TP <<< 8
torchrun train.py --tp $TP
%% ${TP}, .*line 1 has read
mapfile -t L <<< 8
torchrun train.py "${L[@]}"
%% ${L}, .*line 1 has mapfile
printf -v TP %d 8
torchrun train.py --tp $TP
%% ${TP}, .*line 1 has printf
let TP=8
torchrun train.py --tp $TP
%% ${TP}, .*line 1 has let
shift
torchrun train.py --tp $1
%% $1, .*line 1 has shift
declare -i n=3
n+=4
torchrun train.py --n $n
%% ${n}, .*line 1 declares it with -i
declare -A S=([a]=1)
S[b]=2
torchrun train.py --n ${S[a]}
%% line 1 declares it with -A
A=(1 2)
A[5]=3
torchrun train.py "${A[@]}"
%% ${A}, .*line 2 sets elements by their keys
A=(1 2)
unset 'A[0]'
torchrun train.py "${A[@]}"
%% ${A}, .*line 2 unsets one of its elements
x=1
torchrun train.py $((x++))
%% $((x++)), in argument 1
x=1
((x++))
torchrun train.py $x
%% ${x}, .*line 2 changes it in ((x++))
A=$(echo a | tr a b)
torchrun train.py $A
%% $(echo a | tr a b), in argument 1
A=$(printf x)
torchrun train.py $A
%% $(printf x), in argument 1
A=$(cat <<EOF
--x
EOF
)
torchrun train.py $A
%% $(cat <<EOF
A=$(< /etc/hostname)
torchrun train.py $A
%% $(< /etc/hostname), in argument 1
if [ -f /nowhere ]; then X=1; fi
torchrun train.py ${X+--x}
%% ${X+--x}, in argument 1
A=/x:~/y
torchrun train.py $A
%% ~, in argument 1
A=(/etc/host[sn]*)
torchrun train.py "${A[@]}"
%% /etc/host[sn]*, in argument 1
for o in --a --b; do x=$o; done
torchrun train.py $x
%% ${x}, in argument 1
[[ ab =~ ^a(b)$ ]] && X=${BASH_REMATCH[1]}
torchrun train.py $X
%% ${X}, .*[[ ab =~ ^a(b)$ ]], line 1
case ab in a*) A=1;& b) A=2;; esac
torchrun train.py $A
%% line 1: has a case that goes on behind ;&
torchrun train.py --x {1..3}
%% line 1: has '{1..3}', whose braces make several words
IFS=:
A=a:b
torchrun train.py $A
%% line 3: splits words by an IFS that the script changes
n=A; A=1
torchrun train.py ${!n}
%% line 2: has ${!n}, a variable whose name is in a variable
A=(1)
torchrun train.py "${!A[@]}"
%% line 2: has ${!A[@]}, the keys of an array
A=a
torchrun train.py ${A@Q}
%% line 2: has ${A@Q}
torchrun train.py $[1+2]
%% line 1: has $[...]
[[ a == @(a|b) ]] && A=1
torchrun train.py $A
%% line 1: cannot be read as bash here
A=abc
torchrun train.py ${A//b*/x}
%% line 2: replaces a pattern with *
shopt -s nullglob
torchrun train.py --x
%% line 1: has shopt -s nullglob
A=$'\x41'
torchrun train.py $A
%% line 1: has a quote that is not closed, or with an escape
readonly A=1
A=2
torchrun train.py $A
%% line 2: assigns to A, which is readonly
A=$(cat file)
eval "$A"
torchrun train.py --x
%% evaluates a text that is not known: $(cat file)
N=$(cat file)
T=8
export $N=1
torchrun train.py --tp $T
%% ${T}, in the value of --tp, .*line 3 declares a variable that is not known
A=(1)
torchrun train.py ${A[-3]}
%% line 2: has a subscript of A that is no index
A=(1 2)
torchrun train.py "${A[@]:0:-1}"
%% line 2: has ${A[@]:0:-1}, whose length is negative
set -n
torchrun train.py --x
%% line 1: has set -n
"""
"""Scripts with a construct that is not evaluated on the way to the launch, each with a part of its error behind ``%%``."""


def test_constructs_as_bash_reads_them(tmp_path: Path) -> None:
    """Words, expansions, conditions, redirections; loops and functions that the launch does not use."""
    module = loaded("launch_scripts", "hardening")
    found = []
    for text, words in re.findall(r"\n(.*?)\n%%([^\n]*)(?=\n)", SCRIPTS, re.DOTALL):
        given = (f"#!/bin/bash\n{text}\n", tuple(shlex.split(words)), {})
        found.append(module.compared(*given, module.bash_arguments(*given, tmp_path)))
    assert len(found) > 40
    assert [one for one in found if one.kind != "equal"] == []


@pytest.mark.parametrize(("text", "problem"), re.findall(r"\n(.*?)\n%% ([^\n]*)(?=\n)", OUTSIDE, re.DOTALL))
def test_what_is_not_evaluated_says_capture(text: str, problem: str) -> None:
    """The error names the line and the construct, and ``capture`` as the way out."""
    with pytest.raises(InputError) as caught:
        read_script(f"{text}\n", "job.sh").require_known("job.sh")
    expected = ".*".join(map(re.escape, problem.split(".*")))
    assert re.search("job.sh, line [0-9]+: .*pipette-opt capture", str(caught.value), re.DOTALL)
    assert re.search(expected, str(caught.value), re.DOTALL), caught.value
