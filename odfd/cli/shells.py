"""Holds the completion scripts of ``odfctl``, each of which runs ``odfctl completions`` for the word at the cursor.

All pass the line as one argument, since a ``--`` among several would end the options of ``odfctl completions``.
"""

from __future__ import annotations

from typing import Final

BASH: Final = r"""# odfctl completions for bash
_odfctl() {
  local line word begun="${COMP_WORDS[COMP_CWORD]}" found=() files="" quote=""
  local typed="${COMP_LINE:0:COMP_POINT}"
  # bash takes a word apart at : and =, and replaces the last piece alone
  local whole="${typed##*[[:space:]]}" piece=""
  case "$begun" in \"*|\'*) quote=yes; whole="${whole#[\"\']}" ;; esac
  if [ -z "$quote" ]; then
    case "$whole" in *:*) [ "${COMP_WORDBREAKS#*:}" = "$COMP_WORDBREAKS" ] || piece="${whole%:*}:" ;; esac
    case "${whole#"$piece"}" in
      *=*) [ "${COMP_WORDBREAKS#*=}" = "$COMP_WORDBREAKS" ] || piece="${whole%"${whole##*=}"}" ;;
    esac
  fi
  while IFS= read -r line; do
    word="${line%%$'\t'*}"
    if [ "$word" = ":files" ]; then files=yes; continue; fi
    word="${word#"$piece"}"
    [ -n "$quote" ] || printf -v word '%q' "$word"
    found+=("$word")
  done < <("${COMP_WORDS[0]}" completions --line "$typed" 2> /dev/null)
  COMPREPLY=("${found[@]}")
  if [ -n "$files" ]; then
    compopt -o filenames 2> /dev/null
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${whole#"$piece"}")
  fi
  case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in "1 "*=) compopt -o nospace 2> /dev/null ;; esac
}
complete -F _odfctl odfctl"""

ZSH: Final = r"""#compdef odfctl
_odfctl() {
  local line word told files=""
  local -a asked plain begun
  asked=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
  for line in "${(@f)$("$asked[1]" completions --line "${(@j: :)${(@qq)asked}}" 2> /dev/null)}"; do
    [[ -n $line ]] || continue
    word="${line%%$'\t'*}"
    told=""
    [[ $line == *$'\t'* ]] && told=":${line#*$'\t'}"
    if [[ $word == :files ]]; then
      files=yes
    elif [[ $word == *= ]]; then
      begun+=("${word//:/\\:}$told")
    else
      plain+=("${word//:/\\:}$told")
    fi
  done
  local -i done=1
  (( $#plain )) && _describe -t words odfctl plain && done=0
  (( $#begun )) && _describe -t words odfctl begun -S '' && done=0
  [[ -n $files ]] && _files && done=0
  return done
}
if [[ $funcstack[1] == _odfctl ]]; then _odfctl "$@"; else compdef _odfctl odfctl; fi"""
"""If zsh loads the file as the function ``_odfctl``, it declares that function and calls it at once."""

FISH: Final = r"""# odfctl completions for fish
function __odfctl_complete
    set -l words (commandline -opc)
    set -l line (string escape -- $words (commandline -ct | string unescape) | string join ' ')
    set -l found ($words[1] completions --line "$line" 2> /dev/null)
    for line in $found
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c odfctl -f -a '(__odfctl_complete)'"""

SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}
