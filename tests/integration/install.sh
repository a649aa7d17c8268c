#!/usr/bin/env bash
# install - the files of `make install` are enough for users: programs, ckpt.h, libckpt by
# pkg-config.
#
# Goal: a program compiles against the installed header and libraries alone, shared and static, as C
# and as C++, saves and loads; the shared library exports ckpt.h's functions with a version, and
# nothing else. Method: an installation into a fresh folder; the example of the documentation.
. "$(dirname "$0")/lib.sh"
plan 29
root=$tmp/root

# The test's caller has built everything: nothing is compiled again here.
check "make install works" make -s BUILD="$BUILD" PREFIX=/usr DESTDIR="$root" install
own() { make -sn BUILD="$BUILD" PREFIX=/home/me/holdfast install | grep -o '[^ >|]*/etc/holdfast'; }
check_equal "another prefix takes the configuration along" \
    "$(own | grep -cv '^/home/me/holdfast/etc/')" 0
sed 's|^prefix=.*|prefix='"$root"'/usr|' -i "$root/usr/lib/pkgconfig/libckpt.pc"
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
check "pkg-config knows libckpt" pkg-config --exists libckpt
flags() { pkg-config "$@" libckpt; }
strict=(-Wall -Wextra -Werror)
if nm "$BUILD/ckptd" | grep -q __asan_init; then strict+=(-fsanitize=address,undefined); fi

cp clients/examples/ckpt_example.c "$tmp"
printf '#include <ckpt.h>\nint main() { return ckpt_error() == nullptr; }\n' >"$tmp/plus.cpp"
read -r -a shared <<<"$(flags --cflags --libs)"
read -r -a static <<<"$(flags --static --cflags --libs | sed 's/-lckpt//')"
check "the example compiles with the shared library" \
    gcc "${strict[@]}" "$tmp/ckpt_example.c" -o "$tmp/shared" -pthread "${shared[@]}"
check "the example compiles with the static library" gcc "${strict[@]}" "$tmp/ckpt_example.c" \
    -o "$tmp/static" "$root/usr/lib/libckpt.a" "${static[@]}"
check "the header is C++ too" g++ "${strict[@]}" "$tmp/plus.cpp" -o "$tmp/plus" "${shared[@]}"

exports=$(nm -D --defined-only "$root/usr/lib/libckpt.so.1" | awk '$2 != "A" { print $3 }' | sort)
declared=$(grep -oE '\bckpt_[a-z_]+\(' clients/ckpt.h | tr -d '(' | sort -u)
without=$(grep -v '@@CKPT_[12]$\|^__asan\|^__odr_asan\|^__ubsan' <<<"$exports")
check "every exported name has a version" test -z "$without"
versioned=$(grep '@@CKPT_[12]$' <<<"$exports" | sed 's/@@.*//' | sort -u)
missing=$(comm -23 <(echo "$declared") <(echo "$versioned"))
check "every function of ckpt.h is exported" test -z "$missing"
extra=$(comm -13 <(echo "$declared") <(echo "$versioned"))
check "and nothing that ckpt.h does not declare" test -z "$extra"

pages=$root/usr/share/man/man1
absent=()
for name in ckptd trainer tokenizer holdfast-launch holdfast-certificates ckpt-cli; do
    test -x "$root/usr/bin/$name" || absent+=("bin/$name")
    test -s "$pages/$name.1" || absent+=("$name")
done
for name in launch_rules.py slurm/train.sbatch grafana/ckptd.json prometheus/prometheus.yml \
    prometheus/holdfast.rules.yml kubernetes/{ckptd,{,monitored/,configured/}kustomization}.yaml \
    configs/README.md \
    proto/ckpt.proto proto/grpc/health.proto; do
    test -s "$root/usr/share/holdfast/$name" || absent+=("$name")
done
check "the launcher finds what it decides by" env -C / "$root/usr/bin/holdfast-launch" --help
check_equal "every program is there, with a man page, and what batch systems are given" \
    "${absent[*]}" ""
mapfile -t commands < <("$BUILD/ckpt-cli" --help | awk '/^  [a-z]/ { print $1 }')
check "ckpt-cli tells its commands" test ${#commands[@]} -ge 16
for name in "${commands[@]}"; do # help2man escapes characters that groff interprets
    help=$("$BUILD/ckpt-cli" "$name" --help)
    page=$(tr -d '\\' <"$pages/ckpt-cli-$name.1" | sed 's/f[BIR]\(--\)/\1/g')
    for line in "$(sed -n 2p <<<"$help")" $(awk '/^  --/ { print $1 }' <<<"$help") "Exit codes"; do
        grep -qF -- "$line" <<<"$page" || absent+=("$name: $line")
    done
done
check_equal "every command has one, with what it is for, its options and its exit codes" \
    "${absent[*]}" ""

start_ckptd
check "the shared example saves" env LD_LIBRARY_PATH="$root/usr/lib" "$tmp/shared" "$server"
check "the static one goes on" "$tmp/static" "$server"
newest=$("$root/usr/bin/ckpt-cli" list --store "$store" | awk 'NR == 2 { print $1 }')
check_equal "where the other stopped" "${newest#*@}" "6-a2"

shares=$root/usr/share
PATH=$root/usr/bin:$PATH
in_bash() { # WORD...: the shell's completions for the last one, after its last '@' or ':'
    bash -c '
        . "$0/bash-completion/completions/ckpt-cli"
        COMP_LINE="ckpt-cli $*" COMP_POINT=${#COMP_LINE}
        _ckpt_cli && echo "${COMPREPLY[*]}"' "$shares" "$@"
}
in_fish() {
    HOME=$tmp fish --no-config -c '
        source $argv[1]/fish/vendor_completions.d/ckpt-cli.fish
        complete -C "ckpt-cli $argv[2..-1]" | cut -f 1 | paste -sd " "' "$shares" "$@"
}
in_zsh() { # on the line of an interactive shell, completed by a key
    cat >"$tmp/zshrc" <<-END
	PS1='> ' fpath=("$shares/zsh/site-functions" \$fpath)
	autoload -U compinit; compinit -u -D
	told() { print -r -- "<\$BUFFER>" >"$tmp/told" }
	zle -N told; bindkey '^X' told
	END
    rm -f "$tmp/told"
    HOME=$tmp ZDOTDIR=$tmp zsh -f -c '
        zmodload zsh/zpty && zpty shell zsh -f -i
        zpty -w shell "source $1/zshrc; print rea\"\"dy"
        zpty -r -m shell line "*ready*"
        zpty -w -n shell "ckpt-cli ${(j: :)@[2,-1]}"$'"'\\t\\x18'"'
        for ((i = 0; i < 200; i++)); do [ -s "$1/told" ] && break; sleep 0.05; done' zsh "$tmp" "$@"
    sed 's/ *>$//; s/.*[ <]//' "$tmp/told"
}
for shell in bash zsh fish; do
    command -v $shell >/dev/null || {
        for what in commands options checkpoints; do ok "$what in $shell # SKIP no $shell"; done
        continue
    }
    part=$newest
    [ $shell != bash ] || part=${newest#*@}
    check_equal "$shell completes commands" "$(in_$shell ver)" "verify"
    check_equal "and options, in $shell" "$(in_$shell prune --keep-l)" "--keep-last"
    check_equal "and checkpoints, in $shell" \
        "$(in_$shell verify --store "$store" "${newest%-a2}")" "$part"
done
check_equal "and what an option may be" "$(in_bash export x --dtype f)" "fp32 fp16"
check_equal "and no other's options" "$(in_bash list --keep-l)" ""
check_equal "and runs" \
    "$(in_bash list --store "$store" "${newest%?@*}" | tr ' ' '\n' | head -n 1)" "${newest%@*}"
check_equal "and files" "$(cd "$root/usr" && in_bash list --store inc)" "include"
