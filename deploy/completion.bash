# completion.bash - for ckpt-cli in bash. The program prints the completions of a word: lines of a
# word, a tab and its description; or ":files".

_ckpt_cli() {
    local line=${COMP_LINE:0:COMP_POINT} words lines typed taken
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    typed=${words[-1]}
    mapfile -t lines < <("${words[0]}" --complete "${words[@]:1}" 2>/dev/null)
    if [ "${lines[0]:-}" = :files ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t lines < <(compgen -f -- "$typed")
    fi
    # For readline a word begins after the '@' of a checkpoint or the ':' of a socket.
    taken=${typed%"${typed##*["$COMP_WORDBREAKS"]}"}
    COMPREPLY=("${lines[@]%%$'\t'*}")
    COMPREPLY=("${COMPREPLY[@]#"$taken"}")
}
complete -F _ckpt_cli ckpt-cli
