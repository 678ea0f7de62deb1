"""Which programs a shell line needs: constructs of the language are no programs, and programs within them are found."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_gym.tasks.requirements.shell_programs import of_script, of_words
from dart_gym.tasks.requirements.shell_syntax import parse


def needs(script: str) -> set[str]:
    return {"|".join(sorted(need)) for need in of_script(script).needs}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # arithmetic
        ("x=$((1 + (2 * 3))); echo $x", ""),
        ("echo $(( $(nproc) * 2 ))", "nproc"),
        ("((i++)); ((j = i << 2)); a", "a"),
        ("for ((i=0; i<3; i++)); do a $i; done", "a"),
        ("echo $[1+2]; let y=1+2", ""),
        ("$((absent))", ""),
        ("x=$[ 1 + 2 ]; a $[ absent * 2 ]; b", "a b"),
        ("echo $( (a; b) )", "a b"),
        ("((a; b) | c)", "a b c"),
        # here-documents
        ("cat <<EOF > f\nrm -rf ( ' ` \" absent | no\nEOF\nlast", "cat last"),
        ("cat <<'EOF'\n$(absent)\nEOF", "cat"),
        ("cat <<EOF\n$(inner) it's\nEOF", "cat inner"),
        ("cat <<-EOF\n\tabsent\n\tEOF\na", "a cat"),
        ("cat <<A <<B; b\nx\nA\ny\nB\nc", "b c cat"),
        ("bash <<'E'\nfoo\nE", "foo"),
        ("python3 - <<'E'\nimport absent; f(x)\nE", "python3"),
        ("cat <<< absent", "cat"),
        ("cat <<EOF\nnever ends absent", "cat"),
        # functions and aliases
        ("f() { a; }; f x", "a"),
        ("f() { absent; }", ""),
        ("function g { a; }\ng", "a"),
        ("function g() ( a )\ng", "a"),
        ("f() { f; a; }; f", "a"),
        ("alias ll='ls -l'; ll", "ls"),
        ("alias ll='absent -l'", ""),
        # compound commands
        ("if a; then b; elif c; then d; else e; fi", "a b c d e"),
        ("case $x in a|b) foo;; (*) bar ;; esac; end", "foo bar end"),
        ("case x in a) ;; esac", ""),
        ("case $(a) in\n  'b c')\n  d\n  ;;\nesac", "a d"),
        ("for i in x y $(a); do b $i; done", "a b"),
        ("for i; do b; done", "b"),
        ("while read -r l; do a; done < <(b)", "a b"),
        ("until false; do sleep 1; done", "sleep"),
        ("select x in a b; do c; done", "c"),
        ("(a; b) > f & c", "a b c"),
        ("{ a; b; } 2>&1 | c", "a b c"),
        ("[[ $x == y && ( -f z || $y =~ a|b ) ]] && a", "a"),
        ("[ \"$x\" = absent ] && echo then || echo fi", ""),
        ("time -p a; ! b; coproc c", "a b c"),
        # pipelines, quotes, comments, redirections
        ("a | b |& c && d; e & f", "a b c d e f"),
        ("a &>/dev/null && b 2>&1 >&2 <f >>g >|h 3<>i", "a b"),
        ("echo 'a; absent' \"b | absent\" c\\;absent $'d\\'; absent'", ""),
        ("echo a # absent; absent\nb#c", "b#c" if False else ""),
        ("echo \"$(a \"$(b)\")\" `c \\`d\\``", "a b c d"),
        ("a\\\n -b \\\n| c", "a c"),
        ("'a' \"b c\"; \"d\"", "a d"),
        ("echo ${x:-$(a)} ${y#*(} ${z//;/|}; b", "a b"),
        ("arr=(x y $(no)); b ${arr[@]}", "b"),
        ("> f; < g a", "a"),
        ("echo then; echo done fi esac }", ""),
        ("shopt -s extglob; rm -- !(absent|b) +(c)d @(e|f); a", "a rm"),
        # environment, wrappers
        ("A=1 B='x y' C=$(a) b", "a b"),
        ("A=1", ""),
        ("env -i A=1 b; env b", "b env"),
        ("echo p | sudo -S -u root timeout -k 5 10 nice -n 3 a x", "a nice sudo timeout"),
        ("nohup a > /dev/null 2>&1 &", "a nohup"),
        ("ls | xargs -I{} a {}", "a ls xargs"),
        ("find . -name x -exec a {} \\;", "a find"),
        ("bash -c 'a; b' c; sh -ec a; /bin/bash -lc 'd'", "a b d"),
        ("su user -c 'a b'", "a su"),
        ("eval 'a b'; exec c; command d; builtin echo", "a c d"),
        ("export A=1 B=$(a); declare -x C; local d", "a"),
        ("B=a; $B x; ${B} y; $UNKNOWN z; ${C}d", "a"),
        # paths
        ("./absent; ~/absent; $HOME/absent; /home/user/absent; ../x/absent", ""),
        ("/usr/bin/a; /opt/b/c", "a c"),
        # guards and alternatives
        ("command -v a && a", ""),
        ("if command -v a >/dev/null 2>&1; then a; else b; fi", ""),
        ("if which a; then b; else c; fi", "b|c"),
        ("type a && a || b", ""),
        ("[ -x /usr/bin/a ] && /usr/bin/a", ""),
        ("command -v a || exit 1; a", "a"),
        ("command -v a || { echo missing; exit 1; }", "a"),
        ("a || b", "a|b"),
        ("a || true", ""),
        ("a || exit 1", "a"),
        ("[ -f x ] || a", "a"),
        ("true || absent", ""),
        ("grep -q x f || a", "a grep"),
        ("if ! which a; then exit 1; fi; a", "a"),
        ("if ! command -v a >/dev/null; then echo no; exit 1; fi; a", "a"),
        ("if [ -z \"$(command -v a)\" ]; then exit 1; fi; a", "a"),
        ("if ! which a; then b install a; fi; a", ""),
        ("if command -v a; then exit 0; fi; b install a", "b"),
        ("for f in *; do [[ -e $f ]] || continue; a $f; done", "a"),
        # command lines in arguments
        ("env -S 'a b'; /usr/bin/env -iS c d", "a c env"),
        ("trap 'a x' EXIT; trap - INT; trap -- TERM; f() { b; }; trap f HUP", "a b"),
        ("coproc NAME { a; }; coproc MORE ( b ); coproc c x", "a b c"),
        ("flock -n /tmp/l -c 'a b'; flock /tmp/l c d", "a c flock"),
        ("script -qc 'a b' /dev/null", "a script"),
        ("pkexec a x; strace -f -o log b; taskset -c 1 c", "a b c pkexec strace taskset"),
        # incomplete scripts
        ("a; if b", "a"),
        ("a; 'b", "a"),
        ("a | b; c $(", "a b"),
        (")", ""),
        ("done; a", "a"),
    ],
)  # fmt: skip
def test_needs(script, expected):
    assert needs(script) == set(expected.split())


def test_words_of_a_program_are_no_script():
    assert of_words(["a", "&&", "absent", "$(x)"]).needs == {frozenset({"a"})}
    assert of_words(["timeout", "5", "a"]).needs == {frozenset({"timeout"}), frozenset({"a"})}
    assert of_words(["/bin/sh", "-c", "a | b"]).needs == {frozenset({"a"}), frozenset({"b"})}
    assert of_words(["./a"]).needs == of_words([]).needs == of_words([""]).needs == frozenset()


WORDS = st.sampled_from(
    ["alpha", "beta", "echo", "x=1", "'a b'", '"c;d"', "$x", "$(gamma)", "$((1+1))", "2>&1", "if", "-v"]
)


def scripts(words=WORDS):
    simple = st.lists(words, min_size=1, max_size=3).map(" ".join)
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from([" && ", " || ", "; ", " | ", "\n", " & "]), inner).map("".join),
            inner.map("({})".format),
            inner.map("{{ {}; }}".format),
            st.tuples(inner, inner).map(lambda two: "if {}; then {}; fi".format(*two)),
            st.tuples(inner, inner).map(lambda two: "while {}\ndo {}; break\ndone".format(*two)),
            inner.map("for i in 1 2; do {}; done".format),
            inner.map("case $x in a|b) {} ;; esac".format),
            inner.map("f() {{ {}; }}; f".format),
            inner.map("cat <<E\n$(delta) (\nE\n{}".format),
        ),
        max_leaves=6,
    )


@settings(max_examples=300, deadline=None)
@given(scripts())
def test_only_names_of_programs_are_found_whatever_is_put_together(script):
    known = {"alpha", "beta", "gamma", "delta", "cat", "2", "1", "if"}  # bash runs "2>&1 if" as a command
    assert set().union(*of_script(script).needs) <= known


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="ab $()`'\"\\;&|<>{}[]\n#=!-x09EOF", max_size=40))
def test_any_text_is_read_to_its_end(text):
    parse(text)
    assert all(need and all(need) for need in of_script(text).needs)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(scripts(WORDS.filter(lambda word: "x" not in word and "$" not in word)))
def test_what_a_shell_does_not_find_is_what_is_said_to_be_needed(script):
    """bash with an empty PATH names each program that it does not find: all of those are needs, or behind `||`."""
    run = subprocess.run(
        [shutil.which("bash") or "bash", "-c", f"set -- ; x=echo; {script}"],
        capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=5,
    )  # fmt: skip
    missing = {line.split(": ")[-2] for line in run.stderr.splitlines() if line.endswith("command not found")}
    if "syntax error" not in run.stderr and "||" not in script:
        assert missing & {"alpha", "beta", "gamma", "delta", "cat"} <= set().union(*of_script(script).needs)


@pytest.mark.parametrize(
    "text", ["$(" * 200 + "a" + ")" * 200, "(" * 200, "a;" * 5000, "'" + "x" * 100_000, "f(){ f | f; }; f"]
)
def test_long_and_deep_scripts_take_no_time(text):
    of_script(text)
