#compdef ckpt-cli
# completion.zsh - for ckpt-cli in zsh, as completion.bash.

_ckpt_cli() {
    local -a lines names shown
    lines=("${(@f)$("$words[1]" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $lines[1] == :files ]]; then
        _files
    elif [[ -n $lines[1] ]]; then
        names=("${(@)lines%%$'\t'*}")
        shown=("${(@)lines/$'\t'/  }")
        compadd -l -d shown -a names
    fi
}
_ckpt_cli "$@"
