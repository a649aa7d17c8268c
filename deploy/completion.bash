# completion.bash - for ckpt-cli in bash. What there is to complete is asked of the program itself:
# its commands, the options of a command, and the checkpoints that a store or a server lists.

_ckpt_cli() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} program=${COMP_WORDS[0]} i where=()
    COMPREPLY=()
    case $before in
    --store | --output | --tokenizer)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
    esac
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null |
            awk '/^  [a-z]/ { print $1 }')" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" "$command" --help 2>/dev/null |
            awk '/^  --/ { print $1 }')" -- "$word")
    else
        for ((i = 2; i + 1 < ${#COMP_WORDS[@]}; i++)); do
            case ${COMP_WORDS[i]} in
            --store | --server) where=("${COMP_WORDS[i]}" "${COMP_WORDS[i + 1]}") ;;
            esac
        done
        mapfile -t COMPREPLY < <(compgen -W "$("$program" list "${where[@]}" 2>/dev/null |
            awk 'NR > 1 && $1 ~ /@/ { split($1, part, "@"); print $1; print part[1] }' |
            sort -u)" -- "$word")
    fi
}
complete -F _ckpt_cli ckpt-cli
