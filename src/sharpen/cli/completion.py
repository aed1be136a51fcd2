"""`sharpen completion SHELL`: print a script that completes commands, options, choices, run names and files.

The script is small and never changes: on each Tab it calls `sharpen completion --words`, which reads the words before
the cursor from standard input and prints candidates from the parser (see `candidates`).
"""

import argparse
import sys

from .parser import examples

BASH = """\
# bash completion for sharpen. To load it: source <(sharpen completion bash)
_sharpen_paths() {
    local path
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$2")
}
_sharpen_completion() {
    local line current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == "=" ]] && current=""
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) _sharpen_paths -f "$current" ;;
            :folders) _sharpen_paths -d "$current" ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <(printf '%s\\n' "${COMP_WORDS[@]:1:COMP_CWORD}" | "$1" completion --words --split 2>/dev/null)
}
complete -F _sharpen_completion sharpen
"""

ZSH = """\
#compdef sharpen
# zsh completion for sharpen. To load it: source <(sharpen completion zsh), or save it as _sharpen in $fpath.
_sharpen() {
    local line name kind=""
    local -a found
    for line in "${(@f)$(printf '%s\\n' "${(@)words[2,CURRENT]}" | "${words[1]}" completion --words 2>/dev/null)}"; do
        case $line in
            :files|:folders) kind=$line ;;
            *$'\\t'*) name=${line%%$'\\t'*}; found+=("${name//:/\\\\:}:${line#*$'\\t'}") ;;
            ?*) found+=("${line//:/\\\\:}") ;;
        esac
    done
    (( ${#found} )) && _describe -V sharpen found
    [[ -n $kind && $PREFIX == --*=* ]] && compset -P '*='
    [[ $kind == :files ]] && _files
    [[ $kind == :folders ]] && _files -/
    return 0
}
if [[ ${funcstack[1]} == _sharpen ]]; then _sharpen "$@"; else compdef _sharpen sharpen; fi
"""

FISH = """\
# fish completion for sharpen. To load it: sharpen completion fish | source
function __sharpen_completion
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l command $words[1]
    set -e words[1]
    set -l option (string match -r -- '^--[^=]*=' "$last")
    set -l value (string replace -r -- '^--[^=]*=' '' "$last")
    for line in (printf '%s\\n' $words "$last" | $command completion --words 2>/dev/null)
        switch $line
            case ':files'
                for path in (__fish_complete_path "$value"); echo "$option$path"; end
            case ':folders'
                for path in (__fish_complete_directories "$value"); echo "$option$path"; end
            case '*'
                echo $line
        end
    end
end
complete -c sharpen -f -a '(__sharpen_completion)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print a shell completion script",
        description="Print a shell completion script. It completes commands, options, choices, run names and files.",
        epilog=examples(
            "source <(sharpen completion bash)    # in ~/.bashrc",
            "source <(sharpen completion zsh)     # in ~/.zshrc, after compinit",
            "sharpen completion fish > ~/.config/fish/completions/sharpen.fish",
        ),
    )
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--words", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--split", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the script, or the candidates that a script asks for."""
    if arguments.words:
        _answer(is_split=arguments.split)
    elif arguments.shell is None:
        arguments.parser.error(f"missing SHELL: choose one of {', '.join(sorted(SCRIPTS))}")
    else:
        sys.stdout.write(SCRIPTS[arguments.shell])


def _answer(*, is_split: bool) -> None:
    from .candidates import candidates
    from .program import make_parser

    words = sys.stdin.read().removesuffix("\n").split("\n")
    for each in candidates(make_parser(), words, is_split=is_split):
        sys.stdout.write(f"{each}\n")
