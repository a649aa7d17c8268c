# completion.fish - for ckpt-cli in fish, as completion.bash.

function __ckpt_cli
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l lines ($words[1] --complete $words[2..-1] "$typed" 2>/dev/null)
    if test "$lines[1]" = :files
        __fish_complete_path "$typed"
    else
        printf '%s\n' $lines
    end
end
complete -c ckpt-cli -f -a '(__ckpt_cli)'
